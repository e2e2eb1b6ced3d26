"""The tutorial's commands, in its order, do what it says."""

from __future__ import annotations

import json
import sys

import pytest

from tests.integration.project import THREADS, Project, make_project
from tests.integration.test_documents import blocks
from tests.integration.tries import completed

TUTORIAL = "docs/tutorial.md"
pytestmark = pytest.mark.timeout(900)
SET_UP = ["make setup", ". .venv/bin/activate"]
"""Run in every clone, and by the tests of the set-up."""


@pytest.fixture(scope="module")
def commands() -> list[str]:
    return [line for block in blocks(TUTORIAL, "sh") for line in block.splitlines()]


@pytest.fixture(scope="module")
def walked(tmp_path_factory: pytest.TempPathFactory, commands: list[str]) -> tuple[Project, dict[str, list[str]]]:
    """A clone in which everything was done, and what each command printed, each time that it was given."""
    project = make_project(tmp_path_factory.mktemp("tutorial") / "clone", forked=True)
    (project.folder / ".venv").symlink_to(sys.prefix)
    study, title = blocks(TUTORIAL, "yaml")
    file = project.folder / "config/studies/batch_size.yaml"
    printed: dict[str, list[str]] = {}
    for command in commands[len(SET_UP) :]:
        if "snakemake batch_size --profile profiles/local" in printed:
            old = next(line for line in study.splitlines() if "kind: lines" in line)
            file.write_text(study.replace(old, title.rstrip("\n")))
        ended = project.shell(command.replace("/tmp/", f"{project.folder.parent}/"), **THREADS)
        # Whether this machine was slower the second time is not for a test to say.
        undecided = command.startswith("scalestudy compare") and ended.returncode in (1, 3)
        assert undecided or completed(ended), f"{command}\n{ended.stdout}"
        if command.startswith("scalestudy new"):
            assert file.read_text() == study
        printed.setdefault(command, []).append(ended.stdout)
    return project, printed


def test_it_begins_with_the_set_up(commands: list[str]) -> None:
    assert commands[:2] == SET_UP


@pytest.mark.slow
def test_single_runs_are_written_where_it_says(walked: tuple[Project, dict[str, list[str]]]) -> None:
    project, _ = walked
    for name in ("first", "second"):
        result = json.loads((project.folder.parent / name / "result.json").read_text())
        assert result["status"] == "valid"


@pytest.mark.slow
def test_the_figure_the_table_and_the_runs_are_there(walked: tuple[Project, dict[str, list[str]]]) -> None:
    project, _ = walked
    made = project.folder / "results/local/mini"
    assert sorted(
        path.suffix for path in (made / "figures/batch_size").glob("throughput.*") if path.suffix != ".log"
    ) == [
        ".pdf",
        ".png",
        ".svg",
        ".txt",
    ]
    assert (made / "tables/batch_size/runs.md").exists()
    assert len(project.results()) == 6


@pytest.mark.slow
def test_a_changed_title_draws_again_and_trains_nothing(walked: tuple[Project, dict[str, list[str]]]) -> None:
    _, printed = walked
    first, again = printed["snakemake batch_size --profile profiles/local"]
    assert first.partition("To do:")[2].startswith(" 6 runs, 1 figure, 1 table")
    assert again.partition("To do:")[2].startswith(" 1 figure\n")


@pytest.mark.slow
def test_the_same_is_measured_again_and_compared(walked: tuple[Project, dict[str, list[str]]]) -> None:
    project, printed = walked
    assert len(list(project.folder.glob("results/local+again/runs/*/result.json"))) == 6
    (said,) = printed["scalestudy compare local local+again"]
    assert said.startswith("local+again against local: ")
    assert "of 2 configurations\n" in said
    assert (project.folder / "results/comparisons/local_local+again/comparison.html").exists()


@pytest.mark.slow
def test_the_numbers_are_taken_away(walked: tuple[Project, dict[str, list[str]]]) -> None:
    project, _ = walked
    rows = (project.folder / "batch_size.csv").read_text().splitlines()
    assert len(rows) == 1 + 12
    assert (project.folder / "batch_size.columns.csv").exists()
    assert (project.folder / "batch_size-local-mini.crate.zip").stat().st_size > 100_000
