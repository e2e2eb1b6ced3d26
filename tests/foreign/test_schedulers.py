"""Output of schedulers, recorded and damaged: no wrong answer about a job, and no other job's answer hidden.

Damaged output means no answer (NoAnswer), or the answer of its undamaged part. It never ends a running job.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping

import pytest

from scalestudy.cluster.doctor.facts import facts_of
from snakemake_executor_plugin_multinode.schedulers import Cause, JobRef, NoAnswer, State, scheduler_of
from tests.unit.cluster.recorded_sites import PBS, SGE, SLURM, Recorded

A, B = "train.a.0123456789ab", "train.b.ba9876543210"
JOBS, PBS_JOBS = [JobRef(A, "7"), JobRef(B, "8")], [JobRef(A, "7.head"), JobRef(B, "8.head")]
SQUEUE = f"7|RUNNING|None|n1|{A}\n8|COMPLETED|None|n2|{B}\n"
SACCT = f"7|COMPLETED|0:0|{A}\n8|FAILED|3:0|{B}\n"
XML = (
    "<?xml version='1.0'?>\n<job_info><queue_info>"
    f"<job_list><JB_job_number>7</JB_job_number><state>r</state><full_job_name>{A}</full_job_name></job_list>"
    "</queue_info></job_info>\n"
)
QACCT = f"{'=' * 62}\nqname        all.q\nhostname     n2\njobname      {B}\njobnumber    8\nfailed       0\nexit_status  0\n"


def pbs_line(number: int, name: str, state: str, **more: str) -> str:
    fields = {"Job_Name": name, "job_state": state, **more}
    return "\x1f".join([f"Job Id: {number}.head", *(f"{key}={value}" for key, value in fields.items())]) + "\n"


QSTAT = pbs_line(7, A, "R", substate="42") + pbs_line(8, B, "F", substate="92", Exit_status="0")
SOURCES: dict[str, tuple[str, str, Mapping[str, str], list[JobRef]]] = {
    "squeue": ("slurm", "squeue", {"squeue": SQUEUE}, JOBS),
    "sacct": ("slurm", "sacct", {"squeue": "", "sacct": SACCT}, JOBS),
    "qstat -xml": ("sge", "qstat", {"qstat": XML, "qacct": QACCT}, JOBS),
    "qacct": ("sge", "qacct", {"qstat": XML, "qacct": QACCT}, JOBS),
    "qstat -f": ("pbs", "qstat", {"qstat": QSTAT}, PBS_JOBS),
}  # fmt: skip
"""The scheduler, the command with damaged output, the output of all its commands, and the jobs of the query."""
DAMAGES: dict[str, Callable[[str], str]] = {
    "nothing": lambda out: "",
    "cut in half": lambda out: out[: len(out) // 2],
    "cut by two bytes": lambda out: out[:-2],
    "a page": lambda out: "<html><body>503 Service Unavailable</body></html>\n",
    "no text": lambda out: b"\x80\x81\xff\0".decode(errors="replace") * 1000,
    "after a megabyte of other lines": lambda out: "noise of another kind\n" * 50_000 + out,
    "numbers of ten thousand digits": lambda out: out.replace("7", "7" * 10_000),
    "statuses in words": lambda out: out.replace("=0", "=many").replace("  0", "  many").replace("3:0", "x:y"),
    "digits of another script": lambda out: out.replace("7", "\u0667").replace("8", "\u00b2"),
    "unknown states": lambda out: out.replace("RUNNING", "DREAMING").replace("COMPLETED", "GONE").replace("=R", "=?"),
    "escape sequences": lambda out: out.replace("n1", "\x1b[2J").replace("None", "\x1b]0;x\x07"),
    "every line twice": lambda out: "".join(line + line for line in out.splitlines(True)),
}
Answer = dict[str, tuple[State, Cause]]


def statuses(source: str, damage: Callable[[str], str] = str) -> Answer | str:
    """Statuses of the jobs, or the reason why there are none."""
    kind, command, outputs, jobs = SOURCES[source]
    try:
        found = scheduler_of({"kind": kind}, Recorded({**outputs, command: damage(outputs[command])})).statuses(jobs)
    except NoAnswer as error:
        return str(error)
    return {name: (status.state, status.cause) for name, status in found.items()}


def assert_true(source: str, found: Answer | str) -> None:
    """Each status is that of the undamaged output, or none."""
    right = statuses(source)
    assert isinstance(right, dict) and set(right) == {A, B}
    if isinstance(found, str):
        assert found and found.isprintable() and len(found) < 1000
        return
    for name, (state, cause) in found.items():
        no_answer = state in (State.UNKNOWN, State.UNANSWERED) or cause in (Cause.UNKNOWN, Cause.COMMAND)
        assert no_answer or (state, cause) == right[name], name
    if A in found and right[A][0] is State.RUNNING:
        assert found[A][0] is not State.ENDED


@pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES)
@pytest.mark.parametrize("source", SOURCES)
def test_damaged_output_gives_no_wrong_status(source: str, damage: Callable[[str], str]) -> None:
    assert_true(source, statuses(source, damage))


@pytest.mark.parametrize("source", ["qacct", "qstat -f"])
def test_an_unreadable_record_does_not_hide_another_job(source: str) -> None:
    found = statuses(source, DAMAGES["statuses in words"])
    assert isinstance(found, dict)
    assert found[A][0] is State.RUNNING
    assert found[B] == (State.ENDED, Cause.UNKNOWN)


def test_entities_of_xml_are_not_expanded() -> None:
    levels = "".join(f'<!ENTITY l{n} "{f"&l{n - 1};" * 10}">' for n in range(1, 12))
    bomb = f'<?xml version="1.0"?><!DOCTYPE x [<!ENTITY l0 "ha">{levels}]><job_info>&l11;</job_info>'
    found = statuses("qstat -xml", lambda _out: bomb)
    assert isinstance(found, str) and found.startswith("qstat printed no XML")
    file = f'<?xml version="1.0"?><!DOCTYPE x [<!ENTITY f SYSTEM "file:///etc/passwd">]><job_info>&f;{XML.split("<queue_info>")[1]}'
    found = statuses("qstat -xml", lambda _out: file)
    assert isinstance(found, str) or A not in found


SITES: dict[str, Mapping[str, str]] = {"slurm": SLURM, "pbs": PBS, "sge": SGE}


@pytest.mark.parametrize("answer", [[], 7, {"nodes": [1]}, {"nodes": {"a": {"resources_available": {"ncpus": [1]}}}}])
def test_pbsnodes_in_another_shape_is_skipped(answer: object) -> None:
    found = facts_of("pbs", Recorded({**PBS, "pbsnodes -a -F json": json.dumps(answer)}))
    assert all(node.kind.cores is None for node in found.nodes)
    assert found.queues
