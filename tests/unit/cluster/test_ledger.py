"""Jobs by the executor's ledger."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from scalestudy.cluster.ledger import LedgerAttempt, read_ledger, start_up

RUN = "resnet50.synthetic.allreduce.x4.r0-901ce9d351cc"


def attempt(name: str, used_s: float | None = 40, *, machine: str = "box", label: str = "train", **end: Any) -> None:
    """Lines of the ledger about one job of 2 nodes, submitted at 1000; None: its end was never noted."""
    job = {"name": name, "job": f"{label} {machine} {RUN}", "link": 1, "nodes": 2, "gpus": 8, "queue": "gpu"}
    events: list[dict[str, Any]] = [{"event": "submitted", "time_s": 1000, **job}]
    if used_s is not None:
        events.append({"event": "ended", "name": name, "time_s": 2000, "used_s": used_s, **end})
    file = Path(".scalestudy/jobs.jsonl")
    file.parent.mkdir(exist_ok=True)
    with open(file, "a") as stream:
        stream.writelines(json.dumps(event) + "\n" for event in events)


def test_the_ledger_is_read_by_job_and_a_line_that_was_cut_off_is_left_out(here: Path) -> None:
    assert read_ledger() == []
    attempt("a.1", 42, machine="box", cause="finished", began_s=1060)
    attempt("b.1", 43, machine="box", label="scalestudy_train")
    with open(".scalestudy/jobs.jsonl", "a") as file:
        file.write('{"event": "sub')
    assert read_ledger() == [LedgerAttempt(RUN, 42, "box", "finished"), LedgerAttempt(RUN, 43, "box", None)]


def test_what_jobs_take_outside_their_runs_is_learned_from_three_on() -> None:
    links = [LedgerAttempt(f"run{i}", used_s=30.0 + i) for i in range(3)]
    wall_s = {f"run{i}": [20.0] for i in range(3)}
    assert start_up(wall_s, links) == pytest.approx((10.2, 11.8))
    assert start_up(wall_s, links[:2]) is None
