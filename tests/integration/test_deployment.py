"""The workflow as others use it: as a module of their own workflow, with Snakemake's own report of it."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.browser import chromium
from tests.integration.project import Project, make_project

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
