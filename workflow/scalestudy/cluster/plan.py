"""The plan: what the jobs of a dry run will cost, per study, strategy and number of ranks, before the first is submitted.

Every quantity is summed as a whole number of a stated unit, so that rows add up to the total to the last digit. The
percentiles of a sum are drawn (spread.py): they do not add up.

What nobody knows is not summed: of the runs that do the same to each sample, the one that the driver starts first is
planned as a short calibration run, and the others wait for what it says.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from scalestudy.cluster import spread
from scalestudy.cluster.costs import data_of, model_cost, stored_bytes, work_of
from scalestudy.cluster.expected import UNKNOWN, Estimate, kinds_of, like_key
from scalestudy.cluster.resources import NAMES, Resources, of_build
from scalestudy.cluster.schedule import Limits, Task, critical_path, makespan, starts
from scalestudy.cluster.spread import Draws
from scalestudy.cluster.used import queue_wait, read_waits
from scalestudy.spec.charge import charge
from scalestudy.spec.machine import Machine
from scalestudy.spec.study import Run

if TYPE_CHECKING:
    from scalestudy.dag.project import Project

SUBMITTED = ("train", "dataset", "horovod")
"""Rules whose jobs go to the scheduler; the others take seconds and stay with the driver."""
LARGE_H = 100
FINE, COARSE = 4, 2
"""Digits of an hour: two where a plan requests 100 GPU or node hours or more, else four."""
Unit = Literal["gpu", "node", "cpu"]
LEAST_SCHEDULES, MOST_SCHEDULES, SCHEDULED_JOBS = 5, 200, 80_000
"""Draws that are also scheduled: so many, and between the two so that about this number of jobs is."""
RESULT_BYTES = 200_000
STEP_BYTES = 60
"""Approximate bytes that a run leaves in addition to its weights: result, system samples, a row per rank and step."""


@dataclass(frozen=True)
class Seen:
    """A job that a dry run announced."""

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
    to_nodes_bytes: int = 0

    def __add__(self, other: Amounts) -> Amounts:
        return Amounts(
            _added(self.gpu, other.gpu),
            _added(self.node, other.node),
            _added(self.cpu, other.cpu),
            self.written_bytes + other.written_bytes,
            self.to_nodes_bytes + other.to_nodes_bytes,
        )


def _added(one: tuple[int, int, int], other: tuple[int, int, int]) -> tuple[int, int, int]:
    return one[0] + other[0], one[1] + other[1], one[2] + other[2]


@dataclass(frozen=True)
class PlannedJob:
    """One job of the plan."""

    seen: Seen
    study: str
    strategy: str
    ranks: int
    resources: Resources
    estimate: Estimate
    seconds: tuple[int, int, int]
    """Requested, expected low, expected high, over all attempts."""
    written_bytes: int
    to_nodes_bytes: int
    amounts: Amounts = Amounts()
    like: str = ""
    """The same for runs of unknown time that do the same to each sample; empty for all others."""
    awaits: str = ""
    """The calibration run without which nothing is known of this one: it is not in the sums."""

    @property
    def name(self) -> str:
        """The run, the dataset, or the first file that the job makes."""
        wildcards = self.seen.wildcards
        return wildcards.get("run") or wildcards.get("dataset") or (self.seen.outputs or ("",))[0]

    @property
    def submitted(self) -> bool:
        """Whether the scheduler gets it."""
        return self.seen.rule in SUBMITTED


@dataclass(frozen=True)
class Row:
    """The jobs of one study, strategy and number of ranks."""

    study: str
    strategy: str
    ranks: int
    jobs: tuple[PlannedJob, ...]
    amounts: Amounts

    @property
    def kind(self) -> str:
        """Where the expectations come from."""
        return kinds_of(job.estimate for job in self.jobs if job.seen.rule == "train")


@dataclass(frozen=True)
class Plan:
    """Everything that would run now."""

    machine_name: str
    scale: str
    machine: Machine
    digits: int
    jobs: tuple[PlannedJob, ...]
    rows: tuple[Row, ...]
    total: Amounts
    critical_s: tuple[int, int, int]
    makespan_s: tuple[int, int, int]
    begun: tuple[Mapping[int, int], Mapping[int, int], Mapping[int, int]] = field(repr=False)
    spread: Draws = field(repr=False)
    """Seconds drawn for each job [draws, jobs], in the order of `jobs`."""
    makespan_percentiles_s: tuple[int, int, int]
    """10th, 50th, 90th; without waiting for the first start."""
    wait_s: float | None
    """Median wait in the queue of the jobs that this folder submitted: what further jobs of a chain wait."""
    assumed: tuple[str, ...] = ()
    left_out: tuple[str, ...] = ()
    """What studies name and the machine does not have."""

    @property
    def awaiting(self) -> list[PlannedJob]:
        """The runs that are not in the sums."""
        return [job for job in self.jobs if job.awaits]

    @functools.cached_property
    def _columns(self) -> dict[int, int]:
        """The column of `spread` of each job."""
        return {job.seen.id: column for column, job in enumerate(self.jobs)}

    def percentiles(self, jobs: Sequence[PlannedJob], of: Unit) -> tuple[Decimal, Decimal, Decimal]:
        """The 10th, 50th and 90th of what these jobs take together, in GPU, node or CPU hours."""
        columns = [self._columns[job.seen.id] for job in jobs]
        many = np.array([_many(self.jobs[column], of) for column in columns], dtype=float)
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
        return kinds_of(job.estimate for job in self.jobs if job.seen.rule == "train")

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
            if job.submitted and not job.awaits:
                requested += float(charged(self.machine, job, np.array(float(job.seconds[0]))))
                drawn += charged(self.machine, job, self.spread[:, self._columns[job.seen.id]])
        one, two, three, four = (Decimal(str(round(value, 2))) for value in (requested, *spread.percentiles(drawn)))
        return one, two, three, four

    def kilowatt_hours(self) -> tuple[float, float, float] | None:
        """Percentiles of the energy of all jobs; None where the machine's power is unknown."""
        power = self.machine.power
        if power is None or (power.device_watts is None and power.node_watts is None):
            return None
        watts = [
            _many(job, "gpu") * (power.device_watts or 0) + _many(job, "node") * (power.node_watts or 0)
            for job in self.jobs
        ]
        return spread.percentiles(self.spread @ np.array(watts) * power.overhead / 3.6e6)


