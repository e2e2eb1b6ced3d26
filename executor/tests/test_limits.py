"""Limits on the jobs of a user: who waits, who does not, and what lies on disk meanwhile."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from snakemake_executor_plugin_multinode.schedulers import LimitReached, Request
from test_monitor import Bench

WORDS = "qsub: would exceed per-user limit on resource ngpus in queue workq"
COUNT = "sbatch: error: AssocMaxSubmitJobLimit"


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path / ".multinode")


def at_most(bench: Bench, gpus: int) -> Callable[[Request], str]:
    """A scheduler that takes no job with more GPUs."""

    def submit(request: Request) -> str:
        if request.gpus_per_node > gpus:
            raise LimitReached(WORDS, by_size=True)
        return str(len(bench.scheduler.submitted))

    return submit


def full(request: Request) -> str:
    raise LimitReached(COUNT)


def scripts(bench: Bench) -> list[Path]:
    return list((bench.folder / "jobs").glob("*/*.sh"))


def test_a_job_too_large_for_a_limit_holds_up_those_as_large_and_no_smaller_one(bench: Bench) -> None:
    bench.scheduler.on_submit = at_most(bench, 4)
    for label, gpus in (("train large", 8), ("train larger", 9), ("train a", 4), ("train b", 1), ("train c", 0)):
        bench.add(label, gpus=gpus)
    bench.rounds(6)
    assert sum("submitted as" in line for line in bench.told.lines) == 3
    assert len(bench.scheduler.submitted) == 4  # the second large one was not tried
    bench.rounds(600)
    assert len(bench.scheduler.submitted) < 40
    assert [line for line in bench.told.lines if WORDS in line] == [
        f"train large: the scheduler does not take a job that asks for so much now ({WORDS}); it waits until others end, "
        "like those that ask for as much; smaller ones are submitted"
    ]
    assert bench.told.failures == {}


def test_while_a_job_waits_one_script_and_one_line_of_the_ledger_are_there(bench: Bench) -> None:
    bench.scheduler.on_submit = full
    bench.add(gpus=2)
    bench.rounds(1200)
    assert len(bench.scheduler.submitted) > 10
    assert len(set(bench.scheduler.submitted)) == len(scripts(bench)) == 1
    assert [event["event"] for event in bench.records.events()] == ["submitted"]
    assert bench.records.gpu_hours() == 0.0
    [job] = bench.monitor.jobs
    assert not bench.records.read(job.work.key, job.work.label).open
    bench.scheduler.on_submit = lambda request: "5"
    bench.until(lambda: "train a: submitted as 5" in bench.told.lines)
    assert bench.records.gpu_hours() == 2.0
    assert bench.records.read(job.work.key, job.work.label).attempts[0].id == "5"
    bench.end(0)
    bench.until(lambda: bench.told.done)
    assert [event["event"] for event in bench.records.events()] == ["submitted", "id", "ended"]
