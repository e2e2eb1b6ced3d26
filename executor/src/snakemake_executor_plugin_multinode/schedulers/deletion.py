"""Find the jobs that a deleting command has not deleted, in its output."""

from __future__ import annotations

import re
from collections.abc import Sequence

from snakemake_executor_plugin_multinode.schedulers.command import CommandAnswer
from snakemake_executor_plugin_multinode.schedulers.scheduler import JobRef


def not_deleted(
    jobs: Sequence[JobRef], answer: CommandAnswer, away: Sequence[str], done: re.Pattern[str]
) -> dict[str, str]:
    """By name, those of `jobs` that may still be there, each with the command's words.

    `away`: words of an unreachable scheduler. `done`: words for a job that is deleted, or gone. Any other
    line is about the jobs with numbers or names in it, or else about all of them.
    """
    if answer.code == 0:
        return {}
    text = answer.err + answer.out
    lines = [line for line in text.splitlines() if line.strip()]
    if not lines or any(words in text for words in away):
        return {job.name: answer.words for job in jobs}
    left: dict[str, str] = {}
    for line in lines:
        if not done.search(line):
            theirs = [job for job in jobs if re.search(rf"(?<![\w.]){re.escape(_called(job))}(?!\w)", line)]
            left |= {job.name: CommandAnswer(answer.code, "", line).words for job in theirs or jobs}
    return left


def _called(job: JobRef) -> str:
    """Return a job's name in such a line: the number of its id, else its name."""
    number = re.match(r"\d+", job.id) if job.id else None
    return number[0] if number else job.name