NUMPY = {"min": np.minimum, "max": np.maximum, "ceil": np.ceil, "floor": np.floor}


def charged(machine: Machine, job: PlannedJob, used_s: Draws) -> Draws:
    """What a job costs that uses so many seconds, each job of a chain charged for its part."""
    prices, asked = machine.prices, job.resources
    assert prices is not None
    hourly = _gpus(job) * (prices.per_device_hour or 0) + asked.nodes * (prices.per_node_hour or 0)
    total: Draws = hourly * used_s / 3600
    queue = machine.queues.get(asked.queue or "")
    formula = (queue.charge if queue is not None else None) or prices.charge
    if formula is not None:
        cores = asked.nodes * asked.ranks_per_node * asked.cpus_per_rank
        values = {"used_s": used_s / asked.links, "requested_s": 60.0 * (asked.runtime or 0),
                  "nodes": asked.nodes, "gpus": _gpus(job), "cores": cores}  # fmt: skip
        total = total + asked.links * charge(formula, values, NUMPY)
    factor = prices.factors.get(asked.queue or "", 1.0) * prices.factors.get(prices.qos or "", 1.0)
    return total * factor


def make_plan(project: Project, seen: Sequence[Seen], jobs_at_once: int | None = None) -> Plan:
    """The plan of the jobs that a dry run of this project announced; `jobs_at_once` is the driver's own limit."""
    name = machine_of(seen) or project.config.folder
    machine = project.resources.planner(name).machine
    drafts = _calibrated([_planned(project, job) for job in seen])
    submitted = [job for job in drafts if job.submitted]
    largest_s = sum(job.seconds[0] * max(_gpus(job), job.resources.nodes) for job in submitted)
    digits = COARSE if largest_s >= 3600 * LARGE_H else FINE
    jobs = tuple(_counted(job, digits) if job.submitted else job for job in drafts)
    rows = tuple(_rows(jobs))
    wait_s = queue_wait(read_waits())
    tasks, limits = tasks_of(jobs), Limits.of(machine, jobs_at_once)
    draws = _drawn(jobs)
    times = [{job.seen.id: job.seconds[index] for job in jobs} for index in range(3)]
    begun = [starts(tasks, of(each), limits) for each in times]
    critical = [critical_path(tasks, of(each)) for each in times]
    spans = [makespan(one, tasks, of(each)) for one, each in zip(begun, times, strict=True)]
    return Plan(
        name,
        project.config.scale,
        machine,
        digits,
        jobs,
        rows,
        sum((row.amounts for row in rows), Amounts()),
        (critical[0], critical[1], critical[2]),
        (spans[0], spans[1], spans[2]),
        (begun[0], begun[1], begun[2]),
        draws,
        _makespans(tasks, jobs, draws, limits, wait_s or 0.0),
        wait_s,
        tuple(dict.fromkeys(_assumptions(project, submitted))),
        tuple(_left_out(project, rows)),
    )


