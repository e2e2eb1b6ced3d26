"""How long the jobs to come will take: what the plan expects of each, corrected by what the finished ones took.

A job's expectation has a source: a repeat on this machine, a like run, a published time, or nothing but its rule. Sources
err in their own ways, so each is corrected by its own jobs, those of about a job's size first: by the seconds that they
took over the seconds expected. A repeat of a job that finished in this call is expected to take as long again. Runs of
which nothing is known are expected to be of about the size of those that finished, in a wide range.
"""

from __future__ import annotations

import math
import statistics
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

Span = tuple[float, float]

PRIORS: dict[str, Span] = {
    "train": (3.0, 120.0),
    "dataset": (1.0, 60.0),
    "spec": (0.2, 1.0),
    "summarise": (2.0, 8.0),
    "figure": (2.0, 8.0),
    "table": (2.0, 8.0),
    "report": (2.0, 15.0),
}
"""Seconds of a job of each rule of which nothing is known. The rules left out here take no time."""

OTHER_JOBS = 0.8
"""Share of a source's spread that its correction may be wrong by however many have finished: later jobs are not like
earlier ones."""
LEAST_SPREAD = 0.1
"""No source is believed to hold a job's time more closely than this standard deviation of the logarithm."""
ENOUGH = 3
"""Finished jobs from which a source's own spread is taken; with fewer, that of its expectations."""
ALIKE = 0.5
"""Jobs are of about the same size where the logarithms of what is expected of them differ by this."""
ANY_SIZE = 0.1
"""What jobs of other sizes count for, beside those of the same size."""
AGAIN = (0.9, 1.1)
"""What a repeat may take of what the first one took."""
LIKE_OTHERS = 0.7
"""How far a run of which nothing is known may be from those that finished: standard deviation of the logarithm. Studies of
one scale are made for one machine, so their runs are of one order of magnitude."""
UNKNOWN_RUN = "any train"
NO_RUNS = {*(f"any {rule}" for rule in PRIORS if rule != "train")}
"""Sources of expectations of other jobs than runs."""
ENDS = 2.0
"""Standard deviations from the middle of a range to its ends."""


@dataclass(frozen=True)
class Expected:
    """Seconds that a job is expected to take, and by what that is known."""

    low_s: float
    high_s: float
    source: str

    @staticmethod
    def again(took_s: float) -> Expected:
        """What is expected of a repeat of a job that took `took_s` in this call."""
        return Expected(AGAIN[0] * took_s, AGAIN[1] * took_s, "again")

    @staticmethod
    def of_rule(rule: str) -> Expected:
        """What is expected of a job of which only the rule is known."""
        return Expected(*PRIORS[rule], f"any {rule}")

    @property
    def middle_s(self) -> float:
        """Expectations are right within a factor, so their middle is the geometric mean."""
        return math.sqrt(max(self.low_s, 0.05) * max(self.high_s, 0.05))

    @property
    def spread(self) -> float:
        """Standard deviation of the logarithm, with the ends of the range as `ENDS` of it."""
        return max(LEAST_SPREAD, math.log(max(self.high_s, 0.05) / max(self.low_s, 0.05)) / (2 * ENDS))


@dataclass(frozen=True)
class Left:
    """One job that has not finished: what is expected of it, and how long it has been running."""

    expected: Expected
    running_s: float = 0.0


class Forecast:
    """Corrected expectations. `pairs` are finished jobs: what was expected when they began, and the seconds they took."""

    def __init__(self, pairs: Iterable[tuple[Expected, float]]) -> None:
        self.pairs: dict[str, list[tuple[float, float]]] = defaultdict(list)
        for expected, took_s in pairs:
            self.pairs[expected.source].append((math.log(expected.middle_s), math.log(max(took_s, 0.05))))
        self.spreads = {
            source: max(LEAST_SPREAD, statistics.stdev(took - middle for middle, took in found))
            for source, found in self.pairs.items()
            if len(found) >= ENOUGH
        }
        runs = [took for source, found in self.pairs.items() if source not in NO_RUNS for _, took in found]
        self.unknown_run = _beside(Expected.of_rule("train"), runs)
        """Of a run of which nothing is known, before one has finished: the logarithm of its seconds, and its spread."""

    def knows(self, source: str) -> bool:
        """Whether a job with an expectation from this source has finished."""
        return source in self.pairs

    def seconds(self, expected: Expected) -> float:
        """The likely seconds of a job."""
        if not self.knows(expected.source):
            return math.exp(self.unknown_run[0]) if expected.source == UNKNOWN_RUN else expected.middle_s
        size = math.log(expected.middle_s)
        took_s = expected_s = 0.0
        for middle, took in self.pairs[expected.source]:
            weight = ANY_SIZE + math.exp(-(((size - middle) / ALIKE) ** 2) / 2)
            took_s += weight * math.exp(took)
            expected_s += weight * math.exp(middle)
        return expected.middle_s * took_s / expected_s

    def left(self, jobs: Sequence[Left], at_once: int = 1) -> Span | None:
        """Least and most seconds until `jobs` are done, `at_once` at a time.

        None where nothing is known of some runs and no run has finished.
        """
        if any(job.expected.source == UNKNOWN_RUN for job in jobs) and not self.pairs.keys() - NO_RUNS:
            return None
        rests = [self._rest(job) for job in jobs]
        total = sum(rests)
        if total <= 0:
            return 0.0, 0.0
        relative = min(1.5, math.sqrt(self._variance(jobs, rests)) / total)
        middle = max(total / max(1, at_once), *rests)
        return middle * math.exp(-ENDS * relative), middle * math.exp(ENDS * relative)

    def _rest(self, job: Left) -> float:
        """Seconds that a job still needs; one that is over its time needs about a tenth of what it took so far."""
        return max(self.seconds(job.expected) - job.running_s, 0.1 * job.running_s)

    def _variance(self, jobs: Sequence[Left], rests: Sequence[float]) -> float:
        """Of each source: the error of its correction, which its jobs share, and each job's own."""
        shared: dict[str, float] = defaultdict(float)
        own = 0.0
        for job, rest in zip(jobs, rests, strict=True):
            source = job.expected.source
            finished = len(self.pairs[source]) if self.knows(source) else 0
            spread = self.spreads.get(source, job.expected.spread)
            if finished:
                shared[source] += spread * rest * math.sqrt(1 / finished + OTHER_JOBS**2)
                own += (spread * rest) ** 2
            else:  # all may be wrong in the same way
                shared[source] += (self.unknown_run[1] if source == UNKNOWN_RUN else spread) * rest
        return own + sum(error**2 for error in shared.values())


def _beside(prior: Expected, finished: Sequence[float]) -> Span:
    """Mean and standard deviation of a logarithm, from a prior range and from logarithms of finished runs' seconds, each
    weighted by the inverse of its variance."""
    means, precisions = [math.log(prior.middle_s)], [prior.spread**-2]
    if finished:
        means.append(statistics.fmean(finished))
        precisions.append(1 / (LIKE_OTHERS**2 * (1 + 1 / len(finished))))
    mean = sum(one * precision for one, precision in zip(means, precisions, strict=True)) / sum(precisions)
    return mean, sum(precisions) ** -0.5
