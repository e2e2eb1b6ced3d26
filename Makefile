# make setup  the environment; LOCK=cuda126: for older GPUs and drivers; VENV=FOLDER: elsewhere, for example on scratch
# make run    from a bare machine to figures of real training, on its GPU where it has one: four studies, or two
#             make run SCALE=mini  on this CPU
# make all    every study
# make check  linters and tests beside each other; the tests build the documentation too
# make quick  linters and the tests that take no time, in about a minute and a half on two cores
# make coverage  branch coverage of the tests, by file
# make docs   the documentation as a site: build/docs/index.html
# make same  what a change does to tables, verdicts and figures: BASE=main~3 RESULTS=results/local
# make soak   what takes too long for tests; its output is kept in docs/measured/
# make horovod  compiles Horovod for the torch that is there and installs it beside it (minutes the first time)
# make sbom   what the lock pins, as a bill of materials (CycloneDX): build/sbom.json; LOCK=cuda126 of the other lock
# make audit  known weaknesses of what the lock pins, by pip-audit; fails where the index of packages has no advisories
# make box    a private Slurm of four nodes on this machine, as root, and a study through profiles/slurm
PYTHON ?= python3
export PATH := $(CURDIR)/.venv/bin:$(PATH)

SHELL := /bin/bash -o pipefail
# Where it is set, each process compiles the whole package anew.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: run all soak setup horovod check lint docs gallery coverage quick format lock same bench-loader box sbom audit

# The studies, the scale and the machine that fit what is here: `scalestudy run -n` says which, and why.
run: setup
	@scalestudy check
	@scalestudy run $(SCALE:%=--scale %)

all: setup
	@scalestudy check
	@snakemake all --profile profiles/local

setup:
	@$(PYTHON) envs/venv.py
	@$(MAKE) --no-print-directory -s workflow/schemas/study.schema.json

# By these, editors complete and check study, machine and site files.
workflow/schemas/study.schema.json: $(wildcard workflow/scalestudy/*/*.py)
	@python -m scalestudy.spec.schema workflow/schemas && touch $@

horovod: setup
	@PYTHON=python envs/horovod.sh

# Groups of tests side by side, and `make lint` beside them; `pytest` runs the tests one after the other.
check: .venv-dev
	@python -m tests.side_by_side

.venv-dev:
	@$(PYTHON) envs/venv.py --dev

lint: .venv-dev
	@! git grep -nE '^(<{7}|>{7}) '
	ruff check .
	ruff format --check --quiet .
	snakefmt --check Snakefile workflow/Snakefile workflow/rules
	snakemake --lint
	mypy
	pytest -p no:cacheprovider tests/unit/test_words.py

# A dead link, a warning, or a key without a description fails.
docs: .venv-dev
	@sphinx-build -W -n --keep-going -q -E -d build/doctrees -b html docs build/docs
	@echo "documentation: build/docs/index.html"

# From the results that are there; pages of other studies say how to make them.
gallery: setup
	@python docs/gallery.py $(OPTIONS)

# Left out: what starts processes, servers or compilers.
WITH_PROCESSES = data/test_modes data/test_stage data/test_kernel test_setup

quick: .venv-dev
	@ruff check --quiet .
	@ruff format --check --quiet .
	@mypy
	@pytest -n auto --maxprocesses 8 tests/unit executor/tests -m "not slow" $(WITH_PROCESSES:%=--ignore tests/unit/%.py) --ignore executor/tests/test_jobscript.py

# Branch coverage of unit and integration tests and those of the executor, with the processes that they start; OPTIONS for pytest.
# Children that multiprocessing forks would write their counts into the folder they run in: hence the whole path.
coverage: export COVERAGE_FILE = $(CURDIR)/build/coverage/data
coverage: .venv-dev
	@rm -rf build/coverage && mkdir -p build/coverage
	@status=0; coverage run -m pytest -n auto --dist=loadfile tests/unit tests/integration executor/tests $(OPTIONS) || status=$$?; \
		coverage combine --quiet; coverage report --sort=cover && exit $$status

# Tables, verdicts and figures that BASE and this commit make of the finished runs in RESULTS.
same: .venv-dev
	@python -m tests.same $(BASE) $(RESULTS) $(STUDIES)

box: setup
	@python -m tests.cluster.try_box

# An environment of their own: nothing of the project needs these tools.
build/tools/bin/pip-audit:
	@$(PYTHON) -m venv build/tools && build/tools/bin/pip install --quiet 'cyclonedx-bom>=7.5,<8' 'pip-audit>=2.10,<3'

sbom: build/tools/bin/pip-audit
	@build/tools/bin/cyclonedx-py requirements --output-reproducible --output-file build/sbom.json envs/requirements$(if $(LOCK),-$(LOCK)).txt

audit: build/tools/bin/pip-audit
	@build/tools/bin/pip-audit --disable-pip --require-hashes --strict --requirement envs/requirements$(if $(LOCK),-$(LOCK)).txt

format: .venv-dev
	ruff check --fix-only --quiet .
	ruff format --quiet .
	snakefmt Snakefile workflow/Snakefile workflow/rules

# Needs uv; writes no index host.
lock:
	cd envs && uv pip compile --universal --python-version 3.11 --generate-hashes --no-header -q -o requirements.txt requirements.in
	cd envs && uv pip compile --universal --python-version 3.11 --generate-hashes --no-header -q -o requirements-cuda126.txt requirements-cuda126.in
	cd envs && uv pip compile --universal --python-version 3.11 --generate-hashes --no-header -q -o requirements-dev.txt requirements-dev.in

# Some hours. The executor's part and faults of disks need root: a Slurm of their own, and small disks.
soak: .venv-dev
	python -m tests.soak.kill_and_resume | tee docs/measured/kill_and_resume.txt
	python -m tests.soak.extrapolation --out build/extrapolation | tee docs/measured/extrapolation.txt
	cp build/extrapolation/extrapolation.npz tests/data/
	pytest -m soak
	SCALESTUDY_FUZZ_EXAMPLES=10000 SCALESTUDY_FUZZ_ROUNDS=60000 pytest --timeout 3600 tests/foreign
	python -m tests.soak.bottleneck | tee docs/measured/bottleneck.txt
	python -m tests.soak.prepare_million | tee docs/measured/data_preparation.txt
	python -m tests.soak.executor_kills 20 | tee docs/measured/executor_kills.txt
	for profile in slurm sge allocation; do \
	  python -m tests.soak.profiles $$profile | tee docs/measured/profile_$$profile.txt; done

# About 20 minutes on a quiet machine; stopped, it resumes where it was. OPTIONS="--peers ours dali" for a part.
bench-loader: setup
	@python benchmarks/loader.py --out docs/measured/loader.txt $(OPTIONS)

.PHONY: .venv-dev
