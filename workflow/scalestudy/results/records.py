"""Records of a run: the reports and step times of its ranks, read back, and the tables that accompany a result."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import TypeVar

import numpy as np

from scalestudy.files import read_json, write_with
from scalestudy.measure.devices import energy_j, samples_of, throttling
from scalestudy.measure.system import MAX_FOREIGN, UNMEASURED, foreign_share, share_of_time, withheld_share
from scalestudy.measure.timers import PHASES
from scalestudy.training.job import Job
from scalestudy.training.report import Report


@dataclass(frozen=True)
class Measured:
    """The reports and step times of all ranks that train."""

    reports: list[Report]
    marks: np.ndarray
    """float64 [ranks, steps, 7]: start of each step and the ends of its phases, seconds on each rank's own clock."""
    losses: np.ndarray
    """float64 [ranks, steps]."""

    @property
    def in_window(self) -> np.ndarray:
        """bool [steps]: which of `marks` count. Warm-up steps do not, those after a stop included."""
        step, (first, end) = np.arange(self.marks.shape[1]), self.reports[0].window
        counts: np.ndarray = (step >= first) & (step < end)
        for first, end in self.reports[0].left_out:
            counts &= (step < first) | (step >= end)
        return counts

    @property
    def stretches(self) -> list[slice]:
        """The steps of the window, in stretches that an evaluation, a checkpoint or a stop separates."""
        pauses, slices = set(self.reports[0].pauses), list[slice]()
        for step in np.flatnonzero(self.in_window).tolist():
            if slices and slices[-1].stop == step and step not in pauses:
                slices[-1] = slice(slices[-1].start, step + 1)
            else:
                slices.append(slice(step, step + 1))
        return slices

    @property
    def window_s(self) -> np.ndarray:
        """float64 [ranks]: seconds of the window on each rank's clock, without the time between its stretches."""
        ends = [self.marks[:, part.stop - 1, -1] - self.marks[:, part.start, 0] for part in self.stretches]
        return np.sum(ends, axis=0) if ends else np.zeros(len(self.marks))

    @property
    def step_intervals(self) -> np.ndarray:
        """float64 [steps of the window]: seconds from one step to the next, on the clock of the slowest rank."""
        marks = self.marks[self.slowest]
        intervals = [np.diff(np.append(marks[part, 0], marks[part.stop - 1, -1])) for part in self.stretches]
        return np.concatenate(intervals) if intervals else np.zeros(0)

    @property
    def slowest(self) -> int:
        """The rank with the longest window."""
        return int(np.argmax(self.window_s))


def read_reports(job: Job) -> Measured:
    """Read the reports of training ranks in the job's folder."""
    ranks = range(job.spec.ranks)
    arrays = [np.load(job.folder / f"steps.{rank}.npz") for rank in ranks]
    return Measured(
        [Report.from_plain(read_json(job.folder / f"report.{rank}.json")) for rank in ranks],
        np.stack([array["marks"] for array in arrays]),
        np.stack([array["loss"] for array in arrays]),
    )


def staleness(job: Job) -> dict[str, int] | None:
    """How many updates had each staleness, over all servers; None where it was not recorded."""
    servers = range(job.spec.ranks, job.processes)
    files = [file for rank in servers if (file := job.folder / f"events.{rank}.npz").exists()]
    counts = Counter(value for file in files for value in np.load(file)["staleness"].astype(int).tolist())
    return {str(value): count for value, count in sorted(counts.items())} or None


def write_steps(measured: Measured, file: Path) -> None:
    """One row per rank and step: begin, seconds of each phase, loss, whether in the window.

    `compute_s` is forward and backward; where they have no times of their own, those columns are empty.
    """
    import pandas as pd

    ranks, steps, _ = measured.marks.shape
    phases = np.diff(measured.marks, axis=2).reshape(ranks * steps, -1)
    frame = pd.DataFrame({"rank": np.repeat(np.arange(ranks), steps), "step": np.tile(np.arange(steps), ranks)})
    frame["begin_s"] = measured.marks[:, :, 0].ravel()
    frame[[f"{phase}_s" for phase in PHASES]] = phases
    frame["compute_s"] = frame["forward_s"] + frame["backward_s"]
    if not measured.reports[0].forward_apart:
        frame[["forward_s", "backward_s"]] = np.nan
    frame["loss"] = measured.losses.ravel()
    frame["in_window"] = np.tile(measured.in_window, ranks)
    write_with(file, frame.to_parquet)


Value = TypeVar("Value")
MAX_WITHHELD = 0.01
"""Share of a window's CPU time that a quota may withhold."""
NEARLY_IDLE, BUSY = 0.25, 0.9
"""Utilisation of an accelerator in a second (Vasudev and Lockman, item 6: dips to 10 to 25 %, and more than 90 %)."""


