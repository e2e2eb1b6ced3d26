"""Traced steps of two real ranks."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pandas as pd
import pytest

from tests.integration.tries import held, result, run, weights

SETTINGS = (
    "ranks=2", "measure.steps=10", "measure.warmup_steps=4", "train.epochs=9", "loader.workers=1", "keep=weights",
)  # fmt: skip
SLOW_S = 0.1


@pytest.fixture(scope="module")
def traced(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of which rank 1 is slow and both ranks are traced."""
    folder = tmp_path_factory.mktemp("traced")
    slow = f"faults=[{{kind: slow_rank, rank: 1, seconds: {SLOW_S}}}]"
    run(folder, *SETTINGS, "strategy=ring", "measure.trace_steps=3", slow)
    return folder


def test_a_rank_that_waits_for_a_slow_one_is_seen_to_wait(traced: Path) -> None:
    found = result(traced)
    assert held(found)
    assert found["metrics"]["traced_step_s"] > SLOW_S
    # One of two ranks waits, and computes nothing meanwhile; other work on the machine holds up the other one too.
    assert SLOW_S / 8 < found["metrics"]["bare_wait_s"] < SLOW_S
    assert found["metrics"]["bare_transfer_s"] < SLOW_S / 2


def test_all_ranks_are_in_one_trace_on_one_clock(traced: Path) -> None:
    events = json.loads(gzip.decompress((traced / "trace.json.gz").read_bytes()))["traceEvents"]
    steps = {event["pid"]: event["ts"] for event in events if event["name"] == "step 0"}
    assert set(steps) == {"rank 0", "rank 1"}
    assert steps["rank 0"] == pytest.approx(steps["rank 1"], abs=1e6 * SLOW_S)
    assert {event["name"] for event in events} >= {"make batch", "data", "backward", "gloo:all_reduce"}
    table = pd.read_parquet(traced / "timeline.parquet")
    assert table[table["row"] == "step"].groupby("rank").size().tolist() == [3, 3]
    assert table["begin_s"].min() == 0.0


def test_traced_steps_change_no_weight_and_no_other_column_and_every_step_is_kept(traced: Path, tmp_path: Path) -> None:
    plain, with_trace = run(tmp_path, *SETTINGS, "strategy=ring"), result(traced)
    assert weights(tmp_path) == weights(traced)
    assert with_trace["steps_done"] == plain["steps_done"] == 14
    assert with_trace["samples_seen"] == plain["samples_seen"]
    assert plain["metrics"].get("traced_step_s") is None
    steps = pd.read_parquet(tmp_path / "steps.parquet")
    assert len(steps) == 28
    assert steps.groupby("rank").in_window.sum().tolist() == [10, 10]
    assert (steps[["data_s", "compute_s", "optimiser_s"]] > 0).all().all()
