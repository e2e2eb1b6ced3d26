"""Reports of a run's ranks, read back: reports, times of all steps, losses."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from scalestudy.files import read_json
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
        pauses, found = set(self.reports[0].pauses), list[slice]()
        for step in np.flatnonzero(self.in_window).tolist():
            if found and found[-1].stop == step and step not in pauses:
                found[-1] = slice(found[-1].start, step + 1)
            else:
                found.append(slice(step, step + 1))
        return found

    @property
    def window_s(self) -> np.ndarray:
        """float64 [ranks]: seconds of the window on each rank's clock, without the time between its stretches."""
        ends = [self.marks[:, part.stop - 1, -1] - self.marks[:, part.start, 0] for part in self.stretches]
        return np.sum(ends, axis=0) if ends else np.zeros(len(self.marks))

    @property
    def step_intervals(self) -> np.ndarray:
        """float64 [steps of the window]: seconds from one step to the next, on the clock of the slowest rank."""
        marks = self.marks[self.slowest]
        found = [np.diff(np.append(marks[part, 0], marks[part.stop - 1, -1])) for part in self.stretches]
        return np.concatenate(found) if found else np.zeros(0)

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
