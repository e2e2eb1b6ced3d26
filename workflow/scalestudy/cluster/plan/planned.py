"""The plan as a value: its jobs, what they use, and what follows from that: hours, cost, energy."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any, Literal

import numpy as np

from scalestudy.cluster.ledger.waits import Waited, Waits
from scalestudy.cluster.plan import spread
from scalestudy.cluster.plan.expected import TimeEstimate, kinds_of
from scalestudy.cluster.plan.spread import Draws
from scalestudy.cluster.plan.storage import NOTHING, Peak, Stored
from scalestudy.cluster.resources import Resources, limit_min
from scalestudy.spec.machine import Machine

SUBMITTED = ("train", "dataset")
"""Rules whose jobs go to the scheduler; the others take seconds and stay with the driver."""
Unit = Literal["gpu", "node", "cpu"]
LONG_MIN = 24 * 60
"""Minutes of a job beyond which most sites have a limit."""


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
class Amounts:
    """What jobs use: hours in units of 10^-digits, and bytes."""

    gpu: tuple[int, int, int] = (0, 0, 0)
    """Requested, all jobs at their 5th percentile, all at their 95th."""
    node: tuple[int, int, int] = (0, 0, 0)
    cpu: tuple[int, int, int] = (0, 0, 0)
    written_bytes: int = 0
    files: int = 0
    to_nodes_bytes: int = 0

    def __add__(self, other: Amounts) -> Amounts:
        return Amounts(
            _added(self.gpu, other.gpu),
            _added(self.node, other.node),
            _added(self.cpu, other.cpu),
            self.written_bytes + other.written_bytes,
            self.files + other.files,
            self.to_nodes_bytes + other.to_nodes_bytes,
        )


def _added(one: tuple[int, int, int], other: tuple[int, int, int]) -> tuple[int, int, int]:
    return one[0] + other[0], one[1] + other[1], one[2] + other[2]


@dataclass(frozen=True)
class PlannedJob:
    """One job of the plan."""

    seen: AnnouncedJob
    study: str
    strategy: str
    ranks: int
    resources: Resources
    estimate: TimeEstimate
    seconds: tuple[int, int, int]
    """Requested, expected low, expected high, over all attempts; 0 and what is requested where nobody knows."""
    stored: Stored = NOTHING
    amounts: Amounts = Amounts()
    again_s: float = 0.0
    """Start-up of each further job that it needs if it takes longer than a job may."""

    @property
    def name(self) -> str:
        """The run, the dataset, or the first file that the job makes."""
        wildcards = self.seen.wildcards
        return wildcards.get("run") or wildcards.get("dataset") or (self.seen.outputs or ("",))[0]

    @property
    def submitted(self) -> bool:
        """Whether the scheduler gets it; what asks for no node stays with the driver."""
        return self.seen.rule in SUBMITTED and self.resources.nodes > 0


@dataclass(frozen=True)
class PlanRow:
    """The jobs of one study, strategy and number of ranks."""

    study: str
    strategy: str
    ranks: int
    jobs: tuple[PlannedJob, ...]
    amounts: Amounts

    @property
    def kind(self) -> str:
        """Where the expectations come from."""
        return kinds_of(job.estimate for job in self.jobs)


@dataclass(frozen=True)
class Plan:
    """Everything that would run now."""

    machine_name: str
    scale: str
    machine: Machine
    digits: int
    jobs: tuple[PlannedJob, ...]
    rows: tuple[PlanRow, ...]
    total: Amounts
    critical_s: tuple[int, int, int]
    makespan_s: tuple[int, int, int]
    spread: Draws = field(repr=False)
    """Seconds drawn for each job [draws, jobs], in the order of `jobs`; none for those of which nobody knows."""
    makespan_percentiles_s: tuple[int, int, int]
    """10th, 50th, 90th; without waiting for the first start."""
    waits: Waits
    """What jobs of this folder waited in the queue: further jobs of a chain are expected to wait that long."""
    peak: Peak
    """Storage at most at one time."""
    assumed: tuple[str, ...] = ()
    left_out: tuple[str, ...] = ()
    """What studies name and the machine does not have."""

    @property
    def waited(self) -> list[Waited]:
        """What jobs like those of the plan have waited, each kind once; the widest first."""
        jobs = sorted(self.submitted, key=lambda job: -job.resources.nodes)
        return self.waits.kinds((job.resources.queue, job.resources.nodes) for job in jobs)

    @property
    def unknown(self) -> list[PlannedJob]:
        """The jobs that are requested, and in none of the percentiles: nobody knows what they take."""
        return [job for job in self.submitted if not job.estimate.known]

    @property
    def unlimited(self) -> bool:
        """Whether a job requests more than a day on a machine of which no longest job is known."""
        asked = [job.resources for job in self.submitted if (job.resources.runtime or 0) > LONG_MIN]
        return any(limit_min(self.machine, one.queue) is None for one in asked)

    @functools.cached_property
    def _columns(self) -> dict[int, int]:
        """The column of `spread` of each job."""
        return {job.seen.id: column for column, job in enumerate(self.jobs)}

    def percentiles(self, jobs: Sequence[PlannedJob], of: Unit) -> tuple[Decimal, Decimal, Decimal]:
        """The 10th, 50th and 90th of what these jobs take together, in GPU, node or CPU hours."""
        columns = [self._columns[job.seen.id] for job in jobs]
        many = np.array([units_of(self.jobs[column], of) for column in columns], dtype=float)
        low, middle, high = spread.percentiles(self.spread[:, columns] @ many)
        return self._hours(low), self._hours(middle), self._hours(high)

    def _hours(self, seconds: float) -> Decimal:
        return self.hours(round(seconds * 10**self.digits / 3600))

    @property
    def submitted(self) -> list[PlannedJob]:
        """The jobs that the scheduler gets."""
        return [job for job in self.jobs if job.submitted]

    @property
    def kind(self) -> str:
        """Where the expectations come from."""
        return kinds_of(job.estimate for job in self.submitted)

    def hours(self, units: int) -> Decimal:
        """Units of the plan as hours, exactly."""
        return Decimal(units).scaleb(-self.digits)

    def cost(self, jobs: Sequence[PlannedJob]) -> tuple[Decimal, Decimal, Decimal, Decimal] | None:
        """Charged if every job takes its whole walltime, and the 10th, 50th and 90th percentile, in the machine's
        currency; None where it has no prices."""
        if self.machine.prices is None:
            return None
        requested, drawn = 0.0, np.zeros(spread.DRAWS)
        for job in jobs:
            if job.submitted:
                hourly = self.machine.prices.per_hour(gpus_of(job), job.resources.nodes)
                requested += hourly * float(job.seconds[0]) / 3600
                drawn += hourly * self.spread[:, self._columns[job.seen.id]] / 3600
        one, two, three, four = (Decimal(str(round(value, 2))) for value in (requested, *spread.percentiles(drawn)))
        return one, two, three, four

    def kilowatt_hours(self) -> tuple[float, float, float] | None:
        """Percentiles of the energy of all jobs; None where the machine's power is unknown."""
        power = self.machine.power
        if power is None or (power.device_watts is None and power.node_watts is None):
            return None
        watts = [
            units_of(job, "gpu") * (power.device_watts or 0) + units_of(job, "node") * (power.node_watts or 0)
            for job in self.jobs
        ]
        return spread.percentiles(self.spread @ np.array(watts) * power.overhead / 3.6e6)


def gpus_of(job: PlannedJob) -> int:
    """GPUs that a job holds, idle ones of its nodes included."""
    return job.resources.gpus_held


def units_of(job: PlannedJob, of: Unit) -> int:
    """GPUs, nodes or cores of a job; none of one that the driver keeps."""
    asked = job.resources
    if not job.submitted:
        return 0
    return {"gpu": gpus_of(job), "node": asked.nodes, "cpu": asked.nodes * asked.ranks_per_node * asked.cpus_per_rank}[
        of
    ]


def over_budget(plan: Plan, budget_h: float) -> bool:
    """Whether the jobs ask for more GPU hours than the budget."""
    return plan.hours(plan.total.gpu[0]) > Decimal(str(budget_h))
