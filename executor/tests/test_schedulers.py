"""Submit lines, site settings, and what Slurm and Grid Engine print, as it was seen on 22.05.8 and 8.1.9."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest

from running import Replies
from snakemake_executor_plugin_multinode.jobscript import requoted
from snakemake_executor_plugin_multinode.records import Attempt
from snakemake_executor_plugin_multinode.schedulers import (
    Cause,
    JobRef,
    LimitReached,
    NoAnswer,
    Refused,
    Request,
    Scheduler,
    State,
    scheduler_of,
)
from snakemake_executor_plugin_multinode.schedulers.command import CommandAnswer, of_command, run_command
from snakemake_executor_plugin_multinode.submit import hosts_to_avoid

WHOLE = Request("train.a.01", Path("/j o/x.sh"), Path("/j o/%j.log"), 2, 4, 4, 2, 64000, 90, None)
PINNED = Request("train.a.01", Path("/j/x.sh"), Path("/j/x.log"), 2, 1, 0, 1, None, None, None, hosts=("n01", "n07"))
LEAST = Request("train.a.01", Path("/j/x.sh"), Path("/j/x.log"), 1, 1, 0, 1, None, None, None)


@pytest.mark.parametrize(
    ("site", "request_", "line"),
    [
        ({"kind": "slurm", "queue": "gpu", "account": "a1"}, WHOLE,
         "sbatch|--parsable|--no-requeue|-J|train.a.01|-N|2|--ntasks-per-node=4|--cpus-per-task=2|--gpus-per-node=4|--mem=64000M|-t|90|-p|gpu|-A|a1|-o|/j o/%%j.log|/j o/x.sh"),
        ({"kind": "sge", "request": "-l f_node={nodes} [-l h_rt={walltime}]", "options": "-g group"}, WHOLE,
         "qsub|-terse|-N|train.a.01|-S|/bin/bash|-r|n|-j|y|-o|/j o/%j.log|-l|f_node=2|-l|h_rt=01:30:00|-g|group|/j o/x.sh"),
        ({"kind": "slurm"}, PINNED,
         "sbatch|--parsable|--no-requeue|-J|train.a.01|-N|2|--ntasks-per-node=1|--cpus-per-task=1|--nodelist=n01,n07|-o|/j/x.log|/j/x.sh"),
        ({"kind": "sge"}, PINNED,
         "qsub|-terse|-N|train.a.01|-S|/bin/bash|-r|n|-j|y|-o|/j/x.log|-pe|mpi|2|-l|hostname=n01|n07|/j/x.sh"),
        ({"kind": "pbs", "queue": "small", "request": "-l rscgrp={queue}"}, LEAST,
         "qsub|-N|train.a.01|-S|/bin/bash|-r|n|-j|oe|-o|/j/x.log|-l|rscgrp=small|/j/x.sh"),
        ({"kind": "pbs", "request": "-l select={nodes}:ncpus=4[:mem={mem_mb}mb] -l place=scatter:excl"}, PINNED,
         "qsub|-N|train.a.01|-S|/bin/bash|-r|n|-j|oe|-o|/j/x.log|-l|select=1:ncpus=4:host=n01+1:ncpus=4:host=n07|-l|place=scatter:excl|/j/x.sh"),
    ],
)  # fmt: skip
def test_a_request_becomes_a_submit_line(site: dict[str, Any], request_: Request, line: str) -> None:
    assert "|".join(scheduler_of(site).submit_command(request_)) == line


@pytest.mark.parametrize(
    ("kind", "script", "log"),
    [("slurm", "/a\nb", "/l"), ("slurm", "/s", "/a\\b"), ("sge", "/s", "/a$b"), ("sge", "/s", "/a:b"),
     ("sge", "/s\n", "/l"), ("pbs", "/s", "/a,b"), ("pbs", "/s", "/a:b"), ("pbs", "/s", "/ü"), ("pbs", "/s\x1b", "/l")],
)  # fmt: skip
def test_a_path_that_a_system_cannot_carry_is_refused(kind: str, script: str, log: str) -> None:
    with pytest.raises(ValueError, match="cannot take the path"):
        scheduler_of({"kind": kind}).submit_command(Request("a", Path(script), Path(log), 1, 1, 0, 1, None, None, None))


def test_a_node_that_failed_is_not_left_out_of_a_job_that_is_about_it() -> None:
    failed = Attempt("train.a.01", "7", None, node_fault=True, host="n01")
    assert hosts_to_avoid(PINNED, [failed]) == ()


def slurm(table: str, **others: str | tuple[int, str, str] | Exception) -> Scheduler:
    """A Slurm whose squeue prints a table, as replayed text."""
    return Replies(**{"squeue": table, "sacct": (1, "", "Slurm accounting storage is disabled"), **others}).scheduler(
        "slurm"
    )


@pytest.mark.parametrize(
    ("row", "state", "cause"),
    [
        ("7|PENDING|Resources||a", State.QUEUED, Cause.UNKNOWN),
        ("7|PENDING|JobHeldUser||a", State.HELD, Cause.UNKNOWN),
        ("7|PENDING|PartitionTimeLimit||a", State.NEVER, Cause.UNKNOWN),
        ("7|COMPLETING|None|node1|a", State.RUNNING, Cause.UNKNOWN),
        ("7|COMPLETED|None|node1|a", State.ENDED, Cause.FINISHED),
        ("7|TIMEOUT|TimeLimit|node1|a", State.ENDED, Cause.WALLTIME),
        ("7|CANCELLED|None|node1|a", State.ENDED, Cause.CANCELLED),
        ("7|FAILED|JobLaunchFailure|node1|a", State.ENDED, Cause.NODE),
        ("7|FAILED|NonZeroExitCode|node1|a", State.ENDED, Cause.COMMAND),
        ("7|FAILED|RaisedSignal:9(Killed)|node1|a", State.ENDED, Cause.SIGNAL),
        ("7|FAILED|RaisedSignal:53(Real-time_signal_19)|node1|a", State.ENDED, Cause.NODE),
        ("7|BRAND_NEW_STATE|None|node1|a", State.UNKNOWN, Cause.UNKNOWN),
        ("7|PENDING|launch failed requeued held||a", State.HELD, Cause.UNKNOWN),
        ("7|REVOKED|None||a", State.UNKNOWN, Cause.UNKNOWN),
    ],
)
def test_a_state_of_slurm_is_read(row: str, state: State, cause: Cause) -> None:
    status = slurm(f"9|RUNNING|None|node2|other name\n{row}\n").statuses([JobRef("a", "7")])["a"]
    assert (status.id, status.state, status.cause) == ("7", state, cause)


OURS, OTHERS = "train.a.0123456789ab", "train.b.ba9876543210"


@pytest.mark.parametrize(
    ("answer", "state"),
    [
        ((1, "", "Slurm accounting storage is disabled"), None),
        (NoAnswer("sacct: command not found"), None),
        ((1, "", "sacct: error: Problem talking to the database: Connection refused"), State.UNANSWERED),
    ],
)
def test_accounting_that_fails_is_no_answer_and_accounting_that_is_not_there_is_none(
    answer: tuple[int, str, str] | Exception, state: State | None
) -> None:
    status = slurm("9|RUNNING|None|n1|b\n", sacct=answer).statuses([JobRef("a", "7"), JobRef("b", "9")])
    assert status["b"].state is State.RUNNING
    assert (status["a"].state if "a" in status else None) is state


@pytest.mark.parametrize(
    ("config", "remembers"),
    [
        ("MinJobAge               = 300 sec\nAccountingStorageType   = accounting_storage/none\n", True),
        ("MinJobAge               = 2 sec\nAccountingStorageType   = accounting_storage/none\n", False),
        ("MinJobAge               = 2 sec\nAccountingStorageType   = accounting_storage/slurmdbd\n", True),
        (NoAnswer("scontrol did not answer within 25 s"), False),
    ],
)
def test_slurm_remembers_a_deleted_job_if_it_is_set_to(config: str | Exception, remembers: bool) -> None:
    assert slurm("", scontrol=config).keeps_history is remembers


@pytest.mark.parametrize(
    ("code", "cause", "number"),
    [("0:9", Cause.SIGNAL, 9), ("0:53", Cause.NODE, None), ("1:0", Cause.COMMAND, None)],
)
def test_a_signal_that_squeue_does_not_name_is_taken_from_scontrol(code: str, cause: Cause, number: int | None) -> None:
    scheduler = slurm("7|FAILED|None|node1|a\n", scontrol=f"JobId=7 JobState=FAILED ExitCode={code} Restarts=0\n")
    status = scheduler.statuses([JobRef("a", "7")])["a"]
    assert (status.cause, status.signal, status.nodes) == (cause, number, ("node1",))


def test_a_pbs_that_keeps_no_history_is_asked_about_the_living() -> None:
    line = f"Job Id: 7.head\x1fJob_Name={OURS}\x1fjob_state=R\n"
    none = (35, "", "qstat: PBS is not configured to maintain job history\n")
    replies = Replies(**{"qstat -x": none, "qselect -x": none, "qstat -f": line, "qselect -N": ""})
    found = replies.scheduler("pbs").statuses([JobRef(OURS, "7.head"), JobRef(OTHERS, None)])
    assert {name: status.state for name, status in found.items()} == {OURS: State.RUNNING}


def test_what_squeue_forgot_is_taken_from_the_accounting() -> None:
    """But not that a job lives: after a loss of its state, Slurm's accounting would say so for ever."""
    table = "a warning\n7|CANCELLED by 0|0:0|a\n8|FAILED|0:9|b\n10|RUNNING|0:0|d\n"
    found = slurm("", sacct=table).statuses([JobRef("a", "7"), JobRef("b", "8"), JobRef("c", "9"), JobRef("d", "10")])
    assert {name: status.cause for name, status in found.items()} == {"a": Cause.CANCELLED, "b": Cause.SIGNAL}


