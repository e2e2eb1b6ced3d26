"""When a batch system would start a job that is not submitted: only Slurm answers that."""

from __future__ import annotations

import re
from datetime import datetime

from snakemake_executor_plugin_multinode.schedulers.command import NoAnswer
from snakemake_executor_plugin_multinode.schedulers.scheduler import Refused, Request, Scheduler

START = re.compile(r"\bto start at (\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d)")
"""sbatch(1), `--test-only`: `sbatch: Job 5 to start at 2026-11-23T09:00:00 using 16 processors on nodes node1 in …`."""


def expected_start(scheduler: Scheduler, request: Request) -> float:
    """Unix seconds at which the job would start if nothing else came: `sbatch --test-only` of its own submit line.

    The script has to exist; nothing is submitted. Refused if the scheduler would not take the job; NoAnswer where it cannot
    be asked.
    """
    if scheduler.kind != "slurm":
        raise NoAnswer(f"{scheduler.kind} does not say when a job would start")
    words = [word for word in scheduler.submit_command(request) if word != "--parsable"]
    answer = scheduler.run([words[0], "--test-only", *words[1:]], scheduler.query_s)
    found = START.search(answer.err + answer.out)
    if found is not None:
        return datetime.fromisoformat(found[1]).timestamp()
    if "allocation failure" in answer.err:
        raise Refused(f"sbatch --test-only: {answer.words}")
    raise NoAnswer(f"sbatch --test-only: {answer.words}")
