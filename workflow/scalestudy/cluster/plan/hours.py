"""The plan: the jobs of Snakemake's graph with their requests and estimates, and sums of them, before any is submitted.

*Reserved* are the walltimes of whole nodes, which the jobs are submitted with; *expected* is the median of a drawn sum,
*to request* its 90th percentile. Percentiles of a sum are drawn, so they do not add up. A job without an estimate is in
no percentile: it counts with its reservation in the hours to request, and in the makespan. Where no scheduler has the
jobs, nothing is reserved, and the makespan is the time that they take one after the other.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import numpy.typing as npt

from scalestudy.cluster.plan.expected import UNKNOWN, TimeEstimate
from scalestudy.cluster.resources import LINK_MARGIN_S, NAMES, Resources, walltime
from scalestudy.spec.machine import Machine
from scalestudy.spec.study import left_out_of

if TYPE_CHECKING:
    from scalestudy.dag.project import Project

NO_REQUEST = Resources(0, 0, 0, 0, 0, None, None)
"""Request of a job that the driver keeps: of all but runs and datasets."""
TIMED = ("dataset", "train")
"""Rules whose jobs take time."""
DRAWS, SEED = 1000, 0
Z95 = 1.6449
"""The 95th percentile of the standard normal distribution."""
COMMON = {"repeats": 0.0, "neighbours": 0.5, "window": 0.8, "published": 0.8, "flops": 0.8, "rates": 0.8}
"""Share of the variance that all jobs of a kind of expectation have in common: what is taken from one published table is
too high for all of them or too low for all. Assumptions; independent errors would make a sum seem far too certain."""
Unit = Literal["gpu", "node", "price"]
Percentiles = tuple[float, float, float]
"""The 10th, 50th and 90th."""
Draws = npt.NDArray[np.float64]
Limits = Mapping[str, tuple[float, float]]
"""Most jobs and most nodes at one time, of each queue and, under an empty name, of the machine."""
MACHINE = ""


@dataclass(frozen=True)
class AnnouncedJob:
    """A job of Snakemake's graph."""

    rule: str
    wildcards: Mapping[str, str]
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    resources: Mapping[str, Any]
    priority: int

    @property
    def name(self) -> str:
        """The run, the dataset, or the first file that the job makes."""
        return self.wildcards.get("run") or self.wildcards.get("dataset") or (self.outputs or ("",))[0]


@dataclass(frozen=True)
class PlannedJob:
    """One job of the plan."""

    column: int
    """Its place among the jobs, and its column of the drawn seconds if it takes any."""
    seen: AnnouncedJob
    study: str = ""
    resources: Resources = NO_REQUEST
    estimate: TimeEstimate = UNKNOWN
    again_s: float = 0.0
    """Start-up of each further job that it needs if it takes longer than a job may."""

    @property
    def submitted(self) -> bool:
        """Whether the scheduler gets it."""
        return self.resources.nodes > 0

    @property
    def interval_s(self) -> tuple[float, float]:
        """Its 5th and 95th percentile, both at most its reservation: it cannot take longer."""
        most_s = self.resources.requested_s if self.resources.runtime else math.inf
        return min(self.estimate.low_s, most_s), min(self.estimate.high_s, most_s)

    def further(self, seconds: Draws) -> Draws:
        """Jobs beyond the first that it needs if it takes these seconds; none where no limit is known."""
        limit_s = 60 * (self.resources.runtime or 0)
        usable_s = max(60, limit_s - LINK_MARGIN_S)
        return np.where((seconds <= limit_s) | (limit_s == 0), 0, np.ceil(seconds / usable_s) - 1)