POLICY = "sbatch: error: Batch job submission failed: Job violates accounting/QOS policy"
SENDTO = "sbatch: error: slurm_msg_sendto: address:port=10.0.0.1:6817 msg_type=4003: Unexpected missing socket error"


# Limits of PBS: its own tests, test/tests/functional/pbs_qsub_limits.py and pbs_queued_jobs_threshold.py.
@pytest.mark.parametrize(
    ("kind", "answer", "outcome"),
    [
        ("slurm", (0, "28\n", ""), "28"),
        ("slurm", (0, "28;cluster\n", ""), "28"),
        ("sge", (0, "Warning: x\n34\n", ""), "34"),
        ("slurm", (0, "rubbish", ""), NoAnswer),
        ("slurm", (1, "", "sbatch: error: Batch job submission failed: Socket timed out on send/recv operation"), NoAnswer),
        ("slurm", (1, "", f"{SENDTO}\nsbatch: error: Batch job submission failed: Unexpected missing socket error"), NoAnswer),
        ("sge", (1, "", 'error: unable to send message to qmaster using port 6444 on host "h": got send error'), NoAnswer),
        ("pbs", (162, "", "Connection refused\nqsub: cannot connect to server pbshead (errno=111)\n"), NoAnswer),
        ("slurm", (1, "", f"sbatch: error: AssocMaxSubmitJobLimit\n{POLICY}"), LimitReached),
        ("slurm", (1, "", f"sbatch: error: QOSMaxSubmitJobPerUserLimit\n{POLICY}"), LimitReached),
        ("sge", (1, "", "Unable to run job: job rejected: only 30 jobs are allowed per user (current job count: 30)."), LimitReached),
        ("pbs", (0, "35.pbshead\n", ""), "35.pbshead"),
        ("pbs", (1, "", "qsub: would exceed queue generic's per-user limit"), LimitReached),
        ("pbs", (1, "", "qsub: Maximum number of jobs already in queue workq"), LimitReached),
        ("pbs", (1, "", "qsub: would exceed limit on resource ncpus in complex for jobs in 'Q' state"), LimitReached),
        ("slurm", (1, "", POLICY), Refused),
        ("pbs", (170, "", "qsub: Unknown queue\n"), Refused),
        ("pbs", (188, "", "qsub: Job violates queue and/or server resource limits\n"), Refused),
        ("slurm", (1, "", f"sbatch: error: QOSMaxWallDurationPerJobLimit\n{POLICY}"), Refused),
    ],
)  # fmt: skip
def test_an_answer_to_a_submission_is_an_id_a_limit_a_refusal_or_none(
    kind: str, answer: tuple[int, str, str], outcome: Any
) -> None:
    try:
        found: Any = scheduler_of({"kind": kind}, lambda _argv, _limit_s: CommandAnswer(*answer)).submit(WHOLE)
    except (LimitReached, NoAnswer, Refused) as error:
        found = type(error)
        assert not str(error).startswith(("sbatch: sbatch:", "qsub: qsub:"))
    assert found == outcome


