"""Records of long checks, to which each call adds: tests/faults/kills.py."""

from __future__ import annotations

import json

from tests.faults import kills, page

KILLS = page.SEEN.with_name("fault_kills.json")


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
