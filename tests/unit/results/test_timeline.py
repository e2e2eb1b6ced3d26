"""What hides what, in traces that are made up, in milliseconds."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from scalestudy.measure.timers import COMPUTE, EXCHANGE, WAIT
from scalestudy.results.timeline import columns, read_trace, shift_of, with_waits

TRAINING, WORKER, GLOO = 1, 2, 3


def event(name: str, begin: float, end: float, cat: str = "user_annotation", tid: int = TRAINING) -> dict[str, Any]:
    return {"ph": "X", "name": name, "cat": cat, "tid": tid, "pid": 7, "ts": 1e3 * begin, "dur": 1e3 * (end - begin)}


def on_cpu(entry: float, end: float, zero: float = 0.0) -> list[dict[str, Any]]:
    """A step of 100 ms: 10 ms wait for a batch, 5 ms convert, computation to 50 ms and from 80 ms on, one exchange."""
    found = [
        event("step 0", 0, 100),
        event("data", 0, 10),
        event("convert", 10, 15),
        event("aten::copy_", 11, 14, "cpu_op"),
        event("aten::conv2d", 15, 50, "cpu_op"),
        event("aten::convolution", 16, 49, "cpu_op"),
        event("aten::add_", 80, 100, "cpu_op"),
        event("make batch", 0, 40, tid=WORKER),
        event("aten::permute", 38, 39, "cpu_op", tid=WORKER),
        event("gloo:all_reduce", entry, end, tid=GLOO),
    ]
    return [{**each, "ts": each["ts"] + 1e3 * zero} for each in found]


def test_exchange_divides_into_what_computation_hides_the_transfer_and_the_wait_for_the_last_rank() -> None:
    early, late = with_waits([read_trace(0, on_cpu(30, 80), 0.0), read_trace(1, on_cpu(60, 80), 0.0)])

    assert (1e3 * early.rows[WAIT]).tolist() == [[pytest.approx(30), pytest.approx(60)]]
    assert (1e3 * early.rows[EXCHANGE]).tolist() == [[pytest.approx(60), pytest.approx(80)]]
    assert (1e3 * late.rows[COMPUTE]).tolist() == [
        [pytest.approx(15), pytest.approx(50)],
        [pytest.approx(80), pytest.approx(100)],
    ]
    assert columns([early, late]) == {
        "traced_step_s": pytest.approx(0.1),
        "exchange_hidden": pytest.approx(20 / 70),
        "bare_transfer_s": pytest.approx(0.020),
        "bare_wait_s": pytest.approx(0.005),
        "making_hidden": pytest.approx(0.75),
        "copy_hidden": None,
    }


def test_clocks_that_differ_are_no_waiting() -> None:
    """Rank 1's profiler counts from 5 s, its host's clock from 900 s, which rank 0's is 899 s behind."""
    own = [event("clock", 100, 101)], [event("clock", 5100, 5101)]
    shifts = [
        shift_of(own[0], {"read_s": 1.0, "ahead_s": 0.0}),
        shift_of(own[1], {"read_s": 900.0, "ahead_s": -899.0}),
    ]
    ranks = with_waits(
        [read_trace(0, on_cpu(30, 80), shifts[0]), read_trace(1, on_cpu(30, 80, zero=5000.0), shifts[1])]
    )
    assert columns(ranks)["bare_wait_s"] == pytest.approx(0.0, abs=1e-9)


def test_ranks_that_make_other_calls_have_no_wait_of_their_own() -> None:
    other = [{**each, "name": each["name"].replace("all_reduce", "send")} for each in on_cpu(60, 80)]
    first, _ = with_waits([read_trace(0, on_cpu(30, 80), 0.0), read_trace(1, other, 0.0)])
    assert (1e3 * first.rows[EXCHANGE]).tolist() == [[pytest.approx(30), pytest.approx(80)]]


def test_on_a_gpu_kernels_and_copies_count_and_operators_of_the_host_do_not() -> None:
    kernels = [
        event("ampere_sgemm", 20, 60, "kernel", tid=7),
        event("ncclDevKernel_AllReduce_Sum_f32_RING_LL", 50, 90, "kernel", tid=8),
        event("Memcpy HtoD (Pinned -> Device)", 10, 30, "gpu_memcpy", tid=9),
        event("Memcpy DtoD", 90, 99, "gpu_memcpy", tid=7),
    ]
    found = columns([read_trace(0, [*on_cpu(0, 0), *kernels], 0.0)])
    assert found["exchange_hidden"] == pytest.approx(0.25)
    assert found["bare_transfer_s"] == pytest.approx(0.030)
    assert found["copy_hidden"] == pytest.approx(0.5)


def test_the_overlap_of_a_trace_is_that_of_holistic_trace_analysis() -> None:
    """HolisticTraceAnalysis 0.5.0 says of this trace, by `get_comm_comp_overlap`: 32.64 %."""
    draws, zero, events = np.random.default_rng(0), 10.0, [event("step 0", 10, 110)]
    for stream, name in ((7, "ampere_sgemm"), (13, "void at::native::elementwise"), (20, "ncclDevKernel_AllReduce")):
        begins = zero + np.cumsum(draws.integers(20, 120, 300)) / 1e3
        lengths = draws.integers(5, 20, 300) / 1e3
        events += [event(name, at, at + long, "kernel", stream) for at, long in zip(begins, lengths, strict=True)]
    hidden = columns([read_trace(0, events, 0.0)])["exchange_hidden"]
    assert hidden == pytest.approx(0.3264, abs=1e-4)
