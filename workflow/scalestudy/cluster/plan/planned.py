"""The plan: the jobs of Snakemake's graph with their requests and estimates, and sums of them, before any is submitted.

*Reserved* are the walltimes of whole nodes, which the jobs are submitted with; *expected* is the median of a drawn sum,
*to request* its 90th percentile. Percentiles of a sum are drawn (spread.py), so they do not add up. A job without an
estimate is in no percentile: it counts with its reservation in the hours to request, and in the makespan.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from scalestudy.cluster.ledger.waits import Waited, Waits, read_waits
from scalestudy.cluster.plan import spread
from scalestudy.cluster.plan.expected import UNKNOWN, TimeEstimate, kinds_of
from scalestudy.cluster.plan.schedule import QueueLimits, ScheduledJob, makespan, starts
from scalestudy.cluster.plan.spread import Draws
from scalestudy.cluster.plan.storage import NOTHING, Peak, Stored, of_dataset, of_run, peak
from scalestudy.cluster.resources import LINK_MARGIN_S, NAMES, Resources
from scalestudy.spec.capacity import left_out_of
from scalestudy.spec.config import read_site
from scalestudy.spec.machine import Machine

if TYPE_CHECKING:
    from scalestudy.dag.project import Project

SUBMITTED = ("train", "dataset")
"""Rules whose jobs go to the scheduler; the others take seconds and stay with the driver."""
NO_REQUEST = Resources(0, 0, 0, 0, 0, None, None)
"""Request of a job that the driver keeps."""
MAX_SCHEDULES, SCHEDULED_JOBS = 200, 40_000
"""Draws that are also scheduled: at most so many, and so many that about this number of jobs is."""
Unit = Literal["gpu", "node", "cpu"]
Percentiles = tuple[float, float, float]
"""The 10th, 50th and 90th."""


@dataclass(frozen=True)
class AnnouncedJob:
    """A job of Snakemake's graph."""

    id: int
    rule: str
    wildcards: Mapping[str, str]
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    resources: Mapping[str, Any]
    priority: int


