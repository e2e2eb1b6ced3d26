"""The wheel in an environment that has what the wheel asks for and nothing else: no torch."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import zipfile
from importlib import metadata
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from scalestudy.results.stored import write_result
from scalestudy.spec.layout import result_file
from scalestudy.spec.machine import Machine
from scalestudy.spec.read_study import read_studies
from tests.integration.project import ROOT, Project, make_project
from tests.unit.analysis.fake_results import result_of


def closure(requirements: list[str]) -> dict[str, metadata.Distribution]:
    """The distributions of this environment that these requirements need, and what those need."""
    found: dict[str, metadata.Distribution] = {}
    todo = [(Requirement(text), "") for text in requirements]
    while todo:
        requirement, extra = todo.pop()
        if requirement.marker is not None and not requirement.marker.evaluate({"extra": extra}):
            continue
        distribution = metadata.distribution(requirement.name)
        assert requirement.specifier.contains(distribution.version, prereleases=True), requirement
        name = canonicalize_name(requirement.name)
        known = name in found
        found[name] = distribution
        if not known or requirement.extras:
            todo += [
                (Requirement(text), each) for text in distribution.requires or [] for each in requirement.extras or {""}
            ]
    return found


def linked(distribution: metadata.Distribution, folder: Path) -> None:
    """A distribution's folders and modules, as links."""
    for file in distribution.files or []:
        top = file.parts[0]
        source = Path(str(distribution.locate_file(top)))
        if top not in ("..", "__pycache__") and source.exists() and not (folder / top).exists():
            (folder / top).symlink_to(source)


@pytest.fixture(scope="module")
def bare(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The interpreter of an environment with the wheel and its own requirements."""
    folder = tmp_path_factory.mktemp("bare")
    shutil.rmtree(ROOT / "build/lib", ignore_errors=True)  # a build keeps modules that have moved since
    subprocess.run(
        [sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "--no-build-isolation", "-w", str(folder), str(ROOT)],
        check=True,
    )
    (wheel,) = folder.glob("*.whl")
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder / "env")], check=True)
    (site,) = folder.glob("env/lib/python*/site-packages")
    python = folder / "env/bin/python"
    into = [sys.executable, "-m", "pip", "--python", str(python), "install", "-qI", "--no-deps", "--no-index"]
    subprocess.run([*into, str(wheel)], check=True)
    (own,) = metadata.distributions(name="scalestudy", path=[str(site)])
    for distribution in closure([text for text in own.requires or [] if "extra ==" not in text]).values():
        linked(distribution, site)
    return python


@pytest.fixture
def project(bare: Path, tmp_path: Path) -> Project:
    """A clone whose commands are those of the bare environment."""
    found = make_project(tmp_path / "clone")

    def environment() -> dict[str, str]:
        kept = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "VIRTUAL_ENV")}
        return {**kept, "PATH": f"{bare.parent}{os.pathsep}/usr/bin{os.pathsep}/bin"}

    found.environment = environment  # type: ignore[method-assign]
    return found


def test_it_checks_has_the_executor_and_plans_the_jobs_of_a_cluster(project: Project, bare: Path) -> None:
    code = "import sys, snakemake_executor_plugin_multinode as it; from scalestudy.cli import run_command as run"
    plan = ["plan", "--profile", "profiles/slurm", "--json", "-"]
    said = project.must("python", "-c", f"{code}; print(it.__file__); sys.exit(run(['check']) or run({plan}))")
    assert said.startswith(str(bare.parents[1]))
    assert '"rule": "train"' in said and '"runtime": ' in said


def test_it_draws_a_study_that_was_handed_over(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    # The numbers are made up; what is tested is that reading and drawing needs no more than the wheel asks for.
    monkeypatch.chdir(project.folder)
    [study] = read_studies(["tiny"], "mini", Machine(), machine_name="local")
    for run in study.runs:
        write_result(result_file("local", run.id), result_of(run))
    verbs = "summarise", "figure --name time", "table --name times"
    words = [*(f"{verb} --study tiny" for verb in verbs), "report --studies tiny --out report.html"]
    code = "import sys; from scalestudy.cli import run_command as run"
    project.must("python", "-c", f"{code}; sys.exit(any([run(line.split()) for line in {words}]))")
    assert (project.folder / "results/local/mini/figures/tiny/time.svg").stat().st_size > 3000


def test_what_needs_torch_says_what_to_install(project: Project) -> None:
    done = project.run("scalestudy", "try", "--out", "a", SCALESTUDY_WARM="0")
    assert done.returncode != 0
    assert "pip install 'scalestudy[train]'" in done.stdout
    assert "Traceback" not in done.stdout


def test_the_executor_builds_on_its_own_with_its_licence_and_without_its_tests(tmp_path: Path) -> None:
    copy = shutil.copytree(
        ROOT / "executor", tmp_path / "executor", ignore=shutil.ignore_patterns("build", "*.egg-info")
    )
    backend = "from setuptools import build_meta; build_meta.build_wheel('made')"
    subprocess.run([sys.executable, "-c", backend], cwd=copy, check=True, stdout=subprocess.DEVNULL)
    (wheel,) = copy.glob("made/snakemake_executor_plugin_multinode-*.whl")
    names = zipfile.ZipFile(wheel).namelist()
    modules = {file.name for file in (ROOT / "executor/src/snakemake_executor_plugin_multinode").glob("*.py")}
    assert modules <= {Path(name).name for name in names}
    assert any(name.endswith("licenses/LICENSE") for name in names)
    assert not [name for name in names if "test" in name]
