"""Several clusters of one Slurm: jobs are followed and deleted where they are, and nowhere else."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest

from snakemake_executor_plugin_multinode.schedulers import JobRef, NoAnswer, State, scheduler_of
from snakemake_executor_plugin_multinode.schedulers.command import CommandAnswer

OURS = "train.a.0123456789ab"
RUNNING = f"28|RUNNING|None|n1|N/A|{OURS}\n"
ALIEN = "28|RUNNING|None|n9|N/A|somebody's own\n"


def clusters(calls: list[str], **tables: str | Exception) -> Callable[[Sequence[str], float], CommandAnswer]:
    """A Slurm with these clusters and what squeue prints for each."""

    def run(argv: Sequence[str], _limit_s: float) -> CommandAnswer:
        calls.append(" ".join(argv))
        if argv[0] == "sacctmgr":
            return CommandAnswer(0, "".join(f"{name}\n" for name in tables), "")
        if argv[0] == "sacct":
            return CommandAnswer(1, "", "Slurm accounting storage is disabled")
        if argv[0] == "squeue":
            assert argv[1] == "-M", argv
            table = tables[argv[2]]
            if isinstance(table, Exception):
                raise table
            return CommandAnswer(0, f"CLUSTER: {argv[2]}\n{table}", "")
        return CommandAnswer(0, "", "")

    return run


def test_clusters_whose_names_are_not_told_are_no_answer_and_nothing_is_deleted_anywhere() -> None:
    calls: list[str] = []

    def away(argv: Sequence[str], _limit_s: float) -> CommandAnswer:
        calls.append(argv[0])
        return CommandAnswer(1, "", "sacctmgr: error: Problem talking to the database: Connection refused")

    scheduler = scheduler_of({"kind": "slurm", "options": "-M all"}, away)
    with pytest.raises(NoAnswer, match="Problem talking to the database"):
        scheduler.statuses([JobRef(OURS, None)])
    assert list(scheduler.cancel([JobRef(OURS, None)])) == [OURS]
    assert set(calls) == {"sacctmgr"}


def test_a_cluster_that_is_away_hides_its_own_jobs_alone() -> None:
    run = clusters([], big=NoAnswer("squeue: Connection refused"), small=RUNNING)
    scheduler = scheduler_of({"kind": "slurm", "options": "-M big,small"}, run)
    jobs = [JobRef(OURS, "28;small"), JobRef("there", "5;big"), JobRef("somewhere", None), JobRef("gone", "9;small")]
    found = scheduler.statuses(jobs)
    assert {name: status.state for name, status in found.items()} == {
        OURS: State.RUNNING, "there": State.UNANSWERED, "somewhere": State.UNANSWERED,
    }  # fmt: skip


def test_the_accounting_of_each_cluster_is_asked_about_its_own_jobs() -> None:
    asked: list[str] = []

    def run(argv: Sequence[str], _limit_s: float) -> CommandAnswer:
        if argv[0] == "squeue":
            return CommandAnswer(0, "", "")
        asked.append(" ".join(word for word in argv if word not in ("-X", "-n", "-P", "-S", "-o")))
        out = f"28|COMPLETED|0:0|{OURS}\n" if argv[2] == "small" and "-j" not in argv else ""
        return CommandAnswer(0, out, "")

    scheduler = scheduler_of({"kind": "slurm", "options": "-M big,small"}, run)
    found = scheduler.statuses([JobRef(OURS, None), JobRef("b", "7;big")])
    assert found[OURS].id == "28;small"
    columns = "now-14days jobid,state,exitcode,jobname"
    assert asked == [
        f"sacct -M big {columns} -j 7", f"sacct -M big {columns} --name {OURS}", f"sacct -M small {columns} --name {OURS}",
    ]  # fmt: skip
