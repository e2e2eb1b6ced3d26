"""The result of a run that is a program: what it reports, what hooks and samplers saw, and whether it is valid."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

import numpy as np

from scalestudy.files import read_json
from scalestudy.measure.instrument import debug_warnings, instrument
from scalestudy.measure.window import relative_half_width
from scalestudy.program.resume import EXPLAINED, earlier, metrics_folder, records
from scalestudy.program.trace import MARK_FIELDS, Trace, Traces, Window, windows
from scalestudy.results.metrics import STEADY_METRICS
from scalestudy.results.records import HostFacts, facts_of_hosts
from scalestudy.results.result import outcome
from scalestudy.results.validity import MIN_WINDOW_S, throttled
from scalestudy.spec.columns import METRICS, SPEEDS
from scalestudy.spec.ids import own_code, run_id_with
from scalestudy.spec.run import MIN_WINDOW_STEPS
from scalestudy.training.job import Job
from scalestudy.training.report import Report

REPORTED = "reported"
STEP_METRICS = (*SPEEDS, "step_time_s", "window_half_width", "j_per_sample", "loss")
"""Metrics that follow from the steps that a program reports, and from their samples, bytes and flops."""
RESOLVED = ("nodes", "ranks_per_node", "threads_per_rank", "device")
NOT_CHECKED = "what the program computed is not checked: whether its ranks hold equal parameters and saw their samples"
MAX_IN_BLOCK, MIN_IN_BLOCK, MAX_UNKNOWN = 0.01, 0.8, 0.05
"""Of lines in blocks: a gap within one over the largest gap; share of such gaps; share of a window that may be unknown."""
MAX_UNLIKE = 0.1
"""Relative difference of reported steps from optimiser steps that is no warning."""


@dataclass(frozen=True)
class Evidence:
    """Everything that is known of a program's run."""

    job: Job
    source: str | None
    windows: Sequence[Window]
    """Of the source that counts."""
    seen: Sequence[Window]
    """Of optimiser steps that hooks saw."""
    records: Sequence[Mapping[str, Any]]
    """What hooks recorded at the end of the window, by rank."""
    losses: Sequence[float]
    matched: Sequence[Trace] = ()
    """Matches of `program.metrics` in the output."""

    @property
    def slowest(self) -> Window | None:
        """The window of the rank with the longest step."""
        return max(self.windows, key=lambda window: window.seconds / window.steps, default=None)

    @property
    def trained(self) -> float | None:
        """Samples of all ranks in the window, as the program reports them; else those of the batches that hooks saw, or of
        the run's `batch`."""
        slowest, spec = self.slowest, self.job.spec
        reported, seen = _total(self.windows, "samples"), _total(self.seen, "samples")
        if slowest is None or reported is not None:
            return reported
        if seen:
            return seen / max(window.seconds for window in self.seen) * slowest.seconds
        is_given = spec.program is not None and spec.program.uses("batch.global")
        return float(spec.global_batch * slowest.steps) if is_given else None


def program_result(
    job: Job,
    wall_s: float,
    memory_bytes: float | None,
    samples: Sequence[Mapping[str, float]] = (),
) -> dict[str, Any]:
    """The result of a program whose command ended well, or was ended with its window.

    `samples` are the use of the hosts' processes, second by second.
    """
    if (explained := job.folder / EXPLAINED).exists():
        return _explained_result(job, wall_s, read_json(explained))
    evidence = _evidence(job)
    reports = [
        Report(window.trace.rank, window_clock=(window.marks[0].clock_s, window.marks[-1].clock_s))
        for window in evidence.windows
    ]
    hosts = facts_of_hosts(job, samples, reports, evidence.trained)
    values: dict[str, float | None] = {
        **dict.fromkeys(METRICS),
        **_speed(evidence),
        **(dict.fromkeys(STEADY_METRICS) if job.spec.measure.whole_program else {}),
        "memory_mib": None if memory_bytes is None else memory_bytes / 2**20,
        "wall_s": wall_s,
        **hosts.values,
    }
    reasons = chain(*(check(evidence) for check in CHECKS), throttled(values["throttled_share"]))
    first, source = evidence.records[0] if evidence.records else {}, evidence.source or ""
    versions = [file.read_text(encoding="utf-8") for file in metrics_folder(job).glob("torch.*")]
    reported = STEP_METRICS if source in ("reported", "matched") else ()
    resolved = {name: getattr(job.resolved, name) for name in RESOLVED}
    return {
        **outcome(job, next(reasons, None), values, hosts),
        "unchecked": [NOT_CHECKED],
        "kinds": {name: REPORTED for name in reported if values[name] is not None},
        "intervals": {},
        "emulated": False,
        "steps_done": max((len(window.trace.marks) for window in evidence.windows), default=0),
        "resolved": {**resolved, "backend": None},
        "instrument": {
            **instrument(str(first.get("device_name", ""))),
            **({"torch": versions[0]} if versions else {}),
            "steps_from": {"steps": "hooks", "matched": "output"}.get(source, source),
        },
        "warnings": [
            *_unlike(evidence),
            *_unmatched(evidence),
            *hosts.warnings,
            *debug_warnings(os.environ),
        ],
    }


