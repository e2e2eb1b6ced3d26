"""From the ranks' reports to one result: metrics, checks, and one verdict with its reason."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain
from typing import Any

import numpy as np

from scalestudy.data.load.sampler import steps_per_epoch
from scalestudy.data.manifest import Manifest
from scalestudy.files import read_json
from scalestudy.measure.timers import PHASES
from scalestudy.results.extrapolate import Cost, Estimate
from scalestudy.results.extrapolate import training_time as extrapolated
from scalestudy.results.records import mean_staleness
from scalestudy.spec.columns import METRICS, PREDICTED
from scalestudy.spec.run import RunSpec
from scalestudy.training.job import Job

LEAST_WINDOW_S = 0.2
LEAST_WINDOW_STEPS = 5
READ_TOLERANCE = 0.9


@dataclass(frozen=True)
class Measured:
    """The reports and step times of all ranks that train."""

    reports: list[dict[str, Any]]
    marks: np.ndarray
    """float64 [ranks, steps, 5]: begin of each step and the ends of its phases, seconds on each rank's own clock."""
    losses: np.ndarray
    """float64 [ranks, steps]."""

    @property
    def window(self) -> tuple[int, int]:
        """First step of the window and the step after its last, the same on all ranks."""
        first, last = self.reports[0]["window"]
        return int(first), int(last)

    @property
    def in_window(self) -> np.ndarray:
        """bool [steps]: which of `marks` count. Left out is the warm-up, also that after a stop."""
        begin = self.reports[0]["first_step"]
        step = begin + np.arange(self.marks.shape[1])
        first, last = self.window
        counts: np.ndarray = (step >= first) & (step < last)
        for first, last in self.reports[0]["left_out"]:
            counts &= (step < first) | (step >= last)
        return counts

    @property
    def stretches(self) -> list[slice]:
        """The steps of the window in stretches between which something else was done: evaluation, checkpoint, stop."""
        begin = self.reports[0]["first_step"]
        counts, pauses = self.in_window, {pause - begin for pause in self.reports[0]["pauses"]}
        found: list[slice] = []
        for step in np.flatnonzero(counts).tolist():
            if found and found[-1].stop == step and step not in pauses:
                found[-1] = slice(found[-1].start, step + 1)
            else:
                found.append(slice(step, step + 1))
        return found

    @property
    def window_s(self) -> np.ndarray:
        """float64 [ranks]: seconds of the window on each rank's clock, without what was done between its stretches."""
        ends = [self.marks[:, part.stop - 1, -1] - self.marks[:, part.start, 0] for part in self.stretches]
        return np.sum(ends, axis=0) if ends else np.zeros(len(self.marks))

    @property
    def paces(self) -> np.ndarray:
        """float64 [steps of the window]: seconds from one step to the next, on the clock of the slowest rank."""
        rank = int(np.argmax(self.window_s))
        marks, paces = self.marks[rank], []
        for part in self.stretches:
            paces.append(np.diff(np.append(marks[part, 0], marks[part.stop - 1, -1])))
        return np.concatenate(paces) if paces else np.zeros(0)

    @property
    def phases(self) -> np.ndarray:
        """float64 [ranks, steps of the window, 4]: seconds of each phase."""
        return np.diff(self.marks[:, self.in_window], axis=2)


def read_reports(job: Job) -> Measured:
    """What the ranks that train left in the job's folder."""
    ranks = range(job.spec.ranks)
    arrays = [np.load(job.folder / f"steps.{rank}.npz") for rank in ranks]
    return Measured(
        [read_json(job.folder / f"report.{rank}.json") for rank in ranks],
        np.stack([array["marks"] for array in arrays]),
        np.stack([array["loss"] for array in arrays]),
    )


