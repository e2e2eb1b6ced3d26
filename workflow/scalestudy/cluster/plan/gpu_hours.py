"""The plan: GPU hours of the jobs in Snakemake's graph, per study, strategy and number of ranks, before any is submitted.

Every quantity is summed as a whole number of a stated unit, so that rows add up to the total to the last digit. The
percentiles of a sum are drawn (spread.py): they do not add up.

A job without an estimate counts as requested, in none of the percentiles, and in the makespan with its whole walltime.
"""

from __future__ import annotations

import dataclasses
import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from scalestudy.cluster.ledger.waits import Waits, read_waits
from scalestudy.cluster.plan import spread
from scalestudy.cluster.plan.costs import data_of
from scalestudy.cluster.plan.expected import UNKNOWN, TimeEstimate
from scalestudy.cluster.plan.planned import (
    Amounts,
    AnnouncedJob,
    Plan,
    PlannedJob,
    PlanRow,
    gpus_of,
    units_of,
)
from scalestudy.cluster.plan.schedule import QueueLimits, ScheduledJob, critical_path, makespan, starts
from scalestudy.cluster.plan.spread import Draws
from scalestudy.cluster.plan.storage import Peak, of_dataset, of_run, peak
from scalestudy.cluster.resources import LINK_MARGIN_S, NAMES, Resources
from scalestudy.spec.capacity import left_out_of
from scalestudy.spec.config import read_site

if TYPE_CHECKING:
    from scalestudy.dag.project import Project

LARGE_H = 100
FINE, COARSE = 4, 2
"""Digits of an hour: two where a plan requests 100 GPU or node hours or more, else four."""
LEAST_SCHEDULES, MOST_SCHEDULES, SCHEDULED_JOBS = 5, 200, 80_000
"""Draws that are also scheduled: so many, and between the two so that about this number of jobs is."""


def make_plan(project: Project, seen: Sequence[AnnouncedJob], jobs_at_once: int | None = None) -> Plan:
    """The plan of these jobs of a project; `jobs_at_once` is the driver's own limit."""
    name = machine_of(seen) or project.config.folder
    machine = project.resources.planner(name).machine
    drafts = sorted((_planned(project, job) for job in seen), key=lambda job: (job.seen.rule, job.name))
    submitted = [job for job in drafts if job.submitted]
    largest_s = sum(job.seconds[0] * max(gpus_of(job), job.resources.nodes) for job in submitted)
    digits = COARSE if largest_s >= 3600 * LARGE_H else FINE
    jobs = tuple(_counted(job, digits) if job.submitted else job for job in drafts)
    rows = tuple(_rows(jobs))
    settings = read_site().scheduler
    waits = Waits(read_waits(), (settings.queue if settings is not None else None) or "")
    tasks, limits = tasks_of(jobs), QueueLimits.of(machine, jobs_at_once)
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
        draws,
        _makespans(tasks, jobs, draws, limits, waits),
        waits,
        _peak(jobs, begun[2]),
        tuple(dict.fromkeys(_assumptions(project, submitted))),
        tuple(_left_out(project, rows)),
    )


def _left_out(project: Project, rows: Iterable[PlanRow]) -> list[str]:
    """What the studies of the plan name and the machine does not have."""
    planned = {row.study for row in rows}
    return left_out_of(study for study in project.chosen if study.name in planned)


def _drawn(jobs: Sequence[PlannedJob]) -> Draws:
    """Seconds [draws, jobs]; Snakemake announces jobs in any order, which must not change the numbers."""
    order = sorted(range(len(jobs)), key=lambda index: (jobs[index].seen.rule, jobs[index].name))
    found = np.zeros((spread.DRAWS, len(jobs)))
    of_job = [(job.estimate.kind, *_seconds(job.resources, job.estimate)[1:]) for job in jobs]
    found[:, order] = spread.drawn([of_job[index] for index in order])
    found += _further(jobs, found) * np.array([job.again_s for job in jobs])
    return found


def _further(jobs: Sequence[PlannedJob], seconds: Draws) -> Draws:
    """How many jobs each run needs beyond its first, if it takes so many seconds [draws, jobs]."""
    found = np.zeros_like(seconds)
    for column, job in enumerate(jobs):
        found[:, column] = further(job.resources, seconds[:, column])
    return found


def further(asked: Resources, seconds: Any) -> Any:
    """Jobs beyond the first that runs of these seconds need; none where no limit is known."""
    if not asked.runtime:
        return np.zeros_like(seconds)
    usable = max(60, 60 * asked.runtime - LINK_MARGIN_S)
    return np.where(seconds <= 60 * asked.runtime, 0, np.ceil(seconds / usable) - 1)