def _left_out(project: Project, rows: Iterable[Row]) -> Iterator[str]:
    """What the studies of the plan name and the machine does not have."""
    planned = {row.study for row in rows}
    for study in project.chosen:
        if study.name in planned:
            yield from (f"{study.name}: {said}" for said in study.left_out)


def _calibrated(drafts: Sequence[PlannedJob]) -> list[PlannedJob]:
    """Of the runs of unknown time that are alike, all but the most urgent wait for it and count as nothing."""
    first: dict[str, PlannedJob] = {}
    for job in sorted(drafts, key=lambda job: -job.seen.priority):
        if job.like:
            first.setdefault(job.like, job)
    return [
        job
        if not job.like or first[job.like] is job
        else dataclasses.replace(job, awaits=first[job.like].name, seconds=(0, 0, 0))
        for job in drafts
    ]


def _drawn(jobs: Sequence[PlannedJob]) -> Draws:
    """Seconds [draws, jobs]; Snakemake announces jobs in any order, which must not change the numbers."""
    order = sorted(range(len(jobs)), key=lambda index: (jobs[index].seen.rule, jobs[index].name))
    found = np.zeros((spread.DRAWS, len(jobs)))
    found[:, order] = spread.drawn([(jobs[index].estimate.kind, *jobs[index].seconds[1:]) for index in order])
    return found


