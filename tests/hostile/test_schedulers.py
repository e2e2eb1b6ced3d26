"""What schedulers print, as it was recorded and spoilt: no wrong answer about a job, and none that hides another's.

Spoilt output must say nothing of a job (no answer), or what the unspoilt part says. It may never end a job that runs, and
nothing but NoAnswer may come out, so that a driver goes on asking.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pytest

from scalestudy.cluster.doctor.facts import facts_of
from snakemake_executor_plugin_multinode.schedulers import Cause, JobRef, NoAnswer, State, scheduler_of
from snakemake_executor_plugin_multinode.schedulers.command import CommandAnswer
from tests.hostile.harness import Case, Refuse, nothing
from tests.unit.cluster.recorded_sites import PBS, SGE, SLURM, Recorded

A, B = "train.a.0123456789ab", "train.b.ba9876543210"
JOBS = [JobRef(A, "7"), JobRef(B, "8")]
SQUEUE = f"7|RUNNING|None|n1|2026-11-21T18:23:09|{A}\n8|COMPLETED|None|n2|N/A|{B}\n"
SACCT = f"7|COMPLETED|0:0|{A}\n8|FAILED|3:0|{B}\n"
XML = (
    "<?xml version='1.0'?>\n<job_info><queue_info>"
    f"<job_list><JB_job_number>7</JB_job_number><state>r</state><full_job_name>{A}</full_job_name></job_list>"
    "</queue_info></job_info>\n"
)
LINE = "=" * 62
QACCT = (
    f"{LINE}\nqname        all.q\nhostname     n2\njobname      {B}\njobnumber    8\nfailed       0\nexit_status  0\n"
)
PBS_JOBS = [JobRef(A, "7.head"), JobRef(B, "8.head")]


def pbs_line(number: int, name: str, state: str, **more: str) -> str:
    fields = {"Job_Name": name, "job_state": state, **more}
    return "\x1f".join([f"Job Id: {number}.head", *(f"{key}={value}" for key, value in fields.items())]) + "\n"


QSTAT = pbs_line(7, A, "R", substate="42") + pbs_line(8, B, "F", substate="92", Exit_status="0")
KINDS: dict[str, tuple[str, str, Mapping[str, str], list[JobRef]]] = {
    "squeue": ("slurm", "squeue", {"squeue": SQUEUE}, JOBS),
    "sacct": ("slurm", "sacct", {"squeue": "", "sacct": SACCT}, JOBS),
    "scontrol": (
        "slurm",
        "scontrol",
        {"squeue": SQUEUE.replace("COMPLETED", "FAILED"), "scontrol": "ExitCode=3:0"},
        JOBS,
    ),
    "qstat -xml": ("sge", "qstat", {"qstat": XML, "qacct": QACCT}, JOBS),
    "qacct": ("sge", "qacct", {"qstat": XML, "qacct": QACCT}, JOBS),
    "qstat -f": ("pbs", "qstat", {"qstat": QSTAT}, PBS_JOBS),
}
"""The scheduler, the command whose output is spoilt, the output of all its commands, and the jobs asked about."""
Spoil = Callable[[str], str]
SPOILS: dict[str, Spoil] = {
    "nothing": lambda out: "",
    "cut in half": lambda out: out[: len(out) // 2],
    "cut by one byte": lambda out: out[:-2],
    "a page": lambda out: "<html><body>503 Service Unavailable</body></html>\n",
    "JSON": lambda out: '{"jobs": [7, 8]}\n',
    "bytes that are no text": lambda out: b"\x80\x81\xff\0".decode(errors="replace") * 1000,
    "zeros": lambda out: "\0" * 4096,
    "a line of a megabyte": lambda out: "x" * (1 << 20),
    "after a megabyte of others' lines": lambda out: "noise of another kind\n" * 50_000 + out,
    "numbers of ten thousand digits": lambda out: out.replace("7", "7" * 10_000),
    "statuses of ten thousand digits": lambda out: out.replace("=0", f"={'9' * 10_000}").replace(
        "  0", f"  {'9' * 10_000}"
    ),
    "statuses in words": lambda out: out.replace("=0", "=many").replace("  0", "  many").replace("3:0", "x:y"),
    "digits of another script": lambda out: out.replace("7", "\u0667").replace("8", "\u00b2"),
    "states of another age": lambda out: (
        out.replace("RUNNING", "DREAMING").replace("COMPLETED", "GONE").replace("=R", "=?")
    ),
    "a terminal's commands": lambda out: out.replace("n1", "\x1b[2J").replace("None", "\x1b]0;x\x07"),
    "every line twice": lambda out: "".join(line + line for line in out.splitlines(True)),
    "another program's table": lambda out: "USER PID %CPU\nroot 1 0.0\n",
    "an error in its place": lambda out: "error: everything is on fire\n",
}
TRACES = {("qacct", "statuses in words"), ("qstat -f", "statuses in words"), ("qacct", "statuses of ten thousand digits"),
          ("qstat -f", "statuses of ten thousand digits")}  # fmt: skip
"""What ended the whole answer before, that about other jobs too."""


def answering(outputs: Mapping[str, str]) -> Callable[[Sequence[str], float], CommandAnswer]:
    def run(argv: Sequence[str], _limit_s: float) -> CommandAnswer:
        out = outputs.get(argv[0])
        return (
            CommandAnswer(1, "", "Slurm accounting storage is disabled") if out is None else CommandAnswer(0, out, "")
        )

    return run


def statuses(kind: str, outputs: Mapping[str, str], jobs: list[JobRef]) -> dict[str, tuple[State, Cause]] | str:
    """What is said of the jobs; a sentence where there is no answer."""
    try:
        found = scheduler_of({"kind": kind}, answering(outputs)).statuses(jobs)
    except NoAnswer as error:
        return str(error)
    return {name: (status.state, status.cause) for name, status in found.items()}


@pytest.mark.parametrize("source", KINDS)
def test_without_a_fault_both_jobs_are_known(source: str) -> None:
    kind, _, outputs, jobs = KINDS[source]
    found = statuses(kind, outputs, jobs)
    assert isinstance(found, dict) and set(found) == {A, B}


@pytest.mark.parametrize("spoil", SPOILS)
@pytest.mark.parametrize("source", KINDS)
def test_spoilt_output_says_nothing_that_is_wrong(source: str, spoil: str, refuse: Refuse) -> None:
    kind, command, outputs, jobs = KINDS[source]
    right = statuses(kind, outputs, jobs)
    found = statuses(kind, {**outputs, command: SPOILS[spoil](outputs[command])}, jobs)
    before = "traceback" if (source, spoil) in TRACES else ""
    refuse.note(
        Case(f"{source}: {spoil}", nothing, "", before=before),
        found if isinstance(found, str) else "nothing wrong is said",
    )
    assert isinstance(right, dict)
    if isinstance(found, str):
        assert found and found.isprintable() and len(found) < 1000
        return
    for name, (state, cause) in found.items():
        known = (state, cause) == right[name]
        assert known or state in (State.UNKNOWN, State.UNANSWERED) or cause in (Cause.UNKNOWN, Cause.COMMAND), (
            name,
            state,
            cause,
        )
    if A in found and right[A][0] is State.RUNNING:
        assert found[A][0] is not State.ENDED


@pytest.mark.parametrize("spoil", ["statuses in words", "statuses of ten thousand digits"])
@pytest.mark.parametrize("source", ["qacct", "qstat -f"])
def test_a_record_that_cannot_be_read_does_not_hide_another_job(source: str, spoil: str) -> None:
    kind, command, outputs, jobs = KINDS[source]
    found = statuses(kind, {**outputs, command: SPOILS[spoil](outputs[command])}, jobs)
    assert isinstance(found, dict)
    assert found[A][0] is State.RUNNING
    assert found[B] == (State.ENDED, Cause.UNKNOWN)


SITES: dict[str, Mapping[str, str]] = {"slurm": SLURM, "pbs": PBS, "sge": SGE}


@pytest.mark.parametrize("spoil", SPOILS)
@pytest.mark.parametrize("kind", SITES)
def test_a_spoilt_description_of_a_cluster_is_read_as_far_as_it_is_one(kind: str, spoil: str, refuse: Refuse) -> None:
    right = facts_of(kind, Recorded(SITES[kind]))
    assert right.nodes and right.queues
    for command, out in SITES[kind].items():
        found = facts_of(kind, Recorded({**SITES[kind], command: SPOILS[spoil](out)}))
        assert all(node.kind.cores is None or 0 <= node.kind.cores < 10**19 for node in found.nodes)
        assert all(queue.walltime_min is None or queue.walltime_min >= 0 for queue in found.queues)
    refuse.note(Case(f"{kind}, each command: {spoil}", nothing, ""), "read as far as it is one")


ODD_NODES: dict[str, Any] = {
    "a list": [],
    "a number": 7,
    "nodes as a list": {"nodes": [1]},
    "a node as text": {"nodes": {"a": "x"}},
    "resources as a list": {"nodes": {"a": {"resources_available": [1]}}},
    "cores as a list": {"nodes": {"a": {"resources_available": {"ncpus": [1]}}}},
    "cores of another script": {"nodes": {"a": {"resources_available": {"ncpus": "\u00b2"}}}},
    "memory of two dots": {"nodes": {"a": {"resources_available": {"mem": "1.2.3gb"}}}},
}


@pytest.mark.parametrize("name", ODD_NODES)
def test_json_of_pbsnodes_in_another_shape_is_read_past(name: str, refuse: Refuse) -> None:
    out = json.dumps(ODD_NODES[name])
    found = facts_of("pbs", Recorded({**PBS, "pbsnodes -a -F json": out}))
    assert all(node.kind.cores is None and node.kind.memory_mib is None for node in found.nodes)
    assert found.queues
    refuse.note(Case(f"pbsnodes: {name}", nothing, "", before="traceback"), "read past")


def test_a_job_list_that_multiplies_is_no_answer(refuse: Refuse) -> None:
    entities = "".join(f'<!ENTITY l{n} "{f"&l{n - 1};" * 10}">' for n in range(1, 12))
    bomb = f'<?xml version="1.0"?><!DOCTYPE x [<!ENTITY l0 "ha">{entities}]><job_info>&l11;</job_info>'
    found = statuses("sge", {"qstat": bomb, "qacct": QACCT}, JOBS)
    assert isinstance(found, str) and found.startswith("qstat printed no XML")
    refuse.note(Case("qstat -xml: entities that multiply", nothing, ""), found)


def test_a_file_of_this_machine_is_not_read_into_a_job_list(refuse: Refuse) -> None:
    xml = f'<?xml version="1.0"?><!DOCTYPE x [<!ENTITY f SYSTEM "file:///etc/passwd">]><job_info>&f;{XML.split("<queue_info>")[1]}'
    found = statuses("sge", {"qstat": xml, "qacct": QACCT}, JOBS)
    assert isinstance(found, str) or A not in found
    refuse.note(Case("qstat -xml: a file as an entity", nothing, ""), str(found))