def metrics(
    job: Job, measured: Measured, manifest: Manifest, wall_s: float, memory_bytes: float | None
) -> dict[str, float | None]:
    """All measured columns (spec/columns.py has units and meanings)."""
    spec, reports = job.spec, measured.reports
    phases, window_s = measured.phases, measured.window_s
    steps = phases.shape[1]
    if not steps:
        return dict.fromkeys(METRICS)
    throughput = steps * spec.global_batch / float(window_s.max())
    slowest = np.median(phases, axis=1).max(axis=0)
    training_time_s, stage = training_time(spec, measured, manifest).value, stage_costs(reports)
    final = reports[0]["evaluations"][-1] if reports[0]["evaluations"] else {}
    tail = max(1, len(measured.losses[0]) // 10)
    loader = [report["loader_samples_per_s"] for report in reports]
    read = [report["read_bytes"] for report in reports]
    values: dict[str, float | None] = {
        "throughput_samples_per_s": throughput,
        "step_time_s": float(np.median(phases.sum(axis=2).max(axis=0))),
        "epoch_time_s": epoch_steps(spec, manifest, reports[0]) * spec.global_batch / throughput,
        "training_time_s": training_time_s,
        "time_to_train_s": training_time_s + (stage["stage_s"] or 0.0),
        **stage,
        "accuracy": final.get("accuracy"),
        "auroc": final.get("auroc"),
        "loss": None if job.resolved.step_time_s is not None else float(measured.losses[:, -tail:].mean()),
        **{f"{phase}_s": float(value) for phase, value in zip(PHASES, slowest, strict=True)},
        "data_stall": float((phases[:, :, 0].sum(axis=1) / window_s).mean()),
        "accelerator_utilisation": None
        if job.resolved.step_time_s is None
        else float((steps * job.resolved.step_time_s / window_s).mean()),
        "loader_samples_per_s": sum(loader) if all(value is not None for value in loader) else None,
        "dataset_bytes": float(manifest.train.bytes),
        "preparation_s": manifest.seconds,
        "preparation_cpu_s": manifest.cost.cpu_s,
        "resident_share": max(
            (report["resident_share"] for report in reports if report.get("resident_share") is not None), default=None
        ),
        "read_bytes": float(sum(read)) if all(value is not None for value in read) else None,
        "expected_read_bytes": expected_read_bytes(spec, manifest, reports[0]["epochs_done"]),
        "batch_readiness": _mean([report["readiness"].get("batches") for report in reports]),
        "stream_readiness": _mean([report["readiness"].get("stream") for report in reports]),
        "memory_mib": None if memory_bytes is None else memory_bytes / 2**20,
        "wall_s": wall_s,
        "staleness": mean_staleness(job),
        "evaluation_s": reports[0]["evaluation_s"],
        **checkpoint_costs(reports[0]),
        "parameters": float(reports[0]["parameters"]),
        "setup_s": max((report["setup_s"] for report in reports if report.get("setup_s") is not None), default=None),
        **of_strategy(reports),
    }
    if reports[0]["overlapped"] and spec.ranks > 1:
        values["exchange_s"] = None  # inside backward; it has no time of its own
    return values


def _mean(values: list[float | None]) -> float | None:
    """Mean over ranks; None where one has no value."""
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known and len(known) == len(values) else None


def epoch_steps(spec: RunSpec, manifest: Manifest, report: dict[str, Any]) -> int:
    """Steps that one epoch of this run has."""
    return report.get("node_steps") or steps_per_epoch(
        manifest.train.samples, spec.global_batch, spec.loader.last_batch
    )


def stage_costs(reports: list[dict[str, Any]]) -> dict[str, float | None]:
    """Time until all nodes had their copies, and the bytes copied; None where the data was read where it lay."""
    found = [report["stage"] for report in reports if report.get("stage")]
    if not found:
        return {"stage_s": None, "staged_bytes": None}
    seconds = max(stage["seconds"] for stage in found)
    return {"stage_s": seconds, "staged_bytes": float(sum(stage["copied_bytes"] for stage in found))}


def of_strategy(reports: list[dict[str, Any]]) -> dict[str, float | None]:
    """What only the run's strategy knows; of several ranks the largest counts."""
    known = [report.get("strategy", {}) for report in reports]
    return {name: max(of_rank[name] for of_rank in known if name in of_rank) for name in dict.fromkeys(chain(*known))}


def checkpoint_costs(report: dict[str, Any]) -> dict[str, float | None]:
    """Mean time and size of a checkpoint, and the share of the loop's time that all of them took."""
    made = report["checkpoints"]
    if not made:
        return {"checkpoint_s": None, "checkpoint_bytes": None, "checkpoint_share": None}
    seconds = sum(entry["seconds"] for entry in made)
    within = sum(entry["seconds"] for entry in made if entry["step"] <= report["steps_done"] and not entry["stop"])
    return {
        "checkpoint_s": seconds / len(made),
        "checkpoint_bytes": sum(entry["bytes"] for entry in made) / len(made),
        "checkpoint_share": within / report["loop_s"] if report["loop_s"] else None,
    }


def kinds(spec: RunSpec, measured: Measured, values: dict[str, float | None]) -> dict[str, str]:
    """Which metrics are not measured: the training time, where not all of the training was done here, and forecasts."""
    found = {}
    if not _timed_in_full(spec, measured):
        found = dict.fromkeys(("training_time_s", "time_to_train_s"), "extrapolated")
    return found | {name: "predicted" for name in PREDICTED if values.get(name) is not None}


def intervals(job: Job, measured: Measured, manifest: Manifest) -> dict[str, list[float]]:
    """95 % intervals of extrapolated metrics: `{"training_time_s": [low, high]}`."""
    found = training_time(job.spec, measured, manifest)
    if found.low is None or found.high is None:
        return {}
    stage_s = stage_costs(measured.reports)["stage_s"] or 0.0
    return {
        "training_time_s": [found.low, found.high],
        "time_to_train_s": [found.low + stage_s, found.high + stage_s],
    }


def training_time(spec: RunSpec, measured: Measured, manifest: Manifest) -> Estimate:
    """Seconds of the full training: the slowest rank's loop, or extrapolated from steps, evaluations and checkpoints."""
    report = measured.reports[0]
    if _timed_in_full(spec, measured):
        return Estimate(float(max(report["loop_s"] for report in measured.reports)))
    steps = spec.train.epochs * epoch_steps(spec, manifest, report)
    done = report["steps_done"] - report["first_step"]
    rank = int(np.argmax(measured.window_s))
    done_s = float(np.diff(measured.marks[rank, :, [0, -1]], axis=0).sum())
    every = spec.train.evaluate_every_epochs
    evaluations = Cost(
        [evaluation["evaluation_s"] for evaluation in report["evaluations"]], spec.train.epochs // every if every else 0
    )
    paces = measured.paces
    pace_s = float(paces.mean()) if len(paces) else 0.0
    checkpoints = Cost([entry["seconds"] for entry in report["checkpoints"]], planned_checkpoints(spec, steps, pace_s))
    return extrapolated(done_s, paces, steps - done, [evaluations, checkpoints])


def planned_checkpoints(spec: RunSpec, steps: int, pace_s: float) -> float:
    """How many checkpoints a training of so many steps writes."""
    every_steps, every_minutes = spec.checkpoint.every_steps, spec.checkpoint.every_minutes
    by_steps = (steps - 1) // every_steps if every_steps else 0
    return by_steps + (steps * pace_s / (60 * every_minutes) if every_minutes else 0.0)


def _timed_in_full(spec: RunSpec, measured: Measured) -> bool:
    return spec.runs_full_training and measured.reports[0]["first_step"] == 0


def expected_read_bytes(spec: RunSpec, manifest: Manifest, epochs: float) -> float | None:
    """Least bytes that storage must deliver; None where the page cache was left as found.

    From a cold cache each byte is read once; with a limit, what does not fit is read again in every later epoch.
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


def verdict(job: Job, measured: Measured, values: dict[str, float | None], manifest: Manifest) -> str | None:
    """The one place that decides whether a run is valid: None, or the reason why it is not."""
    return next(_doubts(job, measured, values, manifest), None)


def _doubts(job: Job, measured: Measured, values: dict[str, float | None], manifest: Manifest) -> Iterator[str]:
    spec, reports = job.spec, measured.reports
    yield from filter(None, (report.get("doubt") for report in reports))
    if not all(report["finite"] for report in reports):
        yield "the loss or a weight is not finite: lower optimiser.learning_rate"
    yield from (
        f"{evaluation['doubt']}, after epoch {evaluation['epoch']:g}: see what the model does in evaluation mode"
        for evaluation in chain(*(report["evaluations"] for report in reports))
        if evaluation.get("doubt")
    )
    digests = {report["parameter_digest"] for report in reports}
    if len(digests) > 1:
        yield f"ranks hold different parameters after the last step ({len(digests)} of {spec.ranks} differ)"
    planned = (reports[0]["steps_done"] - reports[0]["first_step"]) * spec.global_batch
    seen = sum(report["samples_seen"] for report in reports)
    if seen != planned:
        yield f"{seen:,} samples were seen, {planned:,} were planned"
    all_steps = epoch_steps(spec, manifest, reports[0]) * spec.train.epochs
    if spec.runs_full_training and reports[0]["steps_done"] != all_steps:
        yield f"{reports[0]['steps_done']} of {all_steps} steps were made"
    steps, window_s = int(measured.in_window.sum()), float(measured.window_s.max())
    if steps < LEAST_WINDOW_STEPS or window_s < LEAST_WINDOW_S:
        yield (
            f"the measured window is {steps} steps and {window_s:.2f} s; at least {LEAST_WINDOW_STEPS} steps and "
            f"{LEAST_WINDOW_S} s mean something: raise measure.steps or train.epochs, or lower measure.warmup_steps"
        )
    for report in reports:
        if (stage := report.get("stage")) and not spec.stage.reuse:
            copied = sum(other["stage"]["copied_bytes"] for other in reports if other["stage"]["node"] == stage["node"])
            if copied < stage["bytes"]:
                yield f"node {stage['node']} was to copy {stage['bytes']:,} bytes, and copied {copied:,}"
    expected, read = values["expected_read_bytes"], values["read_bytes"]
    if expected and manifest.format != "tensors":
        if read is None:
            yield "bytes read could not be counted on this system"
        elif read < READ_TOLERANCE * expected:
            yield f"{read / 2**20:,.0f} MiB were read from storage, at least {expected / 2**20:,.0f} MiB were expected: the data was cached"