@dataclass(frozen=True)
class Plan:
    """Everything that would run now."""

    machine_name: str
    scale: str
    machine: Machine
    jobs: tuple[PlannedJob, ...]
    drawn_s: Draws = field(repr=False)
    """Seconds of each run and dataset [draws, jobs]; of those without an estimate the reservation, zero without a scheduler."""
    limits: Limits
    has_scheduler: bool = True
    """Whether the jobs are submitted; else they are run one after the other, and the plan is shown in time."""
    left_out: tuple[str, ...] = ()
    """Parts of the studies that the machine does not have."""

    @functools.cached_property
    def submitted(self) -> list[PlannedJob]:
        """The jobs that the scheduler gets."""
        return [job for job in self.jobs if job.submitted]

    @property
    def unknown(self) -> list[PlannedJob]:
        """The submitted jobs without an estimate."""
        return [job for job in self.submitted if not job.estimate.known]

    @property
    def assumed(self) -> list[str]:
        """Assumptions about data that has not been indexed, each once."""
        return list(dict.fromkeys(job.estimate.assumed for job in self.submitted if job.estimate.assumed))

    @property
    def unit(self) -> Unit:
        """GPUs, or nodes where no job holds a GPU."""
        return "gpu" if any(self.per_hour(job, "gpu") for job in self.jobs) else "node"

    def per_hour(self, job: PlannedJob, unit: Unit) -> float:
        """GPUs (idle ones of its nodes included) or nodes that a job holds, or the price of an hour of it, 0 without prices."""
        gpus, nodes = job.resources.gpus_held, job.resources.nodes
        if unit == "price":
            return self.machine.prices.per_hour(gpus, nodes) if self.machine.prices else 0.0
        return gpus if unit == "gpu" else nodes

    def by_study(self) -> dict[str, list[PlannedJob]]:
        """The submitted jobs of each study, the most urgent study first."""
        jobs_by_study: dict[str, list[PlannedJob]] = {}
        for job in sorted(self.submitted, key=lambda job: (-job.seen.priority, job.study)):
            jobs_by_study.setdefault(job.study, []).append(job)
        return jobs_by_study

    def reserved(self, jobs: Iterable[PlannedJob], unit: Unit) -> float:
        """Hours of the walltimes of these jobs, or their price."""
        return sum(self.per_hour(job, unit) * job.resources.requested_s for job in jobs) / 3600

    def hours(self, jobs: Sequence[PlannedJob], unit: Unit) -> Percentiles:
        """Percentiles of these jobs' GPU or node hours, or of their price, as far as they have an estimate."""
        weights = [self.per_hour(job, unit) * job.estimate.known for job in jobs]
        return percentiles(weighted(self.drawn_s, jobs, weights) / 3600)

    def to_request(self, jobs: Sequence[PlannedJob], unit: Unit) -> float:
        """Hours, or the price, that cover nine draws of ten, and the reservations of jobs without an estimate."""
        return self.hours(jobs, unit)[2] + self.reserved((job for job in jobs if not job.estimate.known), unit)

    def makespan_s(self, jobs: Sequence[PlannedJob]) -> Percentiles:
        """Percentiles of the least seconds that these jobs take, without the others, from the first start to the last end."""
        return percentiles(makespan(jobs, self.drawn_s, self.limits)) if jobs else (0.0, 0.0, 0.0)


def limits_of(machine: Machine, jobs: int | None = None) -> Limits:
    """Limits of a machine and its queues; `jobs` is the driver's own `--jobs`."""

    def least(*values: int | None) -> float:
        return min((value for value in values if value is not None), default=math.inf)

    whole = least(jobs, machine.limits.most_jobs), least(machine.nodes, machine.limits.most_nodes_running)
    queues = {name: (least(one.most_jobs), least(one.most_nodes_running)) for name, one in machine.queues.items()}
    return {MACHINE: whole, **queues}


def makespan(jobs: Sequence[PlannedJob], seconds: Draws, limits: Limits) -> Draws:
    """Least seconds [draws] from the first start to the last end, by each job's `seconds` [draws, jobs], without queueing.

    The longer of two: the longest run with the preparation of its data before it, and the job hours and node hours of the
    machine or of a queue over the jobs and nodes that it lets run at one time.
    """
    timed = [job for job in jobs if job.column < seconds.shape[1]]
    makers = {file: job.column for job in timed for file in job.seen.outputs}
    least = np.zeros(len(seconds))
    for job in timed:
        needs = [makers[file] for file in job.seen.inputs if file in makers]
        least = np.maximum(least, seconds[:, job.column] + seconds[:, needs].max(axis=1, initial=0.0))
    for queue, (most_jobs, most_nodes) in limits.items():
        held = [job for job in jobs if job.submitted and queue in (MACHINE, job.resources.queue)]
        nodes = [min(job.resources.nodes, most_nodes) for job in held]
        least = np.maximum(least, weighted(seconds, held, [1] * len(held)) / most_jobs)
        least = np.maximum(least, weighted(seconds, held, nodes) / most_nodes)
    return least


