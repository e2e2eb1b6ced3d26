"""The workflow as others use it: as a module of their own workflow, with Snakemake's own report of it."""

from __future__ import annotations

import json
import re
import shutil
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


onstart:
    scalestudy.onstart()


onsuccess:
    scalestudy.onsuccess()
"""

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def deployed(tmp_path_factory: pytest.TempPathFactory) -> Project:
    """A folder with a configuration and a workflow that uses the one of another folder; its one run is made."""
    source = make_project(tmp_path_factory.mktemp("source") / "clone")
    source.edit(source.study, "[{value: halving_doubling, label: HD}, allreduce]", "[allreduce]")
    source.edit(source.study, "ranks: [1, 2]", "ranks: [1]")
    project = Project(tmp_path_factory.mktemp("deployed"), forked=True)
    shutil.move(source.folder / "config", project.folder / "config")
    (project.folder / "workflow").mkdir()
    text = MODULE.format(snakefile=source.folder / "workflow/Snakefile")
    (project.folder / "workflow/Snakefile").write_text(text)
    project.must("snakemake", "--cores", "1", "--resources", "measure=1", "--rerun-triggers", "mtime", "params")
    return project


def test_a_module_makes_runs_figures_tables_and_the_report(deployed: Project) -> None:
    assert len(deployed.results()) == 1
    assert [each["changed_after_measuring"] for each in deployed.verdicts("tiny")] == [False]
    for file in ("figures/tiny/time.svg", "tables/tiny/times.csv", "report.html"):
        assert (deployed.folder / "results/local/mini" / file).stat().st_size > 100
    done = deployed.must("snakemake", "--cores", "1", "--rerun-triggers", "mtime", "params", "-n", "tiny")
    assert "Nothing to be done" in done


def test_snakemakes_report_has_figures_and_tables_of_each_study_with_captions(
    deployed: Project, tmp_path: Path
) -> None:
    deployed.must("snakemake", "--cores", "1", "--report", "report.html")
    report = deployed.folder / "report.html"
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
            "Figures": [f"{folder}/figures/tiny/time.svg"],
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


def test_a_module_with_a_prefix_has_the_plan_and_small_jobs_beside_the_driver(
    deployed: Project, tmp_path: Path
) -> None:
    project = Project(tmp_path / "prefixed", forked=True)
    shutil.copytree(deployed.folder / "config", project.folder / "config")
    shutil.copytree(ROOT / "profiles", project.folder / "profiles")
    text = (deployed.folder / "workflow/Snakefile").read_text()
    renamed = text.replace("use rule * from scalestudy", "use rule * from scalestudy as ss_*")
    (project.folder / "Snakefile").write_text(renamed.replace("rules.all", "rules.ss_all"))
    planned = project.must("snakemake", "--profile", "profiles/slurm", "ss_tiny", "-n")
    assert re.search(r"^total +2 ", planned, re.MULTILINE), planned
    assert "localrules" not in planned