def sge(living: str, qacct: str | tuple[int, str, str] = (1, "", "error: job id 7 not found")) -> Scheduler:
    """A Grid Engine whose qstat prints jobs, as replayed text."""
    xml = f"<?xml version='1.0'?>\n<job_info><queue_info>{living}</queue_info><job_info></job_info></job_info>"
    return Replies(qstat=xml, qacct=qacct).scheduler("sge")


@pytest.mark.parametrize(
    ("letters", "state"),
    [("qw", State.QUEUED), ("hqw", State.HELD), ("Rq", State.QUEUED), ("t", State.RUNNING), ("r", State.RUNNING), ("hr", State.RUNNING),
     ("dr", State.RUNNING), ("Rr", State.RUNNING), ("s", State.SUSPENDED), ("S", State.SUSPENDED), ("T", State.SUSPENDED),
     ("Eqw", State.NEVER), ("Ehqw", State.NEVER), ("?", State.UNKNOWN)],
)  # fmt: skip
def test_a_state_of_grid_engine_is_read(letters: str, state: State) -> None:
    job = f"<job_list><JB_job_number>7</JB_job_number><JB_name>train.some</JB_name><state>{letters}</state><full_job_name>a</full_job_name></job_list>"
    assert sge(job).statuses([JobRef("a", "7")])["a"].state is state


