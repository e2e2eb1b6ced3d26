"""What a real Slurm with accounts says about granted time, and about when a job would start."""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Iterator
from typing import Any, ClassVar

import pytest

from tests.cluster.box import Unavailable
from tests.cluster.slurm_box import HarshSlurmBox
from tests.cluster.study import Studies, studies
from tests.cluster.workflow import ROOT

PROFILE = ("--profile", "profiles/slurm", "--config", "machine=box", "scale=mini")


class AccountedSlurmBox(HarshSlurmBox):
    """A Slurm that limits what an account may use: sshare needs the priority plugin that counts usage."""

    changes: ClassVar[dict[str, str]] = {"FirstJobId": "70001"}
    with_accounts: ClassVar[dict[str, str]] = {
        "PriorityType": "priority/multifactor",
        "PriorityDecayHalfLife": "0",
        "PriorityUsageResetPeriod": "QUARTERLY",
        "AccountingStorageTRES": "gres/gpu",
    }
    nodes: ClassVar[int] = 2


@pytest.fixture(scope="module")
def project() -> Iterator[Studies]:
    """A clone of the project in a box whose account `lab` was granted ten GPU hours."""
    try:
        box = AccountedSlurmBox(ROOT)
    except Unavailable as why:
        pytest.skip(f"no real scheduler: {why}")
    try:
        box.start_accounting(jobs_per_user=100)
        box.must(["sacctmgr", "-i", "modify", "account", "lab", "set", "GrpTRESMins=gres/gpu=600"])
        yield studies(box)
    except Unavailable as why:
        pytest.skip(str(why))
    finally:
        box.stop()


def answer(made: Studies, *words: str) -> Any:
    """What a command prints as JSON."""
    done = subprocess.run(made.command(*words, "--json", "-"), capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_what_is_left_of_an_account_is_what_slurm_says(project: Studies) -> None:
    ledger = project.clone / ".scalestudy" / "jobs.jsonl"
    ledger.parent.mkdir(exist_ok=True)
    job = {"event": "submitted", "name": "a", "time_s": time.time(), "job": "dataset digits-0123456789ab", "gpus": 4}
    ended = {"event": "ended", "name": "a", "time_s": time.time(), "used_s": 900}
    ledger.write_text(f"{json.dumps({**job, 'project': 'lab'})}\n{json.dumps(ended)}\n")
    said = answer(project, "scalestudy", "plan", "--spent", *PROFILE)
    ledger.unlink()
    [used] = said["used"]
    assert (used["project"], used["jobs"], used["gpu_hours"]) == ("lab", 1, 1.0)
    [left] = said["left"]
    assert (left["project"], left["unit"], left["granted"]) == ("lab", "GPU h", 10.0)
    assert 9.5 < left["left"] <= 10.0
    assert "sshare of account lab" in left["source"]


def test_slurm_says_when_each_size_of_job_would_start_and_gets_no_job(project: Studies) -> None:
    project.box.must(["scontrol", "update", "nodename=node2", "state=drain", "reason=test"])
    said = answer(project, "scalestudy", "plan", "through", "--ask-scheduler", *PROFILE)
    project.box.must(["scontrol", "update", "nodename=node2", "state=resume"])
    starts = {start["nodes"]: start for start in said["starts"]}
    assert starts[1]["in_s"] < 60
    assert starts[2]["in_s"] is None or starts[2]["in_s"] > 60
    assert sum(start["jobs"] for start in said["starts"]) == 4
    assert project.box.must(["squeue", "-h"]) == ""
