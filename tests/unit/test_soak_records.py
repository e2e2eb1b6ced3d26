"""Records of long checks, to which each call adds: tests/soak/fuzz.py, tests/faults/kills.py."""

from __future__ import annotations

import json
from pathlib import Path

from tests.faults import kills, page
from tests.soak.fuzz_record import Record, Stretch, text

KILLS = page.SEEN.with_name("fault_kills.json")


def test_stretches_of_fuzzing_add_up_and_what_is_short_of_an_hour_is_said(tmp_path: Path) -> None:
    record = Record(tmp_path / "fuzz.json")
    for stretch in (
        Stretch("hypothesis", "tar", 3000.0, 500),
        Stretch("hypothesis", "tar", 600.0, 100),
        Stretch("hypothesis", "study", 90.0, 7, "ValueError: bad"),
    ):
        record.add(stretch, ("study", "tar"))

    said = (tmp_path / "fuzz.txt").read_text()

    assert record.seconds("hypothesis", "tar") == 3600.0
    assert [line.split() for line in said.splitlines() if line.startswith(("study ", "tar ", "in all "))] == [
        ["study", "1.5", "7"],
        ["tar", "60.0", "600"],
        ["in", "all", "61.5", "607"],
    ]
    assert "hypothesis: 1 of 2 parsers have had the 60 minutes that are asked of each; the least had 1.5" in said
    assert said.rstrip().endswith("hypothesis study: ValueError: bad")


def test_a_parser_that_nobody_fuzzed_is_in_the_record() -> None:
    kept = {"parsers": {"hypothesis": {}}, "found": [], "dates": ["2026-01-01"], "machine": "here"}

    assert ["tar", "0.0", "0"] in [line.split() for line in text(kept, ["tar"]).splitlines()]


def test_kills_of_several_calls_add_up() -> None:
    calls = [[["driver"], ["train", "driver"]], [["train"]]]
    parts = [
        {"date": "2026-01-01", "within_s": 12, "folders": [{"kills": each, "complaints": []} for each in folders]}
        for folders in calls
    ]

    assert kills.summary({"parts": parts}).startswith("4 of 200 kills in 3 folders and 2 calls: all endings the same")
    parts[0]["folders"][1]["complaints"].append("a table differs")  # type: ignore[index]
    assert kills.summary({"parts": parts}).endswith("2 calls: a table differs")


def test_the_kept_kills_are_told_as_they_were_seen() -> None:
    assert kills.text(json.loads(KILLS.read_text())) == KILLS.with_suffix(".txt").read_text()
