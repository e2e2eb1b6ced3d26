"""The three environments of an executor: of queries, of submissions, of jobs.

A driver may itself run in a job (`salloc`, `qsub -I`), and a user may have variables that filter a scheduler's output.
Neither may change an answer or reach a job.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping

OF_SITE = frozenset({
    "SLURM_CONF", "SLURM_CONF_SERVER", "SLURM_CLUSTERS", "SLURM_JWT", "PBS_CONF_FILE", "PBS_DEFAULT", "PBS_EXEC",
    "PBS_SERVER",
})  # fmt: skip
"""Variables that name a scheduler, not a job of it."""
OF_ONE_JOB = ("SLURM_", "SLURMD_", "SRUN_", "PBS_", "PMI_", "PMIX_")
"""Beginnings of variables that describe one job: sbatch(1), "OUTPUT ENVIRONMENT VARIABLES"; qsub(1B)."""
NAMES_OF_ONE_JOB = frozenset({
    "JOB_ID", "JOB_NAME", "JOB_SCRIPT", "NHOSTS", "NQUEUES", "NSLOTS", "PE_HOSTFILE", "RESTARTED", "SGE_JOB_SPOOL_DIR",
    "SGE_TASK_ID", "MULTINODE_DEADLINE", "MULTINODE_FAULT", "MULTINODE_JOB", "MULTINODE_WRAPPER",
})  # fmt: skip
"""Variables of a job of Grid Engine (qsub(1), "ENVIRONMENTAL VARIABLES"), and of this executor."""
OPTIONS_OF_SBATCH = frozenset({"SBATCH_ARRAY_INX", "SBATCH_TEST_ONLY", "SBATCH_WAIT"})
"""Variables by which sbatch submits no job, or another than the one that is followed: sbatch(1)."""
FILTERS = ("SQUEUE_", "SACCT_", "SCANCEL_", "SCONTROL_", "SINFO_")
"""Beginnings of variables that are options of queries: squeue(1) and others, "ENVIRONMENT VARIABLES"."""
LOCALE = (
    "LANG", "LANGUAGE", "LC_ALL", "LC_COLLATE", "LC_CTYPE", "LC_MESSAGES", "LC_MONETARY", "LC_NUMERIC", "LC_TIME",
)  # fmt: skip
"""locale(7)."""
SUBMITTERS = ("sbatch", "qsub")


def of_command(command: str, environment: Mapping[str, str]) -> dict[str, str]:
    """Return the variables of one command of a scheduler: the caller's, without those of a job that the driver runs in,
    which sbatch would give to the job. A query has no filters of the user, and plain English, which the adapters read."""
    kept = {
        name: value
        for name, value in environment.items()
        if name in OF_SITE or not (name.startswith(OF_ONE_JOB) or name in NAMES_OF_ONE_JOB or name in OPTIONS_OF_SBATCH)
    }
    if command in SUBMITTERS:
        return kept
    return {name: value for name, value in kept.items() if not name.startswith(FILTERS)} | {"LC_ALL": "C"}


def of_job(own: Mapping[str, str], environment: Mapping[str, str]) -> list[str]:
    """Return shell lines that give a job its variables, with the driver's locale: a rule sorts and counts as it does there."""
    lines = [
        f"export {name}={shlex.quote(environment[name])}" if name in environment else f"unset {name}" for name in LOCALE
    ]
    return [*lines, *(f"export {name}={shlex.quote(value)}" for name, value in own.items())]
