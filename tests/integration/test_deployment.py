"""The workflow as others use it: as a module of their own workflow, with Snakemake's own report of it."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.browser import chromium
from tests.integration.project import ROOT, Project, make_project

# What snakedeploy writes, with the address of a repository in place of the path.
MODULE = """\
from snakemake.utils import min_version

min_version("9.27")


module scalestudy:
    snakefile: "{snakefile}"
    config: config


use rule * from scalestudy
"""

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def deployed(tmp_path_factory: pytest.TempPathFactory) -> Project:
    """A folder with a configuration and a workflow that uses the one of another folder; its two runs are made."""
    source = make_project(tmp_path_factory.mktemp("source") / "clone")
    source.edit(source.study, "[{value: halving_doubling, label: HD}, allreduce]", "[allreduce]")
    project = Project(tmp_path_factory.mktemp("deployed"), forked=True)
    shutil.move(source.folder / "config", project.folder / "config")
    (project.folder / "workflow").mkdir()
    text = MODULE.format(snakefile=source.folder / "workflow/Snakefile")
    (project.folder / "workflow/Snakefile").write_text(text)
    done = project.run("snakemake", "--cores", "1", "--resources", "measure=1", "--rerun-triggers", "mtime", "params")
    assert done.returncode == 0, done.stdout
    return project


def test_a_module_makes_runs_figures_tables_and_the_report(deployed: Project) -> None:
    assert len(deployed.results()) == 2
    for file in ("figures/tiny/time.svg", "tables/tiny/times.csv", "report.html"):
        assert (deployed.folder / "results/local/mini" / file).stat().st_size > 100


def test_a_module_has_a_target_for_each_study_and_trains_nothing_again(deployed: Project) -> None:
    done = deployed.run("snakemake", "--cores", "1", "--rerun-triggers", "mtime", "params", "-n", "tiny")
    assert done.returncode == 0, done.stdout
    assert "Nothing to be done" in done.stdout


@pytest.fixture(scope="module")
def report(deployed: Project) -> Path:
    """Snakemake's own report."""
    done = deployed.run("snakemake", "--cores", "1", "--report", "report.html")
    assert done.returncode == 0, done.stdout
    return deployed.folder / "report.html"


def test_snakemakes_report_has_figures_and_tables_of_each_study_with_captions(report: Path, tmp_path: Path) -> None:
    with chromium(tmp_path / "profile") as browser:
        browser.open(report)
        listed = json.loads(browser.ask("JSON.stringify(categories)"))
        results = json.loads(browser.ask("JSON.stringify(results)"))
        requests = [address for address in browser.requests if not address.startswith("data:")]
    folder = "results/local/mini"
    assert listed == {
        "Report": {"Other": [f"{folder}/report.html"]},
        "tiny": {
            "Claims": [f"{folder}/claims/tiny.csv"],
            "Figures": [f"{folder}/figures/tiny/accuracy_over_time.svg", f"{folder}/figures/tiny/time.svg"],
            "Tables": [f"{folder}/tables/tiny/times.csv"],
        },
    }
    assert results[f"{folder}/figures/tiny/time.svg"]["labels"] == {"figure": "time"}
    for result in results.values():
        words = re.sub(r"<[^>]*>", "", result["caption"])
        assert "local" in words
        assert "mini" in words
    assert "Does the frame hold?" in results[f"{folder}/tables/tiny/times.csv"]["caption"]
    assert requests == [report.as_uri()]


def test_the_root_file_makes_all_where_no_target_is_named(tmp_path: Path) -> None:
    project = make_project(tmp_path / "clone", forked=True)
    done = project.snakemake("-n")
    assert done.returncode == 0, done.stdout
    assert re.search(r"^all +1$", done.stdout, re.MULTILINE)
    assert re.search(r"^train +4$", done.stdout, re.MULTILINE)


def test_the_workflow_passes_snakemakes_lint_from_either_file(tmp_path: Path) -> None:
    project = make_project(tmp_path / "clone", forked=True)
    for file in ("Snakefile", "workflow/Snakefile"):
        done = project.run("snakemake", "--snakefile", file, "--lint")
        assert done.returncode == 0, done.stdout


