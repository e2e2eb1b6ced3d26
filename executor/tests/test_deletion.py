"""Deletions that fail, each job named that may still be there; and another cluster of Slurm."""

from __future__ import annotations

import pytest

from running import Replies
from snakemake_executor_plugin_multinode.schedulers import JobRef, NoAnswer, State

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
    command = {"slurm": "scancel", "sge": "qdel", "pbs": "qdel"}[kind]
    found = Replies(**{command: (code, "", printed)}).scheduler(kind).cancel(JOBS[kind])
    assert "".join(sorted(found)) == left
    assert all(words.startswith(("scancel: ", "qdel: ")) for words in found.values())


@pytest.mark.parametrize(("kind", "command"), [("slurm", "scancel"), ("sge", "qdel"), ("pbs", "qdel")])
def test_a_deletion_that_hangs_deletes_nothing_and_names_its_command_once(kind: str, command: str) -> None:
    hanging = NoAnswer(f"{command} did not answer within 90 s")
    left = Replies(**{command: hanging}).scheduler(kind).cancel(JOBS[kind])
    assert left == dict.fromkeys("abc", str(hanging))


def test_pbs_deletes_one_job_after_the_other_since_a_list_with_a_forgotten_id_ends_its_server() -> None:
    replies = Replies(
        **{
            "qdel 1.head": (159, "", "qdel: Unauthorized Request 1.head\n"),
            "qdel 2.head": (153, "", "qdel: Unknown Job Id 2.head\n"),
            "qdel 11.head": (35, "", "qdel: Job has finished 11.head\n"),
            "qdel 13.head": (162, "", "Connection refused\nCouldn't connect to cluster: head\n"),
        }
    )
    jobs = [*JOBS["pbs"], JobRef("d", "12.head"), JobRef("e", "13.head"), JobRef("f", "14.head")]
    away = "qdel: Connection refused Couldn't connect to cluster: head"
    left = replies.scheduler("pbs").cancel(jobs)
    assert left == {"a": "qdel: Unauthorized Request 1.head", "e": away, "f": away}
    assert replies.calls == [f"qdel {number}.head" for number in (1, 2, 11, 12, 13)]


@pytest.mark.parametrize("options", ["-M big", "--clusters=big", "-Mbig"])
def test_another_cluster_of_slurm_is_named_in_every_call(options: str) -> None:
    table = "CLUSTER: big\n28|RUNNING|None|n1|N/A|train.a.0123456789ab\n"
    replies = Replies(squeue=table, sbatch="28;big\n", scancel="")
    scheduler, job = replies.scheduler("slurm", options=options), JobRef("train.a.0123456789ab", "28")
    assert scheduler.statuses([job])[job.name].state is State.RUNNING
    assert scheduler.cancel([job, JobRef("b", None)]) == {}
    assert all(" -M big " in call for call in replies.calls)


@pytest.mark.parametrize("options", ["-M big,small", "--clusters all"])
def test_several_clusters_of_slurm_are_refused(options: str) -> None:
    with pytest.raises(ValueError, match="several clusters of Slurm"):
        Replies().scheduler("slurm", options=options)
