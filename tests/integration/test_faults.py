"""A selection of the fault matrix (tests/faults): real faults in real commands, and the same command afterwards."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.faults.catalogue import ALL
from tests.faults.steps import NAMES
from tests.integration.project import ROOT

CASES = (
    "prepare:sigkill", "shard:disk_full", "stage:read_only", "train:sigkill", "summarise:eio_read", "figures:sigterm",
    "claims:quota", "plan:sigint",
)  # fmt: skip
"""Each step once: a step is also made without a fault first."""


@pytest.fixture(scope="module")
def seen(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Any]]:
    """What was seen in each case, by its name."""
    if shutil.which("cc") is None:
        pytest.skip("there is no `cc` here (envs/debian-packages.txt)")
    out = tmp_path_factory.mktemp("faults") / "faults.json"
    command = [sys.executable, "-m", "tests.faults", "--cases", ",".join(CASES), "--out", str(out)]
    environment = {name: value for name, value in os.environ.items() if name != "TESTS_FAULTS_MOUNTS"}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=840, check=False)
    assert out.exists(), done.stderr
    return {f"{cell['step']}:{cell['fault']}": cell for cell in json.loads(out.read_text())["cells"]}


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("case", CASES)
def test_a_step_keeps_its_promises_when_it_meets_a_fault(seen: dict[str, dict[str, Any]], case: str) -> None:
    cell = seen[case]
    if cell["status"] == "not here" and os.geteuid() != 0:
        pytest.skip(cell["seen"])
    assert cell["status"] == "held", cell["seen"]


def test_page_and_lines_about_faults_are_what_the_record_says(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    from tests.faults import page

    monkeypatch.setattr(page, "PAGE", tmp_path / "faults.md")
    monkeypatch.setattr(page, "TEXT", tmp_path / "faults.txt")
    assert page.write_page([]) == 0
    assert (tmp_path / "faults.md").read_text() == (ROOT / "docs/reference/faults.md").read_text()
    assert (tmp_path / "faults.txt").read_text() == (ROOT / "docs/measured/faults.txt").read_text()


def test_a_case_that_was_not_run_is_not_filled_in(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    from tests.faults import page

    cell = {
        "step": "train",
        "fault": "sigkill",
        "status": "held",
        "seen": "was killed",
        "seconds": 1.0,
        "date": "2026-01-01",
    }
    (tmp_path / "seen.json").write_text(json.dumps({"machine": "here", "cells": [cell]}))
    monkeypatch.setattr(page, "PAGE", tmp_path / "faults.md")
    monkeypatch.setattr(page, "TEXT", tmp_path / "faults.txt")
    assert page.write_page([str(tmp_path / "seen.json")]) == 0
    text = (tmp_path / "faults.md").read_text()
    assert f"Of {len(ALL) * len(NAMES)} cases 1 held, 0 broke" in text
    assert len(re.findall(r"\| not run ", text.partition("## sigkill")[0])) == len(ALL) * len(NAMES) - 1


def test_the_checks_of_a_case_find_what_is_wrong() -> None:
    from tests.faults.engine import _messages, _wrong

    wanted = {"manifest.json": "a", "bulk/train.npy": "b"}
    assert not list(_wrong({}, wanted, ended_well=False))
    assert not list(_wrong(wanted, wanted, ended_well=True))
    assert list(_wrong({"manifest.json": "a", "bulk/train.npy": "half"}, wanted, False)) == [
        "accepted, and wrong: bulk/train.npy"
    ]
    assert list(_wrong({"manifest.json": "a"}, wanted, True)) == ["it ended with status 0 and lacks bulk/train.npy"]
    assert _messages("scalestudy: waiting for a run to end\nscalestudy: stopped by SIGINT\n") == [
        "scalestudy: stopped by SIGINT"
    ]
