"""The doctor's job: what it requests, what a refusal means, and that no doctor leaves one behind."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from scalestudy.cluster.doctor.probe_job import in_queue, probe_request, remedy, submitted
from scalestudy.errors import UserError
from scalestudy.spec.machine import Machine, Queue
from snakemake_executor_plugin_multinode.schedulers import JobRef, scheduler_of
from snakemake_executor_plugin_multinode.schedulers.command import CommandAnswer, NoAnswer

BY_QUEUE = {"kind": "pbs", "request": "-l rscgrp={queue} -l select={nodes}"}
TAKEN = CommandAnswer(0, "7.head\n", "")
TWO_QUEUES = Machine(nodes=20, queues={"small": Queue(most_nodes=8), "large": Queue(least_nodes=9)})


class Recorded:
    """A PBS of text: what was called, and what qsub answers."""

    def __init__(self, answer: CommandAnswer = TAKEN) -> None:
        self.answer = answer
        self.calls: list[str] = []

    def __call__(self, argv: Sequence[str], _limit_s: float) -> CommandAnswer:
        self.calls.append(" ".join(argv))
        return self.answer if argv[0] == "qsub" else CommandAnswer(0, "", "")

    def called(self, command: str) -> list[str]:
        return [call for call in self.calls if call.startswith(command)]


def begun(folder: Path, run: Any, machine: Machine = TWO_QUEUES, nodes: int = 2) -> Any:
    return submitted(scheduler_of(BY_QUEUE, run), probe_request("probe", folder, machine, nodes), "site.yaml")


@pytest.mark.parametrize(("nodes", "queue"), [(2, "small"), (12, "large")])
def test_the_job_goes_into_the_first_queue_that_takes_so_many_nodes(tmp_path: Path, nodes: int, queue: str) -> None:
    run = Recorded()
    with begun(tmp_path, run, nodes=nodes):
        pass
    assert f"-l rscgrp={queue} -l select={nodes}" in run.called("qsub")[0]


@pytest.mark.parametrize(
    ("answer", "machine", "what", "todo"),
    [
        (CommandAnswer(0, "", ""), Machine(nodes=2), "needs {queue}, which this job does not have", "name the queues in the machine file"),
        (CommandAnswer(1, "", "qsub: Unknown resource: ngpus"), TWO_QUEUES, "Unknown resource: ngpus", "leave `ngpus`, which this scheduler does not know, out of"),
        (CommandAnswer(1, "", "qsub: Unauthorized Request"), TWO_QUEUES, "Unauthorized Request", "correct `scheduler` there"),
        (CommandAnswer(1, "", "qsub: would exceed queue small's per-user limit"), TWO_QUEUES, "takes no more jobs of yours", "try again"),
    ],
)  # fmt: skip
def test_a_job_that_cannot_be_submitted_is_a_sentence_with_what_to_do(
    tmp_path: Path, answer: CommandAnswer, machine: Machine, what: str, todo: str
) -> None:
    run = Recorded(answer)
    with pytest.raises(UserError) as caught, begun(tmp_path, run, machine):
        pass
    assert what in caught.value.what
    assert todo in caught.value.remedy
    assert run.called("qdel") == []


def test_grid_engine_says_it_in_other_letters() -> None:
    assert "leave `exclusive`, which this scheduler does not know, out of" in remedy(
        'Unable to run job: unknown resource "exclusive". Exiting.', "config/machines/mine.yaml"
    )


def test_a_job_that_is_over_is_not_deleted_and_one_that_is_not_is(tmp_path: Path) -> None:
    run = Recorded()
    (tmp_path / "status").mkdir()
    with begun(tmp_path, run):
        (tmp_path / "status/probe.ended").write_text("exit=0\nbegan=1\nended=2\n")
    assert run.called("qdel") == []
    (tmp_path / "status/probe.ended").unlink()
    with begun(tmp_path, run):
        pass
    assert run.called("qdel") == ["qdel 7.head"]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_doctor_that_is_told_to_end_deletes_its_job(tmp_path: Path, number: int) -> None:
    run, before = Recorded(), signal.getsignal(number)
    with pytest.raises(SystemExit) as caught, begun(tmp_path, run):
        os.kill(os.getpid(), number)
        time.sleep(5)  # the signal comes at once
    assert caught.value.code == 128 + number
    assert run.called("qdel") == ["qdel 7.head"]
    assert signal.getsignal(number) is before


def test_a_deletion_that_fails_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def run(argv: Sequence[str], _limit_s: float) -> CommandAnswer:
        if argv[0] == "qdel":
            raise NoAnswer("qdel: Connection refused")
        return CommandAnswer(0, "7.head\n", "")

    with begun(tmp_path, run):
        pass
    assert "the job may still be there: qdel: Connection refused" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("kind", "answer", "missing"),
    [
        ("pbs", CommandAnswer(1, "", "qstat: Job history is not set on this server; job history"), "job_history_enable is off"),
        ("pbs", CommandAnswer(0, "", ""), ""),
        ("slurm", CommandAnswer(0, "MinJobAge = 2 sec\nAccountingStorageType = accounting_storage/none\n", ""), "MinJobAge below 60 s"),
        ("slurm", CommandAnswer(0, "MinJobAge = 300 sec\n", ""), ""),
        ("slurm", CommandAnswer(1, "", "Unable to contact slurm controller"), ""),
        ("sge", CommandAnswer(0, "", ""), ""),
    ],
)  # fmt: skip
def test_a_scheduler_that_keeps_no_record_of_jobs_that_are_over_is_named(
    kind: str, answer: CommandAnswer, missing: str
) -> None:
    said = scheduler_of({"kind": kind}, lambda _argv, _limit_s: answer).missing_history()
    assert missing in said
    assert bool(said) is bool(missing)


QSTAT = """<?xml version='1.0'?>
<job_info><queue_info></queue_info><job_info><job_list state="pending"><JB_job_number>1</JB_job_number>
<JB_name>probe</JB_name><state>qw</state></job_list></job_info></job_info>
"""
QSTAT_J = """==============================================================
job_number:                 1
parallel environment:  two range: 16
scheduling info:            cannot run in PE "two" because it only offers 4 slots
                            queue instance "all.q@n1" dropped because it is full
"""


def test_why_a_job_waits_is_said_in_the_words_of_grid_engine() -> None:
    def run(argv: Sequence[str], _limit_s: float) -> CommandAnswer:
        return CommandAnswer(0, QSTAT if "-xml" in argv else QSTAT_J, "")

    said = in_queue(scheduler_of({"kind": "sge"}, run), JobRef("probe", "1"))
    assert said == (
        'qw: cannot run in PE "two" because it only offers 4 slots; queue instance "all.q@n1" dropped because it is full'
    )


def test_that_nothing_is_known_of_a_job_that_waits_is_said() -> None:
    def silent(_argv: Sequence[str], _limit_s: float) -> CommandAnswer:
        raise NoAnswer("qstat: timed out")

    assert in_queue(scheduler_of({"kind": "sge"}, silent), JobRef("probe", "1")) == (
        "the scheduler does not answer: qstat: timed out"
    )