def record(failed: str, status: str, more: str = "") -> str:
    lines = f"jobname      a\njobnumber    7\nhostname     n1\nfailed       {failed}\nexit_status  {status}\n{more}"
    return f"Total System Usage\n{'=' * 62}\n{lines}"


@pytest.mark.parametrize(
    ("answer", "cause"),
    [
        (record("0    ", "0"), Cause.FINISHED),
        (record("0    ", "3"), Cause.COMMAND),
        (record("100 : assumedly after job", "137                  (Killed)"), Cause.SIGNAL),
        (record("37  : qmaster enforced h_rt, h_cpu, or h_vmem limit", "137", "ru_wallclock 61s\ncategory -l h_rt=60\n"), Cause.WALLTIME),
        (record("37  : qmaster enforced h_rt, h_cpu, or h_vmem limit", "137", "ru_wallclock 12s\ncategory -l h_rt=60\n"), Cause.MEMORY),
        (record("37  : qmaster enforced h_rt, h_cpu, or h_vmem limit", "137"), Cause.WALLTIME),
        (record("44  : execd enforced h_rt limit", "137", "ru_wallclock 61s\ncategory -l h_rt=60\n"), Cause.WALLTIME),
        (record("26  : opening output file", "0"), Cause.NODE),
        (record("19  : before writing exit_status", "0"), Cause.NODE),
    ],
)  # fmt: skip
def test_an_end_on_grid_engine_is_taken_from_the_accounting(answer: str, cause: Cause) -> None:
    status = sge("", qacct=answer).statuses([JobRef("a", "7")])["a"]
    assert (status.state, status.cause) == (State.ENDED, cause)


def test_a_job_of_which_the_accounting_cannot_be_searched_in_time_is_one_that_is_not_known() -> None:
    xml = "<job_info><queue_info></queue_info></job_info>"
    slow = Replies(qstat=xml, qacct=NoAnswer("qacct did not answer within 25 s")).scheduler("sge")
    assert slow.statuses([JobRef("a", "7")]) == {}


def test_a_command_that_hangs_is_given_up_with_its_children() -> None:
    begin = time.monotonic()
    with pytest.raises(NoAnswer, match=r"bash did not answer within 0\.3 s"):
        run_command(["bash", "-c", "sleep 30 & wait"], 0.3)
    assert time.monotonic() - begin < 10


def test_an_active_value_that_is_not_known_is_refused() -> None:
    with pytest.raises(ValueError, match="cannot be handed on safely"):
        requoted('python --option "it\'s $HOME"', ["other"])


@pytest.mark.parametrize(
    ("row_name", "found"),
    [(OURS, True), (f"alice_{OURS}", True), ("renamed", True), (OTHERS, False)],
    ids=["its name", "a prefix", "renamed by a hook", "its id was given to another of our jobs"],
)
def test_a_job_is_known_by_its_id_where_its_name_was_changed(row_name: str, found: bool) -> None:
    assert bool(slurm(f"7|RUNNING|None|n1|{row_name}\n").statuses([JobRef(OURS, "7")])) is found
    job = f"<job_list><JB_job_number>7</JB_job_number><state>r</state><full_job_name>{row_name}</full_job_name></job_list>"
    assert bool(sge(job).statuses([JobRef(OURS, "7")])) is found
    line = f"Job Id: 7.head\x1fJob_Name = {row_name}\x1fjob_state = R\n".replace(" = ", "=")
    pbs = Replies(qstat=line).scheduler("pbs")
    assert bool(pbs.statuses([JobRef(OURS, "7.head")])) is found


@pytest.mark.parametrize("kind", ["slurm", "sge", "pbs"])
@pytest.mark.parametrize(
    "answer", [(1, "", "Unable to contact slurm controller"), (0, "<html>rubbish</html>", ""), (1, "", "")]
)
def test_what_is_no_answer_says_nothing_about_any_job_and_deletes_none(kind: str, answer: tuple[int, str, str]) -> None:
    scheduler = scheduler_of({"kind": kind}, lambda _argv, _limit_s: CommandAnswer(*answer))
    with pytest.raises(NoAnswer):
        scheduler.statuses([JobRef("a", "7")])
    if answer[0]:
        assert list(scheduler.cancel([JobRef("a", "7")])) == ["a"]