@dataclass(frozen=True)
class PlannedJob:
    """One job of the plan."""

    seen: AnnouncedJob
    study: str = ""
    strategy: str = ""
    ranks: int = 0
    resources: Resources = NO_REQUEST
    estimate: TimeEstimate = UNKNOWN
    stored: Stored = NOTHING
    again_s: float = 0.0
    """Start-up of each further job that it needs if it takes longer than a job may."""

    @property
    def name(self) -> str:
        """The run, the dataset, or the first file that the job makes."""
        wildcards = self.seen.wildcards
        return wildcards.get("run") or wildcards.get("dataset") or (self.seen.outputs or ("",))[0]

    @property
    def submitted(self) -> bool:
        """Whether the scheduler gets it; a job without a node stays with the driver."""
        return self.seen.rule in SUBMITTED and self.resources.nodes > 0

    @property
    def reserved_s(self) -> int:
        """Walltime of all its attempts, seconds."""
        return self.resources.requested_s

    @property
    def interval_s(self) -> tuple[float, float]:
        """Its 5th and 95th percentile, the second at most its reservation: it cannot take longer."""
        if not self.estimate.known:
            return 0.0, float(self.reserved_s)
        low, high = self.estimate.low_s, self.estimate.high_s
        return (min(low, self.reserved_s), min(high, self.reserved_s)) if self.resources.runtime else (low, high)

    def units(self, unit: Unit) -> int:
        """GPUs (idle ones of its nodes included), nodes or cores that it holds."""
        asked = self.resources
        cores = asked.nodes * asked.ranks_per_node * asked.cpus_per_rank
        return {"gpu": asked.gpus_held, "node": asked.nodes, "cpu": cores}[unit] if self.submitted else 0

    def further(self, seconds: Any) -> Any:
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
    """Seconds of each job [draws, jobs], in the order of `jobs`; zero for those without an estimate."""
    limits: QueueLimits
    waits: Waits
    """Queue waits of this folder's jobs: further jobs of a chain are expected to wait as long."""
    assumed: tuple[str, ...] = ()
    left_out: tuple[str, ...] = ()
    """Parts of the studies that the machine does not have."""

    @property
    def submitted(self) -> list[PlannedJob]:
        """The jobs that the scheduler gets."""
        return [job for job in self.jobs if job.submitted]

    @property
    def unit(self) -> Unit:
        """GPUs, or nodes where no job holds a GPU."""
        return "gpu" if any(job.units("gpu") for job in self.jobs) else "node"

    def groups(self, by: Sequence[str] = ()) -> dict[tuple[str, ...], list[PlannedJob]]:
        """The submitted jobs by study, the most urgent first, and by these attributes."""
        urgency: dict[str, int] = {}
        for job in self.submitted:
            urgency[job.study] = max(urgency.get(job.study, 0), job.seen.priority)
        found: dict[tuple[str, ...], list[PlannedJob]] = {}
        for job in sorted(self.submitted, key=lambda job: (-urgency[job.study], job.study, job.strategy, job.ranks)):
            found.setdefault((job.study, *(str(getattr(job, name) or "") for name in by)), []).append(job)
        return found

    def reserved(self, jobs: Iterable[PlannedJob], unit: Unit) -> float:
        """Hours of the walltimes of these jobs."""
        return sum(job.units(unit) * job.reserved_s for job in jobs) / 3600

    @functools.cached_property
    def _columns(self) -> dict[int, int]:
        """The column of `drawn_s` of each job."""
        return {job.seen.id: column for column, job in enumerate(self.jobs)}

    def sums(self, jobs: Iterable[PlannedJob], weights: Iterable[float]) -> Percentiles:
        """Percentiles of the weighted sum of these jobs' hours."""
        columns = [self._columns[job.seen.id] for job in jobs]
        return spread.percentiles(self.drawn_s[:, columns] @ np.array(list(weights), dtype=float) / 3600)

    def hours(self, jobs: Sequence[PlannedJob], unit: Unit) -> Percentiles:
        """Percentiles of these jobs' GPU, node or CPU hours."""
        return self.sums(jobs, [job.units(unit) for job in jobs])

    def to_request(self, jobs: Sequence[PlannedJob], unit: Unit) -> float:
        """Hours that cover nine draws of ten, and the reservations of jobs without an estimate."""
        return self.hours(jobs, unit)[2] + self.reserved((job for job in jobs if not job.estimate.known), unit)

    def cost(self, jobs: Sequence[PlannedJob]) -> Percentiles | None:
        """Percentiles of the price, in the machine's currency; None where it has no prices."""
        prices = self.machine.prices
        if prices is None:
            return None
        return self.sums(jobs, [prices.per_hour(job.units("gpu"), job.units("node")) for job in jobs])

    def kilowatt_hours(self) -> Percentiles | None:
        """Percentiles of the energy of all jobs; None where the machine's power is unknown."""
        power = self.machine.power
        if power is None or (power.device_watts is None and power.node_watts is None):
            return None
        watts = [
            job.units("gpu") * (power.device_watts or 0) + job.units("node") * (power.node_watts or 0)
            for job in self.jobs
        ]
        return self.sums(self.jobs, [power.overhead * one / 1000 for one in watts])

    @functools.cached_property
    def makespan_s(self) -> Percentiles:
        """Percentiles of the seconds from the first start to the last end, waits of further jobs in a chain included."""
        if not self.jobs:
            return 0.0, 0.0, 0.0
        count = max(5, min(MAX_SCHEDULES, SCHEDULED_JOBS // max(1, len(self.jobs))))
        waits = np.array([self._wait_again_s(job) for job in self.jobs])
        rows = self.drawn_s[:count]
        rows = rows + self._further(rows) * waits + self._unknown_s
        tasks = tasks_of(self.jobs)
        return spread.percentiles(np.array([makespan(tasks, self._seconds(row), self.limits) for row in rows]))

    def makespan_of(self, jobs: Sequence[PlannedJob]) -> int:
        """Seconds that these jobs take without the others, each at its median; of all jobs the median makespan."""
        if len(jobs) == len(self.submitted):
            return round(self.makespan_s[1])
        return makespan(tasks_of(jobs), self._medians_s, self.limits)

    @functools.cached_property
    def _medians_s(self) -> dict[int, int]:
        return self._seconds(np.median(self.drawn_s, axis=0) + self._unknown_s)

    @functools.cached_property
    def peak(self) -> Peak:
        """Storage at most at one time, if every job takes its 95th percentile."""
        high_s = {job.seen.id: math.ceil(job.interval_s[1]) if job.submitted else 0 for job in self.jobs}
        begun = starts(tasks_of(self.jobs), high_s, self.limits)
        return peak(
            (job.stored, begun[job.seen.id], begun[job.seen.id] + high_s[job.seen.id]) for job in self.submitted
        )

    @property
    def _unknown_s(self) -> Any:
        """Reservations of the jobs without an estimate."""
        return np.array([0 if job.estimate.known else job.reserved_s for job in self.jobs])

    def _seconds(self, row: Any) -> dict[int, int]:
        return {job.seen.id: math.ceil(seconds) for job, seconds in zip(self.jobs, row, strict=True)}

    def _further(self, drawn_s: Draws) -> Draws:
        return np.stack([job.further(drawn_s[:, column]) for column, job in enumerate(self.jobs)], axis=1)

    def _wait_again_s(self, job: PlannedJob) -> float:
        waited = self.waits.of(job.resources.queue, job.resources.nodes)
        return 0.0 if waited is None else waited.median_s

    @property
    def waited(self) -> list[Waited]:
        """Waits of jobs like those of the plan, each kind once; the widest first."""
        jobs = sorted(self.submitted, key=lambda job: -job.resources.nodes)
        return self.waits.kinds((job.resources.queue, job.resources.nodes) for job in jobs)

    @property
    def unknown(self) -> list[PlannedJob]:
        """The submitted jobs without an estimate."""
        return [job for job in self.submitted if not job.estimate.known]


def sources_of(jobs: Iterable[PlannedJob]) -> str:
    """Sources of the estimates, best first."""
    return kinds_of(job.estimate for job in jobs)


def make_plan(project: Project, seen: Sequence[AnnouncedJob], jobs_at_once: int | None = None) -> Plan:
    """The plan of these jobs of a project; `jobs_at_once` is the driver's own limit."""
    machines = Counter(job.wildcards["machine"] for job in seen if job.rule == "train")
    # A path may name another machine than the configuration.
    name = machines.most_common(1)[0][0] if machines else project.config.folder
    machine = project.resources.planner(name).machine
    # Snakemake announces jobs in any order, which must not change the numbers.
    jobs = sorted((_planned(project, job) for job in seen), key=lambda job: (job.seen.rule, job.name))
    settings = read_site().scheduler
    drawn_s = spread.drawn([(job.estimate.kind, *job.interval_s) for job in jobs])
    for column, job in enumerate(jobs):
        drawn_s[:, column] += job.again_s * job.further(drawn_s[:, column])
    studies = {job.study for job in jobs if job.submitted}
    return Plan(
        name,
        project.config.scale,
        machine,
        tuple(jobs),
        drawn_s,
        QueueLimits.of(machine, jobs_at_once),
        Waits(read_waits(), (settings.queue if settings is not None else None) or ""),
        tuple(dict.fromkeys(job.estimate.assumed for job in jobs if job.submitted and job.estimate.assumed)),
        tuple(left_out_of(study for study in project.chosen if study.name in studies)),
    )


def _planned(project: Project, seen: AnnouncedJob) -> PlannedJob:
    if seen.rule == "train":
        planner = project.resources.planner(seen.wildcards["machine"])
        run = project.runs.run(seen.wildcards["machine"], seen.wildcards["run"])
        spec, (known, estimate) = run.spec, planner.of(run)
        asked = _as_announced(known, seen)
        return PlannedJob(
            seen, str(seen.resources.get("study", "")), spec.strategy.name, spec.ranks, asked, estimate,
            of_run(spec, asked.nodes, asked.links), planner.expectation.again_s,
        )  # fmt: skip
    if seen.rule == "dataset":
        dataset = seen.wildcards["dataset"]
        needed, estimate = project.resources.of_dataset(dataset)
        asked = NO_REQUEST if project.prepares_data else _as_announced(needed, seen)
        written = of_dataset(project.runs.run_with(dataset).spec)
        return PlannedJob(seen, "data", "", 0, asked, estimate, written)
    return PlannedJob(seen)


def _as_announced(known: Resources, seen: AnnouncedJob) -> Resources:
    """The request that the executor gets: `--set-resources` and defaults of the profile included."""
    found: dict[str, Any] = {name: seen.resources[name] for name in NAMES if seen.resources.get(name) is not None}
    return dataclasses.replace(known, **found)


def tasks_of(jobs: Iterable[PlannedJob]) -> list[ScheduledJob]:
    """The jobs and their needs: edges follow from the files, of which a dry run names both ends."""
    jobs = list(jobs)
    makers = {file: job.seen.id for job in jobs for file in job.seen.outputs}
    return [
        ScheduledJob(
            job.seen.id,
            tuple({makers[file] for file in job.seen.inputs if file in makers}),
            job.seen.priority,
            job.resources.nodes if job.submitted else 0,
            job.resources.queue,
        )
        for job in jobs
    ]


def over_budget(plan: Plan, budget_h: float) -> bool:
    """Whether more GPU hours are to be requested than the budget has."""
    return plan.to_request(plan.submitted, "gpu") > budget_h
