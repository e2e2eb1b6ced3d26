"""Steps of a program, the window in them, and the rates that follow."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from scalestudy.program import trainer
from scalestudy.program.result import Evidence, _lines_come_one_by_one, _speed, _unmatched, _window_is_long_enough
from scalestudy.program.trace import Mark, Traces, windows
from scalestudy.spec.run import Measure, RunSpec


def write(file: Path, steps: Iterable[int], step_s: float = 0.1, **values: float) -> None:
    lines = [json.dumps({"clock": step_s * step, "step": step, **values}) for step in steps]
    file.write_text("\n".join(lines) + "\n", encoding="utf-8")


def read(folder: Path) -> Traces:
    traces = Traces(folder)
    traces.refresh()
    return traces


def test_the_window_begins_after_the_warm_up_and_has_its_steps(tmp_path: Path) -> None:
    write(tmp_path / "reported.0.7.jsonl", range(30), samples=8)
    traces, measure = read(tmp_path), Measure(warmup_steps=5, steps=10)
    (window,) = windows(traces.of("reported"), measure)
    assert (window.steps, window.total("samples"), window.marks[0].step) == (10, 80, 4)
    assert window.seconds == pytest.approx(1.0)
    assert traces.is_over(measure)


def test_a_step_that_is_logged_now_and_then_counts_for_all_since_the_last(tmp_path: Path) -> None:
    write(tmp_path / "matched.0.jsonl", [10, 20, 30, 40, 50])
    (window,) = windows(read(tmp_path).of("matched"), Measure(warmup_steps=5))
    assert window.steps == 30
    assert window.step_intervals == pytest.approx([0.1, 0.1, 0.1])


def test_what_the_program_reports_comes_before_its_output_and_before_hooks(tmp_path: Path) -> None:
    (tmp_path / "steps.0.jsonl").write_text('{"clock": 1.0}\n{"clock": 2.0}\n', encoding="utf-8")
    assert read(tmp_path).source == "steps"
    write(tmp_path / "matched.0.jsonl", [1])
    assert read(tmp_path).source == "matched"
    write(tmp_path / "reported.1.8.jsonl", [1])
    assert read(tmp_path).source == "reported"


def test_a_line_that_ends_with_a_carriage_return_is_read_before_the_next_output() -> None:
    reader, writer = os.pipe()
    with open(reader, "rb") as output, open(writer, "wb", buffering=0) as program:
        lines = trainer._lines(output)
        program.write(b"step 1\rlo\xe2\x96")
        assert next(lines) == "step 1\r"
        program.write(b"\x88 2\r")
        assert next(lines) == "lo\u2588 2\r"


def test_text_in_the_place_of_a_number_is_passed_over() -> None:
    assert [trainer._number("loss", text) for text in ("1,200.5", "n/a", None)] == [1200.5, None, None]


def test_a_line_that_is_still_written_is_read_when_it_is_whole(tmp_path: Path) -> None:
    file = tmp_path / "steps.0.jsonl"
    file.write_text('{"clock": 1.0}\n{"clo', encoding="utf-8")
    traces = read(tmp_path)
    assert len(traces.of("steps")[0].marks) == 1
    with file.open("a", encoding="utf-8") as stream:
        stream.write('ck": 2.0}\n')
    traces.refresh()
    assert [mark.step for mark in traces.of("steps")[0].marks] == [1, 2]


def test_a_second_process_that_prints_its_steps_later_begins_no_new_count(tmp_path: Path) -> None:
    file, measure = tmp_path / "matched.0.jsonl", Measure(warmup_steps=2, steps=20)
    first = [(0.1 * step, step) for step in range(1, 31)]
    second = [(0.31 + 0.1 * step, step) for step in range(1, 31)]
    lines = [json.dumps({"clock": clock, "step": step}) + "\n" for clock, step in sorted(first + second)]
    for count in range(1, len(lines) + 1):
        file.write_text("".join(lines[:count]), encoding="utf-8")
        [trace] = (traces := read(tmp_path)).of("matched")
        assert not trace.counts_anew(measure, is_live=True)
        assert traces.is_over(measure) == trace.is_over(measure)
    assert not trace.counts_anew(measure)
    (window,) = windows([trace], measure)
    assert (window.steps, window.seconds) == (20, pytest.approx(2.0)), "the process that is ahead is timed"


def test_a_count_that_begins_anew_ends_a_run_once_as_many_steps_have_followed(tmp_path: Path) -> None:
    file, measure = tmp_path / "matched.0.jsonl", Measure(warmup_steps=2, steps=30)
    found = []
    for done in (20, 30, 39, 40, 41):
        steps = [step % 20 if step < 40 else 20 for step in range(done)]
        file.write_text("".join(f'{{"clock": {index}, "step": {step}}}\n' for index, step in enumerate(steps)), "utf-8")
        [trace] = (traces := read(tmp_path)).of("matched")
        found.append((trace.counts_anew(measure), traces.is_over(measure)))
    assert found == [(False, False), (True, False), (True, False), (True, True), (True, True)]
    assert [window.steps for window in windows([trace], measure)] == [18], "what follows is no part of the window"


@pytest.mark.parametrize(("warmup", "steps"), [(40, 160), (10, 20)])
def test_a_training_after_a_shorter_loop_is_read_to_its_end(tmp_path: Path, warmup: int, steps: int) -> None:
    lines = [
        {"clock": 0.1 * done, "step": step, "loss": done} for done, step in enumerate([*range(1, 31), *range(1, 201)])
    ]
    (tmp_path / "matched.0.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    measure = Measure(warmup_steps=warmup)
    [trace] = read(tmp_path).of("matched")
    assert (trace.marks[-1].step, trace.losses) == (200, [*range(230)])
    assert trace.counts_anew(measure) == (warmup < 30)
    assert [window.steps for window in windows([trace], measure)] == [steps]


def test_a_window_is_over_once_every_rank_has_it(tmp_path: Path) -> None:
    measure = Measure(warmup_steps=1, steps=5)
    write(tmp_path / "reported.0.1.jsonl", range(10))
    write(tmp_path / "reported.1.2.jsonl", range(4))
    assert not read(tmp_path).is_over(measure)
    write(tmp_path / "reported.1.2.jsonl", range(6))
    assert read(tmp_path).is_over(measure)


def test_minutes_end_a_window_too(tmp_path: Path) -> None:
    write(tmp_path / "reported.0.1.jsonl", range(100), step_s=1.0)
    traces, measure = read(tmp_path), Measure(warmup_steps=10, minutes=0.5)
    assert windows(traces.of("reported"), measure)[0].steps == 30
    assert traces.is_over(measure)
    assert not traces.is_over(Measure(warmup_steps=10, minutes=5))


def test_the_window_goes_on_over_attempts_without_the_time_between_them(tmp_path: Path) -> None:
    earlier = {"steps.0": [Mark(clock, step, 8, None, 0.01 * step) for step, clock in enumerate((5.0, 5.1, 5.2), 1)]}
    lines = [{"clock": 900 + 0.2 * step, "samples": 8, "waited_s": 0.05 * step} for step in range(4)]
    (tmp_path / "steps.0.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    traces = Traces(tmp_path, earlier)
    traces.refresh()
    (window,) = windows(traces.of("steps"), Measure(warmup_steps=1))
    assert (window.steps, window.total("samples")) == (5, 40), "the first step after a start is not timed"
    assert window.seconds == pytest.approx(0.2 + 0.6)
    assert window.marks[-1].clock_s == pytest.approx(900.6), "on the clock of this attempt, as samples of the host are"
    assert window.marks[-1].waited_s == pytest.approx(0.03 + 0.15)


def test_a_second_training_of_the_same_command_takes_the_place_of_the_first(tmp_path: Path) -> None:
    file, measure = tmp_path / "steps.0.jsonl", Measure(warmup_steps=1, steps=50)
    lines = ['{"begins": true}', *(json.dumps({"clock": 0.1 * step, "samples": 8}) for step in range(9))]
    file.write_text("\n".join(lines) + "\n", encoding="utf-8")
    traces = read(tmp_path)
    assert traces.of("steps")[0].marks[-1].step == 9
    with file.open("a", encoding="utf-8") as stream:
        stream.write("\n".join(lines[:5]) + "\n")
    traces.refresh()
    assert [mark.step for mark in traces.of("steps")[0].marks] == [1, 2, 3, 4]
    assert not traces.is_over(measure)


def test_earlier_attempts_are_there_before_this_one_has_a_step(tmp_path: Path) -> None:
    traces = Traces(tmp_path, {"reported.0": [Mark(1.0, 10), Mark(2.0, 20)]})
    traces.refresh()
    assert [mark.step for mark in traces.of("reported")[0].marks] == [10, 20]


def test_a_pattern_that_finds_no_number_is_named(tmp_path: Path) -> None:
    write(tmp_path / "matched.0.jsonl", [1, 2], loss=0.5)
    metrics = {"step": r"step (\d+)", "loss": r"loss (\S+)", "samples": r"seen (\d+)"}
    spec = RunSpec.model_validate_json(
        json.dumps({"program": {"command": "python a.py", "files": ["a.py"], "metrics": metrics}})
    )
    job: Any = SimpleNamespace(spec=spec)
    evidence = Evidence(job, "matched", [], [], [], [], read(tmp_path).of("matched"))
    assert [*_unmatched(evidence)] == [
        r"program.metrics.samples, `seen (\d+)`, found no number in the output, on a line with its step: see its log"
    ]
    [reason] = _window_is_long_enough(Evidence(job, None, [], [], [], []))
    assert reason.startswith(r"program.metrics.step, `step (\d+)`, found no number in the output")


# Rates

MEASURE = Measure(warmup_steps=1, steps=10)


def evidence_in(folder: Path, measure: Measure = MEASURE) -> Evidence:
    job: Any = SimpleNamespace(spec=RunSpec(measure=measure))
    return Evidence(job, "reported", windows(read(folder).of("reported"), measure), [], [], [])


def test_what_ranks_report_is_added_up_over_the_window_of_the_slowest(tmp_path: Path) -> None:
    write(tmp_path / "reported.0.7.jsonl", range(11), 0.1, bytes=1000, flops=5, samples=4)
    write(tmp_path / "reported.1.8.jsonl", range(11), 0.2, bytes=3000, flops=7)
    found = _speed(evidence_in(tmp_path))
    assert found["bytes_per_s"] == pytest.approx(20_000)
    assert found["flops_per_s"] == pytest.approx(60)
    assert found["throughput_samples_per_s"] is None, "one rank does not report it"


def test_samples_that_a_program_does_not_report_are_those_of_the_batches_that_hooks_saw(tmp_path: Path) -> None:
    """They count for its speed, and for its energy per sample."""
    write(tmp_path / "reported.0.7.jsonl", range(11), 0.1)
    # Of two optimiser steps for each step that is reported.
    write(tmp_path / "steps.0.jsonl", range(11), 0.05, samples=4)
    evidence = replace(evidence_in(tmp_path), seen=windows(read(tmp_path).of("steps"), MEASURE))
    assert evidence.trained == pytest.approx(80)
    assert _speed(evidence)["throughput_samples_per_s"] == pytest.approx(80)


def test_a_program_that_ends_before_its_window_is_told_to_train_longer(tmp_path: Path) -> None:
    write(tmp_path / "reported.0.7.jsonl", range(11), 0.1)
    [reason] = _window_is_long_enough(evidence_in(tmp_path, Measure(warmup_steps=1, steps=40)))
    assert reason == "the program ended after 10 steps of the window: let it train longer"


@pytest.mark.parametrize("limit", [{}, {"steps": 40}, {"minutes": 0.05}])
def test_a_program_that_counts_its_steps_anew_in_each_epoch_has_no_speed(tmp_path: Path, limit: dict[str, Any]) -> None:
    lines = [json.dumps({"clock": 0.1 * done, "step": done % 20}) for done in range(90)]
    (tmp_path / "reported.0.7.jsonl").write_text("\n".join(lines) + "\n", encoding="utf-8")
    evidence = evidence_in(tmp_path, Measure(warmup_steps=5, **limit))
    [reason] = _window_is_long_enough(evidence)
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
    reasons = [*_lines_come_one_by_one(evidence)]
    assert (reasons != []) == wrong
    if wrong:
        assert evidence.slowest is not None and evidence.slowest.seconds / evidence.slowest.steps < 0.0095
        assert "come in blocks, 0.5 s apart, in a window of 2 s: have it flush each line" in reasons[0]
