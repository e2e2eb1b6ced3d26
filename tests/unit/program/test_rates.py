"""Rates of work, from the steps that the ranks of a program report."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from scalestudy.program import result
from scalestudy.program.reporting import FOLDER, report
from scalestudy.program.trace import Traces, windows
from scalestudy.spec.run import Measure, RunSpec

MEASURE = Measure(warmup_steps=1, steps=10)


def write(file: Path, step_s: float, **values: float) -> None:
    """Eleven steps; the first one is never timed."""
    lines = [json.dumps({"clock": step_s * step, "step": step, **values}) for step in range(11)]
    file.write_text("\n".join(lines) + "\n", encoding="utf-8")


def rates(folder: Path) -> dict[str, float | None]:
    traces = Traces(folder)
    traces.refresh()
    job: Any = SimpleNamespace(spec=RunSpec(measure=MEASURE))
    found = windows(traces.of("reported"), MEASURE)
    evidence = result.Evidence(job, "reported", found, [], [], [])
    speed = result._speed(evidence, result._total(found, "samples"))
    return {name: speed[name] for name in ("bytes_per_s", "flops_per_s", "throughput_samples_per_s")}


def test_what_ranks_report_is_added_up_over_the_window_of_the_slowest(tmp_path: Path) -> None:
    write(tmp_path / "reported.0.7.jsonl", 0.1, bytes=1000, flops=5)
    write(tmp_path / "reported.1.8.jsonl", 0.2, bytes=3000, flops=7)
    found = rates(tmp_path)
    assert found["bytes_per_s"] == pytest.approx(20_000)
    assert found["flops_per_s"] == pytest.approx(60)
    assert found["throughput_samples_per_s"] is None


def test_a_rate_that_one_rank_does_not_report_has_no_number(tmp_path: Path) -> None:
    write(tmp_path / "reported.0.7.jsonl", 0.1, bytes=1000, samples=4)
    write(tmp_path / "reported.1.8.jsonl", 0.1, samples=4)
    found = rates(tmp_path)
    assert found["bytes_per_s"] is None
    assert found["throughput_samples_per_s"] == pytest.approx(80)


def test_a_report_has_the_values_that_it_is_given(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(FOLDER, str(tmp_path))
    report(3, bytes=1024, flops=2e9)
    (file,) = tmp_path.glob("reported.*.jsonl")
    line = json.loads(file.read_text(encoding="utf-8"))
    assert {name: line[name] for name in line if name != "clock"} == {"step": 3, "bytes": 1024, "flops": 2e9}
