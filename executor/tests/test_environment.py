"""The environments of queries, submissions and jobs."""

from __future__ import annotations

import subprocess

import pytest

from snakemake_executor_plugin_multinode.jobscript import exports_of
from snakemake_executor_plugin_multinode.schedulers.command import of_command

CALLER = {
    "PATH": "/bin", "HOME": "/home/ada", "LANG": "de_DE.UTF-8", "SLURM_CONF": "/etc/slurm.conf", "SBATCH_ACCOUNT": "lab",
    "SLURM_MEM_PER_CPU": "150", "SLURM_RESTART_COUNT": "1", "PBS_JOBID": "8.head", "PE_HOSTFILE": "/n", "RESTARTED": "1",
    "MULTINODE_JOB": "driver", "SQUEUE_USERS": "bob", "SACCT_FORMAT": "jobid", "SCANCEL_STATE": "PENDING", "SBATCH_ARRAY_INX": "1-9",
    "SLURM_TIME_FORMAT": "relative",
}  # fmt: skip
"""A driver inside a job, of a user whose variables filter the answers of queries."""


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


def test_a_job_has_the_drivers_locale_whatever_its_scheduler_and_the_nodes_profile_set() -> None:
    lines = exports_of({"A": "it's"}, {"LANG": "C.UTF-8"})
    text = "\n".join([*lines, "echo Zürich | wc -m", 'echo "$A $LANG ${LC_ALL-unset}"'])
    done = subprocess.run(
        ["bash", "-c", text], env={"PATH": "/usr/bin:/bin", "LC_ALL": "C"}, capture_output=True, text=True, check=True
    )
    assert done.stdout == "7\nit's C.UTF-8 unset\n"
