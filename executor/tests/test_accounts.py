"""Which project is charged, what is left, and when a job would start: from recorded answers of Slurm 22.05.8."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from snakemake_executor_plugin_multinode.schedulers import NoAnswer, Refused, Request, Scheduler, scheduler_of
from snakemake_executor_plugin_multinode.schedulers.accounts import project_of
from snakemake_executor_plugin_multinode.schedulers.balance import Balance, balances
from snakemake_executor_plugin_multinode.schedulers.command import CommandAnswer
from snakemake_executor_plugin_multinode.schedulers.expected_start import expected_start

JOB = Request("train.a.01", Path("/j/x.sh"), Path("/j/x.log"), 2, 4, 4, 2, 64000, 90, None)


def replaying(site: dict[str, Any], **answers: CommandAnswer) -> tuple[Scheduler, list[Sequence[str]]]:
    """A scheduler whose commands answer as given, and the list of what was asked."""
    asked: list[Sequence[str]] = []

    def run(argv: Sequence[str], limit_s: float) -> CommandAnswer:
        asked.append(argv)
        return answers[argv[0]]

    return scheduler_of(site, run), asked


@pytest.mark.parametrize(
    ("site", "project"),
    [
        ({"kind": "slurm", "account": "a1"}, "a1"),
        ({"kind": "slurm", "account": "a1", "options": ["--account=a2"]}, "a2"),
        ({"kind": "slurm", "options": ["-A", "a3", "--exclusive"]}, "a3"),
        ({"kind": "pbs", "account": "words", "options": ["-P", "a4"]}, "a4"),
        ({"kind": "sge", "options": "-g tga"}, "tga"),
        ({"kind": "sge"}, None),
    ],
)
def test_the_project_is_what_the_submit_line_names(site: dict[str, Any], project: str | None) -> None:
    assert project_of(scheduler_of(site).settings) == project


def test_what_is_left_is_the_limit_less_what_was_used_and_what_running_jobs_may_use() -> None:
    rows = (
        " lab||gres/gpu=6000|cpu=9600,mem=0,energy=0,node=600,billing=9600,gres/gpu=2400|cpu=0,node=0,gres/gpu=600\n"
        " lab|ada||cpu=4800,node=300,gres/gpu=1200|cpu=0,gres/gpu=0\n"
    )
    slurm, asked = replaying({"kind": "slurm", "account": "lab"}, sshare=CommandAnswer(0, rows, ""))
    [one] = balances(slurm)
    assert one == Balance("lab", "account lab", "GPU h", 100.0, 40.0, 10.0, "sshare")
    assert one.left_h == 50.0
    assert asked[0][:5] == ["sshare", "-n", "-P", "-A", "lab"]


def test_the_limit_of_a_quality_of_service_is_read_where_the_submit_line_names_one() -> None:
    shown = "QOS=fast(5) GrpTRES=cpu=N(0),gres/gpu=N(0) GrpTRESMins=cpu=N(12),node=1200(180),gres/gpu=N(7) GrpWall=N(0.00)\n"
    answers = {"sshare": CommandAnswer(0, "", ""), "scontrol": CommandAnswer(0, shown, "")}
    slurm, asked = replaying({"kind": "slurm", "options": ["--qos=fast"]}, **answers)
    [one] = balances(slurm)
    assert (one.whose, one.unit, one.granted_h, one.used_h) == ("QOS fast", "node h", 20.0, 3.0)
    assert "qos=fast" in asked[1]


def test_a_slurm_that_counts_no_usage_and_other_systems_do_not_tell() -> None:
    refusal = CommandAnswer(1, "", "You are not running a supported priority plugin\n(priority/basic).")
    slurm, _ = replaying({"kind": "slurm"}, sshare=refusal)
    with pytest.raises(NoAnswer, match="sshare: You are not running a supported priority plugin"):
        balances(slurm)
    with pytest.raises(NoAnswer, match="pbs keeps no account of granted time"):
        balances(scheduler_of({"kind": "pbs"}))


def test_when_a_job_would_start_is_asked_with_its_own_submit_line() -> None:
    said = "sbatch: Job 30 to start at 2026-11-23T09:00:00 using 16 processors on nodes node[1-2] in partition gpu\n"
    slurm, asked = replaying({"kind": "slurm", "queue": "gpu"}, sbatch=CommandAnswer(0, "", said))
    assert expected_start(slurm, JOB) == datetime(2026, 11, 23, 9).timestamp()
    assert asked[0][:3] == ["sbatch", "--test-only", "--no-requeue"]
    assert "--parsable" not in asked[0]
    assert asked[0][-1] == "/j/x.sh"


def test_a_job_that_would_not_be_taken_and_a_scheduler_that_does_not_say_are_told_apart() -> None:
    wrong = CommandAnswer(1, "", "allocation failure: Requested node configuration is not available\n")
    with pytest.raises(Refused, match="Requested node configuration is not available"):
        expected_start(replaying({"kind": "slurm"}, sbatch=wrong)[0], JOB)
    with pytest.raises(NoAnswer, match="sge does not say"):
        expected_start(scheduler_of({"kind": "sge"}), JOB)
