"""Overlap of communication and computation, against HolisticTraceAnalysis where it is installed."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from scalestudy.results.timeline import columns, read_trace


def test_the_overlap_of_a_trace_is_that_of_holistic_trace_analysis(tmp_path: Path) -> None:
    analysis = pytest.importorskip("hta.trace_analysis")
    draws, zero, events = np.random.default_rng(0), 10_000, []
    for stream, name in ((7, "ampere_sgemm"), (13, "void at::native::elementwise"), (20, "ncclDevKernel_AllReduce")):
        begins = zero + np.cumsum(draws.integers(20, 120, 300))
        for begin, length in zip(begins.tolist(), draws.integers(5, 20, 300).tolist(), strict=True):
            args = {"stream": stream, "device": 0, "correlation": len(events) + 1}
            one = {"ph": "X", "cat": "kernel", "name": name, "pid": 0, "tid": stream, "args": args}
            events.append({**one, "ts": begin, "dur": length})
    steps = {"ph": "X", "cat": "user_annotation", "pid": 1, "tid": 1, "ts": zero, "dur": 100_000, "args": {}}
    events += [{**steps, "name": "step 0"}, {**steps, "name": "ProfilerStep#0"}]
    events += [{**steps, "cat": "cpu_op", "name": "aten::conv2d", "args": {"External id": 1}}]
    trace = {"schemaVersion": 1, "distributedInfo": {"rank": 0}, "traceEvents": events}
    (tmp_path / "rank_0.json").write_text(json.dumps(trace))

    theirs = analysis.TraceAnalysis(trace_files={0: str(tmp_path / "rank_0.json")}, trace_dir=str(tmp_path))
    percent = float(theirs.get_comm_comp_overlap(visualize=False)["comp_comm_overlap_pctg"][0])

    ours = columns([read_trace(0, events, 0.0)])["exchange_hidden"]
    assert ours is not None and 10 < percent < 90
    assert 100 * ours == pytest.approx(percent, abs=0.01)