@pytest.mark.parametrize("mode", ["--lint", "--summary", "--unlock", "--list-rules", "--delete-all-output -n"])
def test_what_runs_no_job_prints_what_snakemake_prints(tmp_path: Path, mode: str) -> None:
    project = make_project(tmp_path / "clone", forked=True)
    shown, plain = (
        project.run("snakemake", *profiles, *mode.split())
        for profiles in (("--profile", "profiles/local"), ("--cores", "1", "--workflow-profile", "none"))
    )
    assert (shown.returncode, plain.returncode) == (0, 0)
    assert re.sub(r"Using profiles .*\n", "", shown.stdout) == plain.stdout


def test_a_module_with_a_prefix_has_the_plan_the_display_and_small_jobs_beside_the_driver(
    deployed: Project, tmp_path: Path
) -> None:
    project = Project(tmp_path / "prefixed", forked=True)
    shutil.copytree(deployed.folder / "config", project.folder / "config")
    shutil.copytree(ROOT / "profiles", project.folder / "profiles")
    text = (
        (deployed.folder / "workflow/Snakefile")
        .read_text()
        .replace("use rule * from scalestudy", "use rule * from scalestudy as ss_*")
    )
    (project.folder / "Snakefile").write_text(text.replace("rules.all", "rules.ss_all"))
    planned = project.run("snakemake", "--profile", "profiles/slurm", "ss_tiny", "-n")
    assert planned.returncode == 0, planned.stdout
    assert re.search(r"^total +3 ", planned.stdout, re.MULTILINE), planned.stdout
    assert "localrules" not in planned.stdout
    done = project.run("snakemake", "--profile", "profiles/local", "ss_tiny")
    assert "To do: 2 runs, 1 dataset, 2 figures, 1 table\n" in done.stdout
    assert "\n[2/2] tiny: " in done.stdout
    assert "figure: results/local/mini/figures/tiny/time.svg" in done.stdout


ELSEWHERE = """
import pkgutil, sys
OURS = ("scalestudy", "snakemake_logger_plugin_scalestudy", "snakemake_executor_plugin_multinode")
every = pkgutil.iter_modules
pkgutil.iter_modules = lambda *words, **more: (each for each in every(*words, **more) if each.name not in OURS)
class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in OURS:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
sys.meta_path.insert(0, Absent())
from snakemake.cli import main
main(sys.argv[1:])
"""
"""Snakemake in an environment that has nothing of this project."""


def test_a_snakemake_without_the_package_names_the_command_that_works(tmp_path: Path) -> None:
    project = make_project(tmp_path / "clone")
    done = project.run(sys.executable, "-c", ELSEWHERE, "--cores", "1", "-n")
    assert done.returncode == 1
    lines = [line for line in done.stdout.splitlines() if not line.startswith("Using workflow specific profile")]
    assert lines == [
        "scalestudy is not installed where this Snakemake is (No module named 'scalestudy')",
        "    in a clone: make setup, then .venv/bin/snakemake --profile profiles/local all -n",
    ]


@pytest.mark.parametrize(
    "command", ["snakemake --profile profiles/local -n tinny", "scalestudy plan tinny", "scalestudy run tinny"]
)
def test_a_target_that_does_not_exist_is_answered_with_the_nearest_study(deployed: Project, command: str) -> None:
    shutil.copytree(ROOT / "profiles", deployed.folder / "profiles", dirs_exist_ok=True)
    done = deployed.shell(command)
    assert done.returncode != 0
    assert "there is no rule, study or file `tinny`\n    did you mean `tiny`?" in done.stdout


def test_the_environment_of_rules_is_given_the_project_after_it_was_made(tmp_path: Path) -> None:
    root = Path(__file__).resolve().parents[2]
    pip = tmp_path / "pip"
    pip.write_text('#!/bin/sh\necho "$@" > "$(dirname "$0")/called"\n')
    pip.chmod(0o755)
    command = ["bash", str(root / "envs/conda.post-deploy.sh")]
    path = f"{tmp_path}{os.pathsep}{os.environ['PATH']}"
    subprocess.run(command, check=True, env={"PATH": path, "SCALESTUDY_SOURCE": str(root)})
    assert (tmp_path / "called").read_text() == f"install --no-deps --no-build-isolation {root}\n"
    lost = subprocess.run(command, check=False, env={"PATH": path}, capture_output=True, text=True)
    assert lost.returncode == 2
    assert "clone" in lost.stderr
