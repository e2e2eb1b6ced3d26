"""Rates of work, from the steps that the ranks of a program report."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from scalestudy.program import result
from scalestudy.program.trace import Traces, windows
from scalestudy.spec.run import Measure, RunSpec

MEASURE = Measure(warmup_steps=1, steps=10)


def write(file: Path, step_s: float, **values: float) -> None:
    """Eleven steps; the first one is never timed."""
    lines = [json.dumps({"clock": step_s * step, "step": step, **values}) for step in range(11)]
    file.write_text("\n".join(lines) + "\n", encoding="utf-8")


def evidence_in(folder: Path, measure: Measure = MEASURE) -> result.Evidence:
    traces = Traces(folder)
    traces.refresh()
    job: Any = SimpleNamespace(spec=RunSpec(measure=measure))
    return result.Evidence(job, "reported", windows(traces.of("reported"), measure), [], [], [])


def test_what_ranks_report_is_added_up_over_the_window_of_the_slowest(tmp_path: Path) -> None:
    write(tmp_path / "reported.0.7.jsonl", 0.1, bytes=1000, flops=5, samples=4)
    write(tmp_path / "reported.1.8.jsonl", 0.2, bytes=3000, flops=7)
    found = result._speed(evidence_in(tmp_path))
    assert found["bytes_per_s"] == pytest.approx(20_000)
    assert found["flops_per_s"] == pytest.approx(60)
    assert found["throughput_samples_per_s"] is None, "one rank does not report it"


def test_samples_that_a_program_does_not_report_are_those_of_the_batches_that_hooks_saw(tmp_path: Path) -> None:
    """They count for its speed, and for its energy per sample."""
    write(tmp_path / "reported.0.7.jsonl", 0.1)
    # Of two optimiser steps for each step that is reported.
    write(tmp_path / "steps.0.jsonl", 0.05, samples=4)
    traces = Traces(tmp_path)
    traces.refresh()
    evidence = replace(evidence_in(tmp_path), seen=windows(traces.of("steps"), MEASURE))
    assert evidence.trained == pytest.approx(80)
    assert result._speed(evidence)["throughput_samples_per_s"] == pytest.approx(80)


def test_a_program_that_ends_before_its_window_is_told_to_train_longer(tmp_path: Path) -> None:
    write(tmp_path / "reported.0.7.jsonl", 0.1)
    [reason] = result._window_is_long_enough(evidence_in(tmp_path, Measure(warmup_steps=1, steps=40)))
    assert reason == "the program ended after 10 steps of the window: let it train longer"


@pytest.mark.parametrize("limit", [{}, {"steps": 40}, {"minutes": 0.05}])
def test_a_program_that_counts_its_steps_anew_in_each_epoch_has_no_speed(tmp_path: Path, limit: dict[str, Any]) -> None:
    lines = [json.dumps({"clock": 0.1 * done, "step": done % 20}) for done in range(90)]
    (tmp_path / "reported.0.7.jsonl").write_text("\n".join(lines) + "\n", encoding="utf-8")
    evidence = evidence_in(tmp_path, Measure(warmup_steps=5, **limit))
    [reason] = result._window_is_long_enough(evidence)
    assert reason == "the program counts its steps anew after 15 steps of the window: have it count on over all epochs"


@pytest.mark.parametrize(("lines_of_a_block", "wrong"), [(50, True), (1, False), (5, False)])
def test_a_program_whose_lines_come_in_large_blocks_has_no_speed(
    tmp_path: Path, lines_of_a_block: int, wrong: bool
) -> None:
    """Steps of 10 ms; a line is read when its block is whole."""
    marks = [(0.01 * (step // lines_of_a_block + 1) * lines_of_a_block + 1e-6 * step, step) for step in range(400)]
    lines = [json.dumps({"clock": clock, "step": step}) for clock, step in marks]
    (tmp_path / "reported.0.7.jsonl").write_text("\n".join(lines) + "\n", encoding="utf-8")
    evidence = replace(evidence_in(tmp_path, Measure(warmup_steps=5, steps=220)), source="matched")
    reasons = [*result._lines_come_one_by_one(evidence)]
    assert (reasons != []) == wrong
    if wrong:
        assert evidence.slowest is not None and evidence.slowest.seconds / evidence.slowest.steps < 0.0095
        assert "come in blocks, 0.5 s apart, in a window of 2 s: have it flush each line" in reasons[0]
