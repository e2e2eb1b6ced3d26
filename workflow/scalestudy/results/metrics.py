"""The metrics of a run of the project: throughput, times of steps and phases, training time, bytes, memory.

spec/columns.py has the unit and the meaning of each; program/result.py computes those of a user's program.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from itertools import chain

import numpy as np
from numpy.typing import NDArray

from scalestudy.data.io_accounting import IN_MEMORY
from scalestudy.data.load.sampler import steps_per_epoch
from scalestudy.data.manifest import Manifest
from scalestudy.measure.timers import MARKS, PHASES
from scalestudy.measure.window import quantile, relative_half_width
from scalestudy.results.extrapolate import ExtrapolatedTime, RecurringCost
from scalestudy.results.extrapolate import training_time as extrapolated
from scalestudy.results.records import Measured, staleness
from scalestudy.spec.columns import METRICS, PREDICTED
from scalestudy.spec.run import RunSpec
from scalestudy.training.job import Job
from scalestudy.training.report import Report

Marks = NDArray[np.float64]
Values = dict[str, float | None]
"""By name of the metric; None where it is not known."""

STEADY_METRICS = (
    "throughput_samples_per_s", "step_time_s", "epoch_time_s", "training_time_s", "time_to_train_s",
    "accelerator_utilisation", "data_stall", "mfu", "extrapolation_factor", "window_half_width",
)  # fmt: skip
"""Metrics that follow from the measurement window; undefined for runs that are timed as a whole program."""
PER_STEP = ("minor_faults", "major_faults", "involuntary_switches")
"""Counters of the kernel that are divided by the steps of the window."""


def metrics(
    job: Job,
    measured: Measured,
    manifest: Manifest,
    wall_s: float,
    memory_bytes: float | None,
    of_hosts: Mapping[str, float | None] | None = None,
) -> Values:
    """All measured columns; `of_hosts` are those that samplers of the hosts and of their accelerators saw."""
    if not measured.in_window.any():
        return dict.fromkeys(METRICS)
    reports = measured.reports
    names = dict.fromkeys(chain(*(report.strategy for report in reports)))
    updates = staleness(job)
    values = {
        **speed(job, measured, manifest),
        **step_parts(job, measured),
        **whole_training(job, measured, manifest),
        "exposed_exchange_s": exposed_exchange(reports[0])[0],
        **learned_and_read(job, measured, manifest),
        **checkpoint_costs(reports[0]),
        "memory_mib": None if memory_bytes is None else memory_bytes / 2**20,
        "wall_s": wall_s,
        "window_half_width": relative_half_width(measured.step_intervals),
        **of_kernel(reports),
        "staleness": sum(int(value) * n for value, n in updates.items()) / sum(updates.values()) if updates else None,
        "parameters": float(reports[0].parameters),
        "setup_s": largest(report.setup_s for report in reports),
        **{name: largest(report.strategy.get(name) for report in reports) for name in names},
        **(of_hosts or {}),
    }
    return values | dict.fromkeys(STEADY_METRICS) if job.spec.measure.whole_program else values


def speed(job: Job, measured: Measured, manifest: Manifest) -> Values:
    """Samples/s over the measurement window, on the clock of the slowest rank; the times that follow from it.

    Ranks that train each at their own pace have each a rate on its own clock, and the training has the sum of them.
    """
    steps, window_s, batch = int(measured.in_window.sum()), measured.window_s, job.spec.global_batch
    together_s = float(window_s.max() if job.spec.strategy.synchronous else 1 / (1 / window_s).mean())
    throughput = steps * batch / together_s
    epoch_samples = epoch_steps(job.spec, manifest, measured.reports[0]) * batch
    step_time_s, sample_at_peak_s = job.resolved.step_time_s, measured.reports[0].sample_at_peak_s
    return {
        "throughput_samples_per_s": throughput,
        "epoch_time_s": epoch_samples / throughput,
        "mfu": sample_at_peak_s * throughput / job.spec.ranks if sample_at_peak_s and not job.shares_devices else None,
        "accelerator_utilisation": None if step_time_s is None else float((steps * step_time_s / window_s).mean()),
    }


def step_parts(job: Job, measured: Measured) -> Values:
    """The mean step of the window and the parts that it is divided into, which sum to it (`parts_of_steps`).

    Ranks that train each at their own pace do not wait: the parts are those of the slowest rank alone.
    None marks parts that cannot be told apart: an overlapped exchange and the backward pass; forward and backward where they
    alternate, or where forward exchanges too.
    """
    first, together, stretches = measured.reports[0], job.spec.strategy.synchronous, measured.stretches
    marks = measured.marks if together else measured.marks[[measured.slowest]]
    parts = parts_of_steps(marks, stretches).mean(axis=0)
    part = dict(zip(PHASES, parts.tolist(), strict=True))
    overlapped = first.overlapped and job.spec.ranks > 1
    return {
        "step_time_s": float(parts.sum()),
        "data_s": part["data"],
        "convert_s": part["convert"],
        "forward_s": part["forward"] if first.forward_apart else None,
        "backward_s": part["backward"] if first.forward_apart and not overlapped else None,
        "compute_s": part["forward"] + part["backward"] + (part["exchange"] if overlapped else 0.0),
        "exchange_s": None if overlapped else part["exchange"],
        "exchange_wait_s": None if overlapped or not together else waiting(marks, stretches),
        "optimiser_s": part["optimiser"],
        "data_stall": part["data"] / float(parts.sum()),
    }


def exposed_exchange(report: Report) -> tuple[float | None, list[float] | None]:
    """Mean time that the exchange adds to a step, and its 95 % interval (Student's t over pairs of steps)."""
    added = np.array([exchanging - alone for exchanging, alone in report.exchange_pairs])
    if len(added) < 2:
        return None, None
    mean = float(added.mean())
    half = quantile(len(added) - 1) * float(added.std(ddof=1)) / math.sqrt(len(added))
    return mean, [mean - half, mean + half]


def whole_training(job: Job, measured: Measured, manifest: Manifest) -> Values:
    """Seconds of the full training, of staging, of the longest wait for the first batch, and of one evaluation."""
    seconds, stage = training_time(job.spec, measured, manifest).value, stage_costs(measured.reports)
    stage_s = stage["stage_s"] or 0.0
    first_waits = measured.marks[:, 0, 1 + PHASES.index("data")] - measured.marks[:, 0, 0]
    factor = None if job.spec.runs_full_training else seconds / float(measured.window_s.max())
    return {
        "training_time_s": seconds,
        "extrapolation_factor": factor,
        "time_to_train_s": seconds + stage_s,
        "first_batch_s": stage_s + float(first_waits.max()),
        **stage,
    }


def learned_and_read(job: Job, measured: Measured, manifest: Manifest) -> Values:
    """Scores of the last evaluation, mean loss of the last tenth of the steps; preparing and reading the data."""
    reports, evaluations = measured.reports, measured.reports[0].evaluations
    tail = max(1, len(measured.losses[0]) // 10)
    return {
        "accuracy": evaluations[-1].accuracy if evaluations else None,
        "training_accuracy": reports[0].training_accuracy,
        "auroc": evaluations[-1].auroc if evaluations else None,
        "loss": None if job.resolved.step_time_s is not None else float(measured.losses[:, -tail:].mean()),
        "loader_samples_per_s": total(report.loader_samples_per_s for report in reports),
        "dataset_bytes": float(manifest.train.bytes),
        "preparation_s": manifest.seconds,
        "preparation_cpu_s": manifest.cpu_s,
        "resident_share": largest(report.resident_share for report in reports),
        "read_bytes": counted_reads(reports),
        "expected_read_bytes": expected_read_bytes(job.spec, manifest, reports[0].epochs_done),
    }


def counted_reads(reports: list[Report]) -> float | None:
    """Bytes that all ranks had storage read; None where the kernel does not count them: 0 would be a false number."""
    if any(report.uncounted_reads not in (None, *IN_MEMORY) for report in reports):
        return None
    return total(report.read_bytes for report in reports)


def largest(values: Iterable[float | None]) -> float | None:
    """Over the ranks that have a value."""
    return max((value for value in values if value is not None), default=None)


def total(values: Iterable[float | None]) -> float | None:
    """Sum over ranks; None where one has no value."""
    terms = list(values)
    return None if None in terms else float(sum(value for value in terms if value is not None))


def epoch_steps(spec: RunSpec, manifest: Manifest, report: Report) -> int:
    """Steps of one epoch of this run."""
    return report.node_steps or steps_per_epoch(manifest.train.samples, spec.global_batch)


def stage_costs(reports: list[Report]) -> Values:
    """Time until all nodes had their copies, and the bytes copied; None where the data was read in place."""
    stages = [report.stage for report in reports if report.stage is not None]
    copied = float(sum(stage.copied_bytes for stage in stages)) if stages else None
    return {"stage_s": largest(stage.seconds for stage in stages), "staged_bytes": copied}


def of_kernel(reports: list[Report]) -> Values:
    """The kernel's counters of all ranks in the window: share of CPU time in it; faults and switches per step."""
    used = [report.window_usage for report in reports if report.window_usage and report.window_usage_steps > 0]
    if len(used) < len(reports):
        return dict.fromkeys(("system_share", *PER_STEP))
    cpu_s, steps = sum(usage.user_s + usage.system_s for usage in used), reports[0].window_usage_steps
    share = sum(usage.system_s for usage in used) / cpu_s if cpu_s > 0 else None
    return {"system_share": share, **{name: sum(getattr(usage, name) for usage in used) / steps for name in PER_STEP}}


def checkpoint_costs(report: Report) -> Values:
    """Mean time and size of a checkpoint, and the share of the loop's time that all of them took."""
    made = report.checkpoints
    if not made:
        return dict.fromkeys(("checkpoint_s", "checkpoint_share"))
    within = sum(entry.seconds for entry in made if entry.step < report.steps_done and not entry.stop)
    return {
        "checkpoint_s": sum(entry.seconds for entry in made) / len(made),
        "checkpoint_share": within / report.loop_s if report.loop_s else None,
    }


def kinds(spec: RunSpec, values: Values) -> dict[str, str]:
    """Which metrics are not measured: forecasts, and the training time of a run that was not the whole training."""
    is_cut = not spec.runs_full_training and not spec.measure.whole_program
    metric_kinds = dict.fromkeys(("training_time_s", "time_to_train_s") if is_cut else (), "extrapolated")
    return metric_kinds | {name: "predicted" for name in PREDICTED if values.get(name) is not None}


def intervals(job: Job, measured: Measured, manifest: Manifest, disturbed: bool = False) -> dict[str, list[float]]:
    """95 % intervals of metrics that come with their own: `{"training_time_s": [low, high]}`."""
    whole = training_time(job.spec, measured, manifest, disturbed)
    _, of_exchange = exposed_exchange(measured.reports[0])
    metric_intervals = {} if of_exchange is None else {"exposed_exchange_s": of_exchange}
    if not job.spec.measure.whole_program and whole.low is not None and whole.high is not None:
        stage_s = stage_costs(measured.reports)["stage_s"] or 0.0
        metric_intervals["training_time_s"] = [whole.low, whole.high]
        metric_intervals["time_to_train_s"] = [whole.low + stage_s, whole.high + stage_s]
    return metric_intervals


def training_time(spec: RunSpec, measured: Measured, manifest: Manifest, disturbed: bool = False) -> ExtrapolatedTime:
    """Seconds of the full training: the slowest rank's loop, or extrapolated from steps, evaluations and checkpoints.

    The interval is wider where other processes `disturbed` the window.
    """
    report, every = measured.reports[0], spec.train.evaluate_every_epochs
    if spec.runs_full_training:
        return ExtrapolatedTime(float(max(report.loop_s for report in measured.reports)))
    steps = spec.train.epochs * epoch_steps(spec, manifest, report)
    done_s = float(np.diff(measured.marks[measured.slowest, :, [0, -1]], axis=0).sum())
    step_intervals = measured.step_intervals
    checkpoints = (steps - 1) // spec.checkpoint.every_steps if spec.checkpoint.every_steps else 0
    evaluations = -(-spec.train.epochs // every) if every else 0  # one after the last epoch too
    costs = [
        RecurringCost([each.evaluation_s for each in report.evaluations], evaluations),
        RecurringCost([each.seconds for each in report.checkpoints], checkpoints),
    ]
    return extrapolated(done_s, step_intervals, steps - report.steps_done, costs, disturbed)


def expected_read_bytes(spec: RunSpec, manifest: Manifest, epochs: float) -> float | None:
    """Least bytes that storage must deliver; None where the page cache was left as found.

    From a cold cache each byte is read once; with a limit, the rest is read again in every later epoch.
    """
    remote = spec.loader.origin is not None and "://" in spec.loader.origin and spec.stage.to is None
    if spec.loader.cache == "warm" or spec.loader.mode == "synthetic" or remote:
        return 0.0
    limit = spec.loader.memory_limit_mib
    if spec.loader.cache == "as_found" and limit is None:
        return None
    size = float(manifest.train.bytes)
    again = max(0.0, size - limit * 2**20) if limit is not None and spec.loader.mode != "memory" else 0.0
    return size * min(1.0, epochs) + again * max(0.0, epochs - 1.0)


# The parts of a step: frontier accounting (StageFrontier, arXiv 2606.06751)
#
# Ranks that wait for each other in every step, in the exchange, have the same order of phases. With d(r, i) the seconds
# of phase i on rank r, F_s = max over r of the sum of d(r, i) over i <= s is when the last rank has done phase s, and
# phase s owns F_s - F_(s-1). So the parts sum to the step, and time that one rank waits for is counted once, as the phase
# of the rank that it waited for. The largest time of each phase over ranks would count a slow rank twice: as its own
# computing, and as the others' exchange.
#
# The sums run on over up to STEPS_TOGETHER steps, from their common begin, so that a rank that leaves one exchange a
# little later than the others, and the next one a little earlier, does not lengthen every step. Then they begin anew:
# clocks of several hosts or devices are not the same, and drift apart.

STEPS_TOGETHER = 100
"""Ten seconds of steps of 0.1 s, in which clocks that differ by 20 ppm drift apart by 0.2 ms."""
ENTRY = PHASES.index("exchange")
"""The mark of a step at which a rank enters the exchange."""


def parts_of_steps(marks: Marks, stretches: list[slice]) -> Marks:
    """float64 [steps, 6]: the share of each of PHASES in each step of the stretches, all ranks together; none is negative.

    `marks` [ranks, steps, 7] are on each rank's own clock. Time between two steps is no part of either.
    """
    parts = []
    for clocks in _together(marks, stretches):
        frontier = clocks.max(axis=0)
        parts.append(np.diff(frontier.ravel(), prepend=0.0).reshape(-1, MARKS)[:, 1:])
    return np.concatenate(parts)


def waiting(marks: Marks, stretches: list[slice]) -> float:
    """Mean seconds, over ranks and steps, from a rank's entry into the exchange to that of the last rank."""
    waits = []
    for clocks in _together(marks, stretches):
        entry = clocks[:, :, ENTRY]
        waits.append(np.minimum(entry.max(axis=0) - entry, clocks[:, :, ENTRY + 1] - entry))
    return float(np.concatenate(waits, axis=1).mean())


def _together(marks: Marks, stretches: list[slice]) -> Iterator[Marks]:
    """The marks of steps that follow each other, [ranks, up to STEPS_TOGETHER, 7], since the start of the first."""
    for part in stretches:
        for first in range(part.start, part.stop, STEPS_TOGETHER):
            steps = marks[:, first : min(part.stop, first + STEPS_TOGETHER)]
            yield steps - steps[:, :1, :1]