def _makespans(
    tasks: Sequence[Task], jobs: Sequence[PlannedJob], draws: Draws, limits: Limits, wait_s: float
) -> tuple[int, int, int]:
    """Percentiles over as many of the draws as there is time for; further jobs of a chain wait in the queue."""
    many = max(LEAST_SCHEDULES, min(MOST_SCHEDULES, SCHEDULED_JOBS // max(1, len(jobs))))
    waits = np.array([wait_s * (job.resources.links - 1) for job in jobs])
    spans = []
    for row in draws[:many] + waits:
        times = {job.seen.id: math.ceil(seconds) for job, seconds in zip(jobs, row, strict=True)}
        spans.append(makespan(starts(tasks, of(times), limits), tasks, of(times)))
    low, middle, high = spread.percentiles(np.array(spans, dtype=float))
    return round(low), round(middle), round(high)


def of(times: Mapping[int, int]) -> Callable[[Task], int]:
    """The seconds of a task."""
    return lambda task: times[task.id]


def machine_of(seen: Sequence[Seen]) -> str | None:
    """The machine that the runs are for: a path may name another one than the configuration."""
    found = Counter(job.wildcards["machine"] for job in seen if job.rule == "train")
    return found.most_common(1)[0][0] if found else None


def _planned(project: Project, seen: Seen) -> PlannedJob:
    if seen.rule == "train":
        machine = seen.wildcards["machine"]
        run = project.runs.run(machine, seen.wildcards["run"])
        known, estimate = project.resources.planner(machine).of(run)
        asked = _as_announced(known, seen)
        spec = run.spec
        study = str(seen.resources.get("study", ""))
        like = "" if estimate.known else f"{machine} {like_key(spec.plain())}"
        return PlannedJob(
            seen, study, spec.strategy.name, spec.ranks, asked, estimate, _seconds(asked, estimate),
            *_run_bytes(run, asked), like=like,
        )  # fmt: skip
    if seen.rule == "dataset":
        dataset = seen.wildcards["dataset"]
        asked = _as_announced(project.resources.of_dataset(dataset), seen)
        written = stored_bytes(project.runs.run_with(dataset).spec)
        return PlannedJob(seen, "data", "", 0, asked, UNKNOWN, _seconds(asked, UNKNOWN), written, 0)
    if seen.rule in SUBMITTED:
        machine_file = project.resources.planner(seen.wildcards["machine"]).machine
        asked = _as_announced(of_build(machine_file), seen)
        return PlannedJob(seen, "builds", "", 0, asked, UNKNOWN, _seconds(asked, UNKNOWN), 0, 0)
    nothing = Resources(0, 0, 0, 0, 0, None, None)
    return PlannedJob(seen, "", "", 0, nothing, UNKNOWN, (0, 0, 0), 0, 0)


def _as_announced(known: Resources, seen: Seen) -> Resources:
    """What the executor will get: `--set-resources` and defaults of the profile included."""
    said: dict[str, Any] = {name: seen.resources[name] for name in NAMES if seen.resources.get(name) is not None}
    return dataclasses.replace(known, **said)


def _seconds(asked: Resources, estimate: Estimate) -> tuple[int, int, int]:
    """Cap an unknown duration at what the job requests: it cannot take longer."""
    requested = asked.requested_s
    high = math.ceil(estimate.high_s) if math.isfinite(estimate.high_s) else requested
    low = math.floor(estimate.low_s)
    return (requested, min(low, requested), min(high, requested)) if asked.runtime else (0, low, high)


def _gpus(job: PlannedJob) -> int:
    return job.resources.gpus_held


def _many(job: PlannedJob, of: Unit) -> int:
    """GPUs, nodes or cores of a job; none of one that the driver keeps."""
    asked = job.resources
    if not job.submitted:
        return 0
    return {"gpu": _gpus(job), "node": asked.nodes, "cpu": asked.nodes * asked.ranks_per_node * asked.cpus_per_rank}[of]


def _counted(job: PlannedJob, digits: int) -> PlannedJob:
    def units(many: int) -> tuple[int, int, int]:
        one, low, high = (round(many * seconds * 10**digits / 3600) for seconds in job.seconds)
        return one, low, high

    amounts = Amounts(
        units(_many(job, "gpu")),
        units(_many(job, "node")),
        units(_many(job, "cpu")),
        job.written_bytes,
        job.to_nodes_bytes,
    )
    return dataclasses.replace(job, amounts=amounts)


def _rows(jobs: Iterable[PlannedJob]) -> list[Row]:
    """Studies in the order of their first job's urgency, data first; then by strategy and ranks."""
    groups: dict[tuple[str, str, int], list[PlannedJob]] = {}
    for job in jobs:
        if job.submitted:
            groups.setdefault((job.study, job.strategy, job.ranks), []).append(job)
    urgency: dict[str, int] = {}
    for (study, _, _), group in groups.items():
        urgency[study] = max(urgency.get(study, 0), *(job.seen.priority for job in group))
    order = sorted(groups, key=lambda key: (-urgency[key[0]], key))
    return [Row(*key, tuple(groups[key]), sum((job.amounts for job in groups[key]), Amounts())) for key in order]


def tasks_of(jobs: Iterable[PlannedJob]) -> list[Task]:
    """The jobs with what each needs: edges follow from the files, of which a dry run names both ends."""
    jobs = list(jobs)
    makers = {file: job.seen.id for job in jobs for file in job.seen.outputs}
    return [
        Task(
            job.seen.id,
            tuple({makers[file] for file in job.seen.inputs if file in makers}),
            job.seen.priority,
            job.resources.nodes if job.submitted else 0,
            job.resources.queue,
        )
        for job in jobs
    ]


def _run_bytes(run: Run, asked: Resources) -> tuple[int, int]:
    """Roughly what a run writes, and the data that is read on its nodes."""
    spec, data, cost = run.spec, data_of(run.spec), model_cost(run.spec)
    parameters = cost.parameters if cost else 0
    written = RESULT_BYTES + (4 * parameters if spec.keep == "weights" else 0)
    if data is None:
        return written, 0
    work = work_of(spec, data)
    written += STEP_BYTES * spec.ranks * work.steps
    if asked.links > 1:
        written += 8 * parameters  # the last checkpoint: weights and momentum
    samples = work.steps * spec.global_batch + work.evaluated_samples + work.loaded_samples * spec.ranks
    return written, round(samples * data.train_bytes / max(1, data.train_samples))


def _assumptions(project: Project, jobs: Iterable[PlannedJob]) -> Iterable[str]:
    for job in jobs:
        if job.seen.rule == "train":
            data = data_of(project.runs.run(job.seen.wildcards["machine"], job.seen.wildcards["run"]).spec)
            if data is not None and data.assumed:
                yield data.assumed


def over_budget(plan: Plan, budget_h: float) -> bool:
    """Whether the jobs ask for more GPU hours than the budget."""
    return plan.hours(plan.total.gpu[0]) > Decimal(str(budget_h))


def read_seen(records: Iterable[Mapping[str, Any]]) -> list[Seen]:
    """Jobs from what Snakemake's JOB_INFO events hold."""
    return [
        Seen(
            int(record["jobid"]),
            str(record["rule_name"]),
            dict(record["wildcards"] or {}),
            tuple(map(str, record["input"])),
            tuple(map(str, record["output"])),
            {name: value for name, value in record["resources"].items() if name in (*NAMES, "study")},
            int(record["priority"]) if not isinstance(record["priority"], str) else 10**9,
        )
        for record in records
    ]