# deletions, each job named that may still be there; and another cluster of Slurm

JOBS = [JobRef("a", "1"), JobRef("b", "2"), JobRef("c", "11")]


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
    found = Replies(**{command: (code, "", printed)}).scheduler(kind).cancel(JOBS)
    assert "".join(sorted(found)) == left
    assert all(words.startswith(("scancel: ", "qdel: ")) for words in found.values())


def test_pbs_deletes_one_job_after_the_other_since_a_list_with_a_forgotten_id_ends_its_server() -> None:
    replies = Replies(
        **{
            "qdel 1.head": (159, "", "qdel: Unauthorized Request 1.head\n"),
            "qdel 2.head": (153, "", "qdel: Unknown Job Id 2.head\n"),
            "qdel 11.head": (35, "", "qdel: Job has finished 11.head\n"),
            "qdel 12.head": (1, "", ""),
            "qdel 13.head": (162, "", "Connection refused\nCouldn't connect to cluster: head\n"),
        }
    )
    jobs = [JobRef(name, f"{number}.head") for name, number in zip("abcdef", (1, 2, 11, 12, 13, 14), strict=True)]
    away = "qdel: Connection refused Couldn't connect to cluster: head"
    left = replies.scheduler("pbs").cancel(jobs)
    silent = "qdel: exit status 1, no text"
    assert left == {"a": "qdel: Unauthorized Request 1.head", "d": silent, "e": away, "f": away}
    assert replies.calls == [f"qdel {number}.head" for number in (1, 2, 11, 12, 13)]


@pytest.mark.parametrize("options", ["-M big", "--clusters=big", "-Mbig"])
def test_another_cluster_of_slurm_is_named_in_every_call(options: str) -> None:
    table = "CLUSTER: big\n28|RUNNING|None|n1|train.a.0123456789ab\n"
    replies = Replies(squeue=table, sbatch="28;big\n", scancel="")
    scheduler, job = replies.scheduler("slurm", options=options), JobRef("train.a.0123456789ab", "28")
    assert scheduler.statuses([job])[job.name].state is State.RUNNING
    assert scheduler.cancel([job, JobRef("b", None)]) == {}
    assert all(" -M big " in call for call in replies.calls)


@pytest.mark.parametrize("options", ["-M big,small", "--clusters all"])
def test_several_clusters_of_slurm_are_refused(options: str) -> None:
    with pytest.raises(ValueError, match="several clusters of Slurm"):
        Replies().scheduler("slurm", options=options)


# environments

CALLER = {
    "PATH": "/bin", "HOME": "/home/ada", "LANG": "de_DE.UTF-8", "SLURM_CONF": "/etc/slurm.conf", "SBATCH_ACCOUNT": "lab",
    "SLURM_MEM_PER_CPU": "150", "SLURM_RESTART_COUNT": "1", "PBS_JOBID": "8.head", "PE_HOSTFILE": "/n", "RESTARTED": "1",
    "MULTINODE_JOB": "driver", "SQUEUE_USERS": "bob", "SACCT_FORMAT": "jobid", "SCANCEL_STATE": "PENDING", "SBATCH_ARRAY_INX": "1-9",
    "SLURM_TIME_FORMAT": "relative",
}  # fmt: skip
"""Environment of a driver inside a job, with variables that filter queries."""


def test_a_submission_has_what_the_caller_has_without_the_job_that_the_driver_runs_in() -> None:
    assert of_command("sbatch", CALLER) == {
        "PATH": "/bin", "HOME": "/home/ada", "LANG": "de_DE.UTF-8", "SLURM_CONF": "/etc/slurm.conf", "SBATCH_ACCOUNT": "lab",
        "SQUEUE_USERS": "bob", "SACCT_FORMAT": "jobid", "SCANCEL_STATE": "PENDING",
    }  # fmt: skip


@pytest.mark.parametrize("command", ["squeue", "sacct", "scancel", "qstat", "qdel"])
def test_a_query_is_filtered_by_nothing_and_speaks_plain_english(command: str) -> None:
    assert of_command(command, CALLER) == {
        "PATH": "/bin", "HOME": "/home/ada", "LANG": "de_DE.UTF-8", "SLURM_CONF": "/etc/slurm.conf",
        "SBATCH_ACCOUNT": "lab", "LC_ALL": "C",
    }  # fmt: skip