def weighted(seconds: Draws, jobs: Iterable[PlannedJob], weights: Iterable[float]) -> Draws:
    """The weighted sum [draws] of these jobs' seconds [draws, jobs], without a copy of these."""
    of_column = np.zeros(seconds.shape[1])
    for job, weight in zip(jobs, weights, strict=True):
        of_column[job.column] = weight
    return np.asarray(seconds @ of_column)


def drawn(intervals: Sequence[tuple[str, float, float]]) -> Draws:
    """Seconds [draws, jobs] from each job's kind of expectation, 5th and 95th percentile.

    Log-normal between the two; nothing where the kind is unknown. The seed is fixed: the same plan has the same numbers.
    """
    random = np.random.default_rng(SEED)
    common = {kind: random.standard_normal(DRAWS) for kind in COMMON}
    drawn_s = np.zeros((DRAWS, len(intervals)))
    for column, (kind, low, high) in enumerate(intervals):
        if high <= 0 or kind == "unknown":
            continue
        share = COMMON[kind]
        z = np.sqrt(share) * common[kind] + np.sqrt(1 - share) * random.standard_normal(DRAWS)
        drawn_s[:, column] = np.exp(np.log(low * high) / 2 + np.log(high / low) / (2 * Z95) * z)
    return drawn_s


def percentiles(values: Draws) -> Percentiles:
    """The 10th, 50th and 90th."""
    low, middle, high = np.percentile(values, (10, 50, 90))
    return float(low), float(middle), float(high)


def make_plan(project: Project, seen: Sequence[AnnouncedJob], jobs_at_once: int | None = None) -> Plan:
    """The plan of these jobs of a project; `jobs_at_once` is the driver's own limit."""
    # Snakemake announces jobs in any order, which must not change the numbers. The others take no time, and have no column.
    ordered = sorted(seen, key=lambda job: (job.rule not in TIMED, job.rule, job.name))
    jobs = tuple(_planned(project, column, job) for column, job in enumerate(ordered))
    # A path may name another machine than the configuration.
    name = next((job.wildcards["machine"] for job in ordered if job.rule == "train"), project.folder)
    machine = project.planner(name).machine
    timed = [job for job in jobs if job.seen.rule in TIMED]
    drawn_s = drawn([(job.estimate.kind, *job.interval_s) for job in timed])
    for job in timed if project.has_scheduler else ():
        seconds = drawn_s[:, job.column]
        seconds += job.again_s * job.further(seconds) if job.estimate.known else job.resources.requested_s
    names = {job.study for job in jobs if job.submitted}
    studies = [study for study in project.chosen if study.name in names]
    limits, left_out = limits_of(machine, jobs_at_once), tuple(left_out_of(studies))
    return Plan(name, project.scale, machine, jobs, drawn_s, limits, project.has_scheduler, left_out)


def _planned(project: Project, column: int, seen: AnnouncedJob) -> PlannedJob:
    if seen.rule == "train":
        planner = project.planner(seen.wildcards["machine"])
        run, study, _ = project.indexed(seen.wildcards["machine"], seen.wildcards["run"])
        resources, estimate = planner.of(run)
        request = _as_announced(resources, seen)
        if request.runtime != resources.runtime:  # it goes on in other jobs than those of its own walltime
            fits = request.runtime is not None and estimate.high_s <= 60 * request.runtime
            request = dataclasses.replace(request, links=1 if fits else walltime(estimate, request.runtime)[1])
        return PlannedJob(column, seen, study, request, estimate, planner.expectation.again_s)
    if seen.rule == "dataset":
        dataset = seen.wildcards["dataset"]
        needed, estimate = project.of_dataset(dataset)
        request = NO_REQUEST if project.prepares_data else _as_announced(needed, seen)
        return PlannedJob(column, seen, "data", request, estimate)
    return PlannedJob(column, seen)


def _as_announced(resources: Resources, seen: AnnouncedJob) -> Resources:
    """The request that the executor gets: `--set-resources` and defaults of the profile included."""
    overrides: dict[str, Any] = {name: seen.resources[name] for name in NAMES if seen.resources.get(name) is not None}
    return dataclasses.replace(resources, **overrides)
