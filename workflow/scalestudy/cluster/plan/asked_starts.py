"""When the scheduler would start jobs of the plan's sizes, if they were submitted now: asked, nothing is submitted."""

from __future__ import annotations

import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from scalestudy.cluster.plan.planned import Plan, PlannedJob
from scalestudy.cluster.submit import scheduler_of_site
from scalestudy.errors import UserError

if TYPE_CHECKING:
    from snakemake_executor_plugin_multinode.schedulers import Scheduler

MOST_SIZES = 12
"""Different sizes of jobs that are asked about: each is a question to the scheduler."""


@dataclass(frozen=True)
class AskedStart:
    """What the scheduler said about one size of job."""

    nodes: int
    runtime_min: int | None
    queue: str
    jobs: int
    """Jobs of the plan that have this size."""
    in_s: float | None
    """Seconds from now to the start; None where it did not say."""
    words: str
    """Why not."""


def ask_starts(plan: Plan) -> list[AskedStart]:
    """One question for each size of job (queue, nodes, walltime), the most frequent first, at most MOST_SIZES. UserError
    where the profile names no scheduler, or one that does not answer such questions."""
    scheduler: Scheduler | None = scheduler_of_site()
    if scheduler is None:
        raise UserError(
            "the profile names no scheduler that could be asked", "--ask-scheduler", "name another --profile"
        )
    if scheduler.kind != "slurm":
        remedy = "leave it out: the plan then has the waits of this folder's own jobs"
        raise UserError(f"{scheduler.kind} does not say when a job would start", "--ask-scheduler", remedy)
    with tempfile.TemporaryDirectory(prefix="scalestudy-ask-") as folder:
        return list(_asked(scheduler, plan.submitted, Path(folder)))


def _asked(scheduler: Scheduler, jobs: Sequence[PlannedJob], folder: Path) -> Iterator[AskedStart]:
    from snakemake_executor_plugin_multinode.resources import request_of
    from snakemake_executor_plugin_multinode.schedulers import NoAnswer, Refused
    from snakemake_executor_plugin_multinode.schedulers.expected_start import expected_start

    script = folder / "ask.sh"
    script.write_text("#!/bin/bash\n", encoding="utf-8")
    sizes: dict[tuple[int, int | None, str | None], PlannedJob] = {}
    counts: Counter[tuple[int, int | None, str | None]] = Counter()
    for job in jobs:
        key = job.resources.nodes, job.resources.runtime, job.resources.queue
        sizes.setdefault(key, job)
        counts[key] += 1
    for key, count in counts.most_common(MOST_SIZES):
        nodes, runtime, queue = key
        queue = queue or scheduler.settings.queue or ""
        in_s, words = None, ""
        try:
            request = request_of(sizes[key].resources.plain(), 1, "scalestudy-ask", script, folder / "ask.log")
            in_s = max(0.0, expected_start(scheduler, request) - time.time())
        except (NoAnswer, Refused, ValueError) as error:
            words = str(error)
        yield AskedStart(nodes, runtime, queue, count, in_s, words)
