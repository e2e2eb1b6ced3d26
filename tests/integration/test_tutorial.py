"""The tutorials' commands, in their order, do what they say."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

import pytest

from tests.integration.project import jobs_in, make_project
from tests.integration.test_documents import blocks
from tests.integration.tries import completed, held, result

TUTORIAL, OWN_SCRIPT = "docs/tutorial.md", "docs/tutorial_own_script.md"
pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]
SET_UP = ["make setup", ". .venv/bin/activate"]
"""Run in every clone, and by the tests of the set-up."""


def test_its_commands_do_what_it_says_in_its_order(tmp_path: Path) -> None:
    commands = [line for block in blocks(TUTORIAL, "sh") for line in block.splitlines()]
    assert commands[:2] == SET_UP
    project = make_project(tmp_path / "clone", forked=True)
    (project.folder / ".venv").symlink_to(sys.prefix)
    study, title = blocks(TUTORIAL, "yaml")
    file = project.folder / "config/studies/batch_size.yaml"
    printed: dict[str, list[str]] = {}
    for command in commands[len(SET_UP) :]:
        if command == "snakemake batch_size --profile profiles/local" and command not in printed:
            # Planned as the page has it, and made smaller.
            study = study.replace("repeats: 3", "repeats: 1").replace("epochs: 5", "epochs: 2")
            file.write_text(study)
        if "snakemake batch_size --profile profiles/local" in printed:
            old = next(line for line in study.splitlines() if "kind: lines" in line)
            file.write_text(study.replace(old, title.rstrip("\n")))
        ended = project.shell(command.replace("/tmp/", f"{tmp_path}/").replace("epochs=10", "epochs=2"))
        # Whether this machine was slower the second time is not for a test to say.
        undecided = command.startswith("scalestudy compare") and ended.returncode in (1, 3)
        assert undecided or completed(ended), f"{command}\n{ended.stdout}"
        if command.startswith("scalestudy new"):
            assert file.read_text() == study
        printed.setdefault(command, []).append(ended.stdout)

    for name in ("first", "second"):
        assert held(result(tmp_path / name))
    made = project.folder / "results/local/mini"
    suffixes = {path.suffix for path in (made / "figures/batch_size").glob("throughput.*")}
    assert {".pdf", ".png", ".svg", ".txt"} <= suffixes
    assert (made / "tables/batch_size/runs.md").exists()
    (planned,) = printed["snakemake batch_size --profile profiles/local -n"]
    assert jobs_in(planned)["train"] == 6
    assert len(project.results()) == 2
    first, again = printed["snakemake batch_size --profile profiles/local"]
    assert first.partition("To do:")[2].startswith(" 2 runs, 1 figure, 1 table")
    assert again.partition("To do:")[2].startswith(" 1 figure\n")  # a changed title trains nothing
    assert len(list(project.folder.glob("results/local+again/runs/*/result.json"))) == 2
    (said,) = printed["scalestudy compare local local+again"]
    assert said.startswith("local+again against local: ") and "of 2 configurations\n" in said
    assert (project.folder / "results/comparisons/local_local+again.csv").exists()
    assert (project.folder / "batch_size-local-mini.zip").stat().st_size > 100_000


def test_an_own_script_is_explained_and_becomes_a_study(tmp_path: Path) -> None:
    project = make_project(tmp_path / "clone", forked=True)
    project.study.unlink()
    (project.folder / "train.py").write_text(*blocks(OWN_SCRIPT, "python"))
    file = project.folder / "config/studies/decoding.yaml"
    printed: list[str] = []
    for block in blocks(OWN_SCRIPT, "sh"):
        for command in block.splitlines():
            if command == "snakemake decoding --profile profiles/local":
                # Planned as the page has it, and made smaller.
                study = file.read_text().replace("repeats: 3", "repeats: 1").replace("10, steps: 100", "2, steps: 15")
                file.write_text(study)
            shorter = command.replace("--minutes 1 ", "--minutes 0.05 --steps 10 ")
            ended = project.shell(shorter, timeout=600, SCALESTUDY_LOCKS=str(tmp_path))
            assert completed(ended), f"{command}\n{ended.stdout}"
            printed.append(ended.stdout)
        if "scalestudy new" in block:
            assert 'command: "python train.py"' in file.read_text()
            file.write_text(*blocks(OWN_SCRIPT, "yaml"))

    explained, *_, planned, made = printed
    # How busy the machine is, is not for a test to say.
    assert re.search("is waiting for data: with batches from memory it takes|the rounds differ so much", explained)
    assert jobs_in(planned)["train"] == 6
    assert made.partition("To do:")[2].startswith(" 2 runs, 1 figure, 1 table")
    found = [json.loads(one.read_text()) for one in project.results()]
    assert len(found) == 2
    for one in found:
        assert held(one)
        assert one["instrument"]["steps_from"] == "hooks"
        samples = one["metrics"]["throughput_samples_per_s"] * one["metrics"]["step_time_s"]
        assert samples == pytest.approx(16, rel=0.05)
    assert (project.folder / "results/local/mini/figures/decoding/throughput.svg").exists()
    assert not (project.folder / "results/data").exists()
