"""Deletions that fail: each job that may still be there is named, and asked for again."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from snakemake_executor_plugin_multinode.schedulers import JobRef, scheduler_of
from snakemake_executor_plugin_multinode.schedulers.command import CommandAnswer

JOBS = {
    "slurm": [JobRef("a", "1"), JobRef("b", "2"), JobRef("c", "11")],
    "sge": [JobRef("a", "1"), JobRef("b", "2"), JobRef("c", "11")],
    "pbs": [JobRef("a", "1.head"), JobRef("b", "2.head"), JobRef("c", "11.head")],
}


# Slurm 22.05.8, Grid Engine 8.1.9 and OpenPBS 23.06.06 as seen.
@pytest.mark.parametrize(
    ("kind", "code", "printed", "left"),
    [
        ("slurm", 0, "", ""),
        ("slurm", 210, "scancel: error: Kill job error on job id 1: Access/permission denied\n", "a"),
        ("slurm", 1, "scancel: error: Kill job error on job id 11: Invalid job id specified\n", ""),
        ("slurm", 1, "scancel: error: Kill job error on job id 1: Job/step already completing or completed\n", ""),
        ("slurm", 1, "scancel: error: slurm_kill_job: Unable to contact slurm controller (connect failure)\n", "abc"),
        ("slurm", 1, "scancel: error: a new kind of error\n", "abc"),
        ("slurm", 1, "", "abc"),
        ("sge", 1, "alice - you do not have the necessary privileges to delete the job \"1\"\n"
                   "alice has registered the job 2 for deletion\ndenied: job \"11\" does not exist\n", "a"),
        ("sge", 0, "job 1 is already in deletion\nalice has deleted job 2\nalice has deleted job 11\n", ""),
        ("sge", 1, 'error: unable to send message to qmaster using port 11 on host "h": got send error\n', "abc"),
        ("pbs", 0, "", ""),
        ("pbs", 162, "Connection refused\nCouldn't connect to cluster: head\n", "abc"),
        ("pbs", 1, "qdel: a new kind of error\n", "abc"),
    ],
)  # fmt: skip
def test_what_was_not_deleted_is_told_by_name(kind: str, code: int, printed: str, left: str) -> None:
    scheduler = scheduler_of({"kind": kind}, lambda _argv, _limit_s: CommandAnswer(code, "", printed))
    found = scheduler.cancel(JOBS[kind])
    assert "".join(sorted(found)) == left
    assert all(words.startswith(("scancel: ", "qdel: ")) for words in found.values())


def test_pbs_deletes_one_job_after_the_other_since_a_list_with_a_forgotten_id_ends_its_server() -> None:
    printed = {
        "1.head": CommandAnswer(159, "", "qdel: Unauthorized Request 1.head\n"),
        "2.head": CommandAnswer(153, "", "qdel: Unknown Job Id 2.head\n"),
        "11.head": CommandAnswer(35, "", "qdel: Job has finished 11.head\n"),
        "12.head": CommandAnswer(0, "", ""),
        "13.head": CommandAnswer(162, "", "Connection refused\nCouldn't connect to cluster: head\n"),
    }
    asked: list[str] = []

    def run(argv: Sequence[str], _limit_s: float) -> CommandAnswer:
        command, job_id = argv
        assert command == "qdel"
        asked.append(job_id)
        return printed[job_id]

    jobs = [*JOBS["pbs"], JobRef("d", "12.head"), JobRef("e", "13.head"), JobRef("f", "14.head")]
    away = "qdel: Connection refused Couldn't connect to cluster: head"
    assert scheduler_of({"kind": "pbs"}, run).cancel(jobs) == {
        "a": "qdel: Unauthorized Request 1.head",
        "e": away,
        "f": away,
    }
    assert asked == ["1.head", "2.head", "11.head", "12.head", "13.head"]


def test_a_failure_in_one_cluster_keeps_no_other_deletion_back() -> None:
    calls: list[str] = []

    def run(argv: Sequence[str], _limit_s: float) -> CommandAnswer:
        calls.append(" ".join(argv).partition(" -u ")[0])
        if "big" in argv:
            return CommandAnswer(1, "", "scancel: error: Unable to contact slurm controller (connect failure)")
        return CommandAnswer(0, "", "")

    jobs = [JobRef("a", "1;big"), JobRef("b", "2;small"), JobRef("c", "3;small"), JobRef("d", None), JobRef("e", None)]
    found = scheduler_of({"kind": "slurm", "options": "-M big,small"}, run).cancel(jobs)
    assert calls == [
        "scancel -M big 1", "scancel -M big", "scancel -M big", "scancel -M small 2 3", "scancel -M small", "scancel -M small",
    ]  # fmt: skip
    assert sorted(found) == ["a", "d", "e"]