def _explained_result(job: Job, wall_s: float, explained: dict[str, Any]) -> dict[str, Any]:
    """The result of a run in which parts of a program's steps were taken away; `explained` as `scalestudy explain` has it."""
    values = {**dict.fromkeys(METRICS), "step_time_s": explained["step_s"], "wall_s": wall_s}
    return {
        **outcome(job, None, values, HostFacts({"foreign_cpu_share": None}, [])),
        "kinds": {},
        "intervals": {"step_time_s": [explained["low_s"], explained["high_s"]]},
        "emulated": False,
        "resolved": {name: getattr(job.resolved, name) for name in RESOLVED},
        "instrument": instrument(""),
        "explained": explained,
        "warnings": [],
    }


def _evidence(job: Job) -> Evidence:
    measure, traces = job.spec.measure, Traces(metrics_folder(job), earlier(job))
    traces.refresh()
    counted: list[Trace] = traces.of(traces.source or "")
    tail = [loss for trace in counted for loss in trace.losses]
    return Evidence(
        job,
        traces.source,
        windows(counted, measure),
        windows(traces.of("steps"), measure),
        sorted(records(job), key=lambda record: int(record["rank"])),
        tail[-max(1, len(tail) // 10) :],
        traces.of("matched"),
    )


def _total(rank_windows: Sequence[Window], name: str) -> float | None:
    """Samples, bytes or flops of all ranks in their windows; None where one does not have them."""
    values = [window.total(name) for window in rank_windows]
    return None if not values or None in values else sum(value or 0.0 for value in values)


def _speed(evidence: Evidence) -> dict[str, float | None]:
    """Rates and step time on the clock of the slowest rank, its wait for data, and the mean loss at the end."""
    slowest, trained = evidence.slowest, evidence.trained
    if slowest is None:
        return {}
    seen_slowest = max(evidence.seen, key=lambda window: window.seconds, default=None)
    waited_s = None if seen_slowest is None else seen_slowest.marks[-1].waited_s
    data_s = None if seen_slowest is None or waited_s is None else waited_s / seen_slowest.steps
    totals = {name: _total(evidence.windows, name) for name in ("bytes", "flops")}
    return {
        "throughput_samples_per_s": None if trained is None else trained / slowest.seconds,
        **{f"{name}_per_s": None if total is None else total / slowest.seconds for name, total in totals.items()},
        "step_time_s": slowest.seconds / slowest.steps,
        "window_half_width": relative_half_width(slowest.step_intervals),
        "data_s": data_s,
        "data_stall": None if seen_slowest is None or waited_s is None else min(1.0, waited_s / seen_slowest.seconds),
        "loss": sum(evidence.losses) / len(evidence.losses) if evidence.losses else None,
    }


# Validity


def _code_is_that_of_the_id(evidence: Evidence) -> Iterator[str]:
    job = evidence.job
    if run_id_with(job.spec, own_code(job.spec, job.extensions)) != job.run:
        yield "a file of the program was changed meanwhile: run the command again for the files as they are now"


def _ranks_are_those_of_the_run(evidence: Evidence) -> Iterator[str]:
    worlds = {int(record["world"]) for record in evidence.records}
    if worlds and worlds != {evidence.job.spec.ranks}:
        ranks = " and ".join(map(str, sorted(worlds)))
        yield f"the program has {ranks} ranks and the run {evidence.job.spec.ranks}: give its launcher `{{ranks_per_node}}`"


def _loss_is_finite(evidence: Evidence) -> Iterator[str]:
    if any(not math.isfinite(loss) for loss in evidence.losses):
        yield "the loss that the program reports is not finite"


def _window_is_long_enough(evidence: Evidence) -> Iterator[str]:
    measure, slowest = evidence.job.spec.measure, evidence.slowest
    if measure.whole_program:
        return
    if slowest is None:
        yield next(_unmatched(evidence, ("step",)), None) or (
            "no step was seen after the warm-up: lower measure.warmup_steps, call `scalestudy.report`, give "
            "`program.metrics`, or set measure.whole_program"
        )
    elif slowest.trace.counts_anew(measure) and not slowest.trace.is_over(measure):
        yield f"the program counts its steps anew after {slowest.steps} steps of the window: have it count on over all epochs"
    elif slowest.steps < MIN_WINDOW_STEPS or slowest.seconds < MIN_WINDOW_S:
        yield (
            f"the measured window is {slowest.steps} steps and {slowest.seconds:.2f} s; at least {MIN_WINDOW_STEPS} "
            f"steps and {MIN_WINDOW_S} s mean something: raise measure.steps, or let the program train longer"
        )
    elif measure.steps is measure.minutes is None:
        return  # without a limit the window ends with the program
    elif not all(window.trace.is_over(measure) for window in evidence.windows):
        yield f"the program ended after {slowest.steps} steps of the window: let it train longer"


def _lines_come_one_by_one(evidence: Evidence) -> Iterator[str]:
    """Many programs write a pipe block by block: the ends of a window are then known to a block only."""
    slowest = evidence.slowest
    if evidence.source != "matched" or slowest is None or evidence.job.spec.measure.whole_program:
        return
    clocks, steps = np.array([(mark.clock_s, mark.step) for mark in slowest.marks]).T
    gaps_s = np.diff(clocks)[np.diff(steps) > 0]  # ranks of one command write the same step
    in_block = gaps_s < MAX_IN_BLOCK * gaps_s.max()
    known_s = MAX_UNKNOWN * slowest.seconds
    if in_block.mean() > MIN_IN_BLOCK and gaps_s[in_block].sum() < known_s < gaps_s.max():
        what = f"the program's lines come in blocks, {gaps_s.max():.2g} s apart, in a window of {slowest.seconds:.2g} s"
        yield f"{what}: have it flush each line (`stdbuf -oL`)"


CHECKS = (
    _code_is_that_of_the_id,
    _ranks_are_those_of_the_run,
    _loss_is_finite,
    _window_is_long_enough,
    _lines_come_one_by_one,
)


# Warnings


def _unlike(evidence: Evidence) -> Iterator[str]:
    """A warning where the program reports other steps than its optimiser makes."""
    reported, seen = evidence.slowest, next(iter(evidence.seen), None)
    if reported is None or seen is None or evidence.source == "steps":
        return
    rates = reported.steps / reported.seconds, seen.steps / seen.seconds
    if abs(rates[0] / rates[1] - 1) > MAX_UNLIKE:
        yield f"the program reports {rates[0]:.3g} steps/s, and its optimiser makes {rates[1]:.3g} steps/s"


def _unmatched(evidence: Evidence, names: Sequence[str] = MARK_FIELDS) -> Iterator[str]:
    """A warning for each pattern of `names` that found no number."""
    assert evidence.job.spec.program is not None
    marks = [mark for trace in evidence.matched for mark in trace.marks]
    for name, pattern in evidence.job.spec.program.metrics.items():
        if name in names and all(getattr(mark, name) is None for mark in marks):
            yield f"program.metrics.{name}, `{pattern}`, found no number in the output, on a line with its step: see its log"