@dataclass(frozen=True)
class HostFacts:
    """What samplers of the run's hosts saw in the window: columns, and warnings."""

    values: dict[str, float | None]
    warnings: list[str]

    @property
    def disturbed(self) -> bool:
        """Whether other processes took more of the cores than a measurement bears."""
        return (self.values["foreign_cpu_share"] or 0.0) > MAX_FOREIGN


def facts_of_hosts(
    job: Job, samples: Sequence[Mapping[str, float]], reports: Sequence[Report], trained: float | None
) -> HostFacts:
    """Use of the run's hosts and accelerators in the window, in which they `trained` so many samples.

    Shares of what disturbs are the largest over hosts, utilisation is their mean; a column is None where no host tells it.
    """
    hosts = _windows(job, samples, reports)

    def shares(share_of: Callable[..., float | None], *columns: str) -> list[float]:
        return [share for host in hosts if (share := share_of(*host, *columns)) is not None]

    utilisation, power, memory, processes = (
        _of_all([samples_of(rows, column, begin, end) or None for rows, begin, end in hosts])
        for column in ("device_utilisation", "device_power_w", "device_memory_bytes", "device_processes")
    )
    max_processes = max(map(max, processes)) if processes else None
    others = int(max_processes or 0) - math.ceil(job.spec.ranks / len(job.hosts))
    joules = _of_all([energy_j(*host) for host in hosts])
    values = {
        "foreign_cpu_share": max(shares(foreign_share), default=None),
        "throttled_share": max(shares(share_of_time, "throttled_s"), default=None),
        "cpu_utilisation": _mean(shares(share_of_time, "busy_s", "cores")),
        "disk_utilisation": _mean(shares(share_of_time, "host_disk_busy_s")),
        "device_utilisation": _mean(map(fmean, utilisation)),
        "device_idle_share": _mean(fmean(used < NEARLY_IDLE for used in host) for host in utilisation),
        "device_busy_share": _mean(fmean(used > BUSY for used in host) for host in utilisation),
        "device_power_w": sum(map(fmean, power)) if power else None,
        "device_processes": max_processes,
        "device_used_mib": max(map(max, memory)) / 2**20 if memory else None,
        "j_per_sample": sum(joules) / trained if joules and trained else None,
    }
    warned = []
    if (foreign := values["foreign_cpu_share"] or 0.0) > MAX_FOREIGN:
        took = f"other processes took {foreign:.0%} of the cores during the window, more than {MAX_FOREIGN:.0%}"
        warned.append(f"disturbed: {took}")
    if slowed := dict.fromkeys(reason for host in hosts for reason in throttling(*host)):
        warned.append(f"the device clocks were throttled in the window: {', '.join(slowed)}")
    if others > 0 and job.spec.program is None:
        plural = "es" if others > 1 else ""
        warned.append(f"{others} other process{plural} computed on the run's devices in the window")
    if (share := max(shares(withheld_share), default=0.0)) > MAX_WITHHELD:
        warned.append(
            f"a CPU quota withheld {share:.0%} of the CPU time that the run would have used in the window: ask for "
            "more cores, or lower threads_per_rank"
        )
    unmeasured = [file.read_text(encoding="utf-8") for file in sorted(job.folder.glob(f"{UNMEASURED}*"))]
    return HostFacts(values, [*warned, *dict.fromkeys(unmeasured)])


def _windows(
    job: Job, samples: Sequence[Mapping[str, float]], reports: Sequence[Report]
) -> list[tuple[list[Mapping[str, float]], float, float]]:
    """For each host with a window: samples of it and of its ranks, and the clocks at which the window began and ended."""
    windows = []
    for host in range(len(job.hosts)):
        here = [report for report in reports if job.host_of(report.rank) == host]
        rows = [row for row in samples if row["node"] == host]
        clocks = [report.window_clock for report in here if report.window_clock]
        if rows and clocks:
            rows += [row for report in here for row in report.host_rows]
            windows.append((sorted(rows, key=lambda row: row["clock_s"]), *clocks[0]))
    return windows


def _of_all(values: Sequence[Value | None]) -> list[Value]:
    """The values of all hosts; none of them where one has none."""
    return [] if None in values else [value for value in values if value is not None]


def _mean(values: Iterable[float]) -> float | None:
    """Mean over hosts; None where there is none."""
    host_values = list(values)
    return fmean(host_values) if host_values else None


def write_samples(rows: list[dict[str, float]], file: Path) -> float | None:
    """One row per node and second; returns the most anonymous memory of a node in bytes, None where there are no rows."""
    if not rows:
        return None
    import pandas as pd

    write_with(file, pd.DataFrame(rows).to_parquet)
    return max(row["anonymous_bytes"] for row in rows)