def _makespans(
    tasks: Sequence[ScheduledJob], jobs: Sequence[PlannedJob], draws: Draws, limits: QueueLimits, known: Waits
) -> tuple[int, int, int]:
    """Percentiles over as many of the draws as there is time for; further jobs of a chain wait in the queue, and what
    nobody knows takes its whole walltime."""
    many = max(LEAST_SCHEDULES, min(MOST_SCHEDULES, SCHEDULED_JOBS // max(1, len(jobs))))
    waits = np.array([_wait_again(job, known) for job in jobs])
    unknown = np.array([0 if job.estimate.known else job.seconds[0] for job in jobs])
    spans = []
    for row in draws[:many] + _further(jobs, draws[:many]) * waits + unknown:
        times = {job.seen.id: math.ceil(seconds) for job, seconds in zip(jobs, row, strict=True)}
        spans.append(makespan(starts(tasks, of(times), limits), tasks, of(times)))
    low, middle, high = spread.percentiles(np.array(spans, dtype=float))
    return round(low), round(middle), round(high)


def _wait_again(job: PlannedJob, known: Waits) -> float:
    """Seconds that each further job of a chain waits."""
    waited = known.of(job.resources.queue, job.resources.nodes)
    return 0.0 if waited is None else waited.median_s


def _peak(jobs: Sequence[PlannedJob], begun: Mapping[int, int]) -> Peak:
    """Storage at most at one time, if every job takes its 95th percentile."""
    submitted = [(job, begun[job.seen.id]) for job in jobs if job.submitted]
    return peak((job.stored, begin, begin + job.seconds[2]) for job, begin in submitted)


def of(times: Mapping[int, int]) -> Callable[[ScheduledJob], int]:
    """The seconds of a task."""
    return lambda task: times[task.id]


def machine_of(seen: Sequence[AnnouncedJob]) -> str | None:
    """The machine that the runs are for: a path may name another one than the configuration."""
    found = Counter(job.wildcards["machine"] for job in seen if job.rule == "train")
    return found.most_common(1)[0][0] if found else None


NO_REQUEST = Resources(0, 0, 0, 0, 0, None, None)
"""What a job of the driver's own asks its scheduler for."""


def _planned(project: Project, seen: AnnouncedJob) -> PlannedJob:
    if seen.rule == "train":
        machine = seen.wildcards["machine"]
        run = project.runs.run(machine, seen.wildcards["run"])
        known, estimate = project.resources.planner(machine).of(run)
        asked = _as_announced(known, seen)
        spec = run.spec
        study = str(seen.resources.get("study", ""))
        again_s = project.resources.planner(machine).expectation.again_s
        requested, *ends = _seconds(asked, estimate)
        low, high = (math.ceil(one + again_s * further(asked, one)) for one in ends)
        return PlannedJob(
            seen, study, spec.strategy.name, spec.ranks, asked, estimate, (requested, low, high),
            of_run(spec, asked.nodes, asked.links), again_s=again_s,
        )  # fmt: skip
    if seen.rule == "dataset":
        dataset = seen.wildcards["dataset"]
        needed, estimate = project.resources.of_dataset(dataset)
        asked = NO_REQUEST if project.prepares_data else _as_announced(needed, seen)
        written = of_dataset(project.runs.run_with(dataset).spec)
        return PlannedJob(seen, "data", "", 0, asked, estimate, _seconds(asked, estimate), written)
    return PlannedJob(seen, "", "", 0, NO_REQUEST, UNKNOWN, (0, 0, 0))


def _as_announced(known: Resources, seen: AnnouncedJob) -> Resources:
    """What the executor will get: `--set-resources` and defaults of the profile included."""
    said: dict[str, Any] = {name: seen.resources[name] for name in NAMES if seen.resources.get(name) is not None}
    return dataclasses.replace(known, **said)


def _seconds(asked: Resources, estimate: TimeEstimate) -> tuple[int, int, int]:
    """Cap an unknown duration at what the job requests: it cannot take longer."""
    requested = asked.requested_s
    high = math.ceil(estimate.high_s) if math.isfinite(estimate.high_s) else requested
    low = math.floor(estimate.low_s)
    return (requested, min(low, requested), min(high, requested)) if asked.runtime else (0, low, high)


def _counted(job: PlannedJob, digits: int) -> PlannedJob:
    def units(many: int) -> tuple[int, int, int]:
        one, low, high = (round(many * seconds * 10**digits / 3600) for seconds in job.seconds)
        return (one, low, high) if job.estimate.known else (one, 0, 0)

    amounts = Amounts(
        units(units_of(job, "gpu")),
        units(units_of(job, "node")),
        units(units_of(job, "cpu")),
        job.stored.written_bytes,
        job.stored.files,
        job.stored.to_nodes_bytes,
    )
    return dataclasses.replace(job, amounts=amounts)


def _rows(jobs: Iterable[PlannedJob]) -> list[PlanRow]:
    """Studies in the order of their first job's urgency, data first; then by strategy and ranks."""
    groups: dict[tuple[str, str, int], list[PlannedJob]] = {}
    for job in jobs:
        if job.submitted:
            groups.setdefault((job.study, job.strategy, job.ranks), []).append(job)
    urgency: dict[str, int] = {}
    for (study, _, _), group in groups.items():
        urgency[study] = max(urgency.get(study, 0), *(job.seen.priority for job in group))
    order = sorted(groups, key=lambda key: (-urgency[key[0]], key))
    return [PlanRow(*key, tuple(groups[key]), sum((job.amounts for job in groups[key]), Amounts())) for key in order]


def tasks_of(jobs: Iterable[PlannedJob]) -> list[ScheduledJob]:
    """The jobs with what each needs: edges follow from the files, of which a dry run names both ends."""
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


def _assumptions(project: Project, jobs: Iterable[PlannedJob]) -> Iterable[str]:
    for job in jobs:
        if job.seen.rule == "train":
            data = data_of(project.runs.run(job.seen.wildcards["machine"], job.seen.wildcards["run"]).spec)
            if data is not None and data.assumed:
                yield data.assumed
