"""From the ranks' reports to one result: metrics, checks, and one verdict with its reason."""

from __future__ import annotations

import functools
import platform
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np

from scalestudy.data.manifest import Manifest
from scalestudy.files import read_json, sha256_text
from scalestudy.measure.timers import PHASES
from scalestudy.spec.columns import PREDICTED
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
    def phases(self) -> np.ndarray:
        """float64 [ranks, steps of the window, 4]: seconds of each phase."""
        first, last = self.window
        return np.diff(self.marks[:, first:last], axis=2)


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
    first, last = measured.window
    steps = last - first
    ends, begins = measured.marks[:, last - 1, -1], measured.marks[:, first, 0]
    window_s = float((ends - begins).max())
    step_s = (measured.marks[:, first:last, -1] - measured.marks[:, first:last, 0]).max(axis=0)
    phases = measured.phases
    slowest = np.median(phases, axis=1).max(axis=0)
    throughput = steps * spec.global_batch / window_s
    steps_per_epoch = manifest.train.samples // spec.global_batch
    final = reports[0]["evaluations"][-1] if reports[0]["evaluations"] else {}
    tail = max(1, len(measured.losses[0]) // 10)
    loader = [report["loader_samples_per_s"] for report in reports]
    read = [report["read_bytes"] for report in reports]
    values: dict[str, float | None] = {
        "throughput_samples_per_s": throughput,
        "step_time_s": float(np.median(step_s)),
        "epoch_time_s": steps_per_epoch * spec.global_batch / throughput,
        "training_time_s": training_time(spec, measured, steps_per_epoch, window_s / steps),
        "accuracy": final.get("accuracy"),
        "auroc": final.get("auroc"),
        "loss": None if job.resolved.step_time_s is not None else float(measured.losses[:, -tail:].mean()),
        **{f"{phase}_s": float(value) for phase, value in zip(PHASES, slowest, strict=True)},
        "data_stall": float((phases[:, :, 0].sum(axis=1) / (ends - begins)).mean()),
        "accelerator_utilisation": None
        if job.resolved.step_time_s is None
        else float((steps * job.resolved.step_time_s / (ends - begins)).mean()),
        "loader_samples_per_s": sum(loader) if all(value is not None for value in loader) else None,
        "dataset_bytes": float(manifest.train.bytes),
        "read_bytes": float(sum(read)) if all(value is not None for value in read) else None,
        "expected_read_bytes": expected_read_bytes(spec, manifest, reports[0]["epochs_done"]),
        "memory_mib": None if memory_bytes is None else memory_bytes / 2**20,
        "wall_s": wall_s,
        "evaluation_s": reports[0]["evaluation_s"],
        "parameters": float(reports[0]["parameters"]),
        "setup_s": max((report["setup_s"] for report in reports if report.get("setup_s") is not None), default=None),
        **of_strategy(reports),
    }
    if spec.strategy.name == "allreduce" and spec.ranks > 1:
        values["exchange_s"] = None  # inside backward; it has no time of its own
    return values


def of_strategy(reports: list[dict[str, Any]]) -> dict[str, float | None]:
    """What only the run's strategy knows; of several ranks the largest counts."""
    known = [report.get("strategy", {}) for report in reports]
    return {name: max(of_rank[name] for of_rank in known if name in of_rank) for name in dict.fromkeys(chain(*known))}


def kinds(spec: RunSpec, values: dict[str, float | None]) -> dict[str, str]:
    """The kind of each value that is not measured."""
    found = {} if spec.runs_full_training else {"training_time_s": "extrapolated"}
    return found | {name: "predicted" for name in PREDICTED if values.get(name) is not None}


def training_time(spec: RunSpec, measured: Measured, steps_per_epoch: int, mean_step_s: float) -> float:
    """Seconds of the full training: the slowest rank's loop, or extrapolated from the window and one evaluation."""
    reports = measured.reports
    if spec.runs_full_training:
        return float(max(report["loop_s"] for report in reports))
    every = spec.train.evaluate_every_epochs
    evaluations = spec.train.epochs // every if every else 0
    return spec.train.epochs * steps_per_epoch * mean_step_s + evaluations * (reports[0]["evaluation_s"] or 0.0)


def expected_read_bytes(spec: RunSpec, manifest: Manifest, epochs: float) -> float | None:
    """Least bytes that storage must deliver; None where the page cache was left as found.

    From a cold cache each byte is read once; with a limit, what does not fit is read again in every later epoch.
    """
    if spec.loader.cache == "warm":
        return 0.0
    limit = spec.loader.memory_limit_mib
    if spec.loader.cache == "as_found" and limit is None:
        return None
    size = float(manifest.train.bytes)
    again = max(0.0, size - limit * 2**20) if limit is not None else 0.0
    return size * min(1.0, epochs) + again * max(0.0, epochs - 1.0)


def verdict(job: Job, measured: Measured, values: dict[str, float | None], manifest: Manifest) -> str | None:
    """The one place that decides whether a run is valid: None, or the reason why it is not."""
    return next(_doubts(job, measured, values, manifest), None)


def _doubts(job: Job, measured: Measured, values: dict[str, float | None], manifest: Manifest) -> Iterator[str]:
    spec, reports = job.spec, measured.reports
    yield from filter(None, (report.get("doubt") for report in reports))
    if not all(report["finite"] for report in reports):
        yield "the loss or a weight is not finite: lower optimiser.learning_rate"
    digests = {report["parameter_digest"] for report in reports}
    if len(digests) > 1:
        yield f"ranks hold different parameters after the last step ({len(digests)} of {spec.ranks} differ)"
    planned = reports[0]["steps_done"] * spec.global_batch
    seen = sum(report["samples_seen"] for report in reports)
    if seen != planned:
        yield f"{seen:,} samples were seen, {planned:,} were planned"
    steps_per_epoch = manifest.train.samples // spec.global_batch
    if spec.runs_full_training and reports[0]["steps_done"] != steps_per_epoch * spec.train.epochs:
        yield f"{reports[0]['steps_done']} of {steps_per_epoch * spec.train.epochs} steps were made"
    first, last = measured.window
    window_s = float((measured.marks[:, last - 1, -1] - measured.marks[:, first, 0]).max())
    if last - first < LEAST_WINDOW_STEPS or window_s < LEAST_WINDOW_S:
        yield (
            f"the measured window is {last - first} steps and {window_s:.2f} s; at least {LEAST_WINDOW_STEPS} steps and "
            f"{LEAST_WINDOW_S} s mean something: raise measure.steps or train.epochs, or lower measure.warmup_steps"
        )
    expected, read = values["expected_read_bytes"], values["read_bytes"]
    if expected and manifest.format != "tensors":
        if read is None:
            yield "bytes read could not be counted on this system"
        elif read < READ_TOLERANCE * expected:
            yield f"{read / 2**20:,.0f} MiB were read from storage, at least {expected / 2**20:,.0f} MiB were expected: the data was cached"


@functools.lru_cache(maxsize=1)
def code_digest() -> str:
    """Twelve hex digits over the code that measures: everything in the package but analysis and figures."""
    package = Path(__file__).parent.parent
    parts = [
        f"{file.relative_to(package)} {sha256_text(file.read_text(encoding='utf-8'))}"
        for file in sorted(package.rglob("*.py"))
        if file.relative_to(package).parts[0] in ("data", "measure", "models", "spec", "strategies", "training")
    ]
    return sha256_text("\n".join(parts))[:12]


def instrument(device: str) -> dict[str, Any]:
    """What the numbers were measured with."""
    import os

    import psutil
    import torch

    return {
        "code": code_digest(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "cpu": cpu_name(),
        "cores": len(os.sched_getaffinity(0)),
        "memory_gib": round(psutil.virtual_memory().total / 2**30, 1),
        "device_name": device,
        "system": f"{platform.system()} {platform.release()}",
    }


def cpu_name() -> str:
    """The processor's name as the kernel tells it."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()
