"""Answers of a real OpenPBS 23.06.06, as they were recorded, as the back end reads them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import pytest

from snakemake_executor_plugin_multinode.schedulers import Cause, JobRef, Scheduler, State, scheduler_of
from snakemake_executor_plugin_multinode.schedulers.command import CommandAnswer

FIXTURES = Path(__file__).parent / "fixtures" / "openpbs-23.06.06"


def replayed(case: str) -> Scheduler:
    """A back end whose commands answer as they did when they were recorded; another question is an error."""
    calls = json.loads((FIXTURES / f"{case}.json").read_text())

    def run(argv: Sequence[str], _limit_s: float) -> CommandAnswer:
        call = calls.pop(0)
        assert list(argv) == call["argv"]
        return CommandAnswer(call["code"], call["out"], call["err"])

    return scheduler_of({"kind": "pbs"}, run)


def asked_for(case: str) -> str | None:
    return json.loads((FIXTURES / f"{case}.json").read_text())[-1]["argv"][-1]


@pytest.mark.parametrize(
    ("case", "name", "state", "cause", "words"),
    [
        ("queued", "full17", State.QUEUED, Cause.UNKNOWN, "Q Not Running: Insufficient amount of resource: ncpus"),
        ("held", "full17", State.HELD, Cause.UNKNOWN, "H Job held by alice"),
        ("never", "never", State.NEVER, Cause.UNKNOWN, "Q Can Never Run: Not enough total nodes available"),
        ("running", "well", State.RUNNING, Cause.UNKNOWN, "R Job run at"),
        ("finished", "well", State.ENDED, Cause.FINISHED, "Exit_status 0, substate 92"),
        ("exit3", "exit3", State.ENDED, Cause.COMMAND, "Exit_status 3, substate 93"),
        ("killed", "killed", State.ENDED, Cause.SIGNAL, "Exit_status 137, substate 93"),
        ("walltime", "walltime", State.ENDED, Cause.WALLTIME, "Exit_status -29, substate 93"),
        ("memory", "memory", State.ENDED, Cause.MEMORY, "Exit_status -27, substate 93"),
        ("cancelled_while_running", "deleted", State.ENDED, Cause.CANCELLED, "Exit_status 271, substate 91"),
        ("cancelled_while_queued", "full17", State.ENDED, Cause.CANCELLED, "deleted before it ran (substate 91)"),
    ],
)
def test_a_state_is_read_from_what_qstat_printed(case: str, name: str, state: State, cause: Cause, words: str) -> None:
    status = replayed(case).statuses([JobRef(name, asked_for(case))])[name]
    assert (status.state, status.cause) == (state, cause)
    assert status.words.startswith(words)
    assert status.id == asked_for(case)


def test_a_job_without_an_id_is_found_by_its_name() -> None:
    assert replayed("running_by_name").statuses([JobRef("well", None)])["well"].id == "35.pbshead"


@pytest.mark.parametrize(("case", "job_id"), [("no_such_name", None), ("no_such_id", "99999")])
def test_a_job_that_the_server_does_not_know_is_absent(case: str, job_id: str | None) -> None:
    assert replayed(case).statuses([JobRef("nosuch", job_id)]) == {}


def test_one_unknown_id_does_not_hide_the_other() -> None:
    found = replayed("one_of_two_ids").statuses([JobRef("well", "35.pbshead"), JobRef("nosuch", "99999")])
    assert {name: status.cause for name, status in found.items()} == {"well": Cause.FINISHED}
