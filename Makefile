# make run    from a bare machine to figures of real training
# make check  linters and tests
PYTHON ?= python3
export PATH := $(CURDIR)/.venv/bin:$(PATH)

.PHONY: run setup check lint test format lock schemas bench-loader

run: setup
	@scalestudy check
	@snakemake --profile profiles/local all

setup:
	@$(PYTHON) envs/venv.py

check: lint test

.venv-dev:
	@$(PYTHON) envs/venv.py --dev

lint: .venv-dev
	ruff check .
	ruff format --check --quiet .
	snakefmt --check Snakefile workflow/rules
	snakemake --lint
	mypy

test: .venv-dev
	pytest

format: .venv-dev
	ruff check --fix-only --quiet .
	ruff format --quiet .
	snakefmt Snakefile workflow/rules

# Needs uv; writes no index host.
lock:
	cd envs && uv pip compile --universal --python-version 3.11 --generate-hashes --no-header -q -o requirements.txt requirements.in
	cd envs && uv pip compile --universal --python-version 3.11 --generate-hashes --no-header -q -o requirements-dev.txt requirements-dev.in

# About 20 minutes on a quiet machine; stopped, it goes on where it was. OPTIONS="--peers ours dali" for a part.
bench-loader: setup
	@python benchmarks/loader.py --out docs/measured/loader.txt $(OPTIONS)

schemas:
	scalestudy schema --write

.PHONY: .venv-dev
