"""Run one command of a scheduler: with a time limit, in an environment of its own, without taking the driver down.

A driver may itself run in a job (`salloc`, `qsub -I`), and a user may have variables that filter a scheduler's output.
Neither may change an answer or reach a job.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass

NOT_FOUND = "command not found"
SITE_VARIABLES = frozenset({
    "SLURM_CONF", "SLURM_CONF_SERVER", "SLURM_CLUSTERS", "SLURM_JWT", "PBS_CONF_FILE", "PBS_DEFAULT", "PBS_EXEC",
    "PBS_SERVER",
})  # fmt: skip
"""Variables that name a scheduler, not a job of it."""
JOB_PREFIXES = ("SLURM_", "SLURMD_", "SRUN_", "PBS_", "PMI_", "PMIX_")
"""Beginnings of variables that describe one job: sbatch(1), "OUTPUT ENVIRONMENT VARIABLES"; qsub(1B)."""
JOB_VARIABLES = frozenset({
    "JOB_ID", "JOB_NAME", "JOB_SCRIPT", "NHOSTS", "NQUEUES", "NSLOTS", "PE_HOSTFILE", "RESTARTED", "SGE_JOB_SPOOL_DIR",
    "SGE_TASK_ID", "MULTINODE_DEADLINE", "MULTINODE_FAULT", "MULTINODE_JOB", "MULTINODE_WRAPPER",
})  # fmt: skip
"""Variables of a job of Grid Engine (qsub(1), "ENVIRONMENTAL VARIABLES"), and of this executor."""
SBATCH_OPTIONS = frozenset({"SBATCH_ARRAY_INX", "SBATCH_TEST_ONLY", "SBATCH_WAIT"})
"""Variables by which sbatch submits no job, or another than the one that is followed: sbatch(1)."""
FILTERS = ("SQUEUE_", "SACCT_", "SCANCEL_", "SCONTROL_", "SINFO_")
"""Prefixes of environment variables that squeue(1) and other queries read as options."""
SUBMITTERS = ("sbatch", "qsub")


@dataclass(frozen=True)
class CommandAnswer:
    """Output and exit status of a command."""

    code: int
    out: str
    err: str

    @property
    def words(self) -> str:
        """Its output on one line, with escapes in place of control characters."""
        text = " ".join((self.err.strip() or self.out.strip()).split())[:500]
        shown = "".join(one if one.isprintable() else one.encode("unicode_escape").decode() for one in text)[:500]
        return shown or f"exit status {self.code}, no text"


class NoAnswer(Exception):
    """The query failed, or its output is no answer. Nothing follows about any job."""


def run_command(argv: Sequence[str], limit_s: float) -> CommandAnswer:
    """Run a command for at most `limit_s` seconds; NoAnswer if it does not start or does not end in time.

    It runs in a process group of its own: a Ctrl-C at the driver's terminal does not tear a submission apart, and a
    command that hangs is ended with its children.
    """
    try:
        process = subprocess.Popen(
            list(argv),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=of_command(argv[0], os.environ),
            start_new_session=True,
        )
    except OSError as error:
        # Where PATH names a folder that may not be read, the kernel answers "permission denied".
        raise NoAnswer(f"{argv[0]}: {error.strerror if shutil.which(argv[0]) else NOT_FOUND}") from None
    with process:
        try:
            out, err = process.communicate(timeout=limit_s)
        except subprocess.TimeoutExpired:
            raise NoAnswer(f"{argv[0]} did not answer within {limit_s:g} s") from None
        finally:
            if process.returncode is None:
                with suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
    return CommandAnswer(process.returncode, out.decode(errors="replace"), err.decode(errors="replace"))


def of_command(command: str, environment: Mapping[str, str]) -> dict[str, str]:
    """Return the variables of one command of a scheduler: the caller's, without those of a job that the driver runs in,
    which sbatch would give to the job. A query has no filters of the user, and plain English, which the adapters read."""
    dropped = JOB_VARIABLES | SBATCH_OPTIONS
    kept = {
        name: value
        for name, value in environment.items()
        if name in SITE_VARIABLES or not (name.startswith(JOB_PREFIXES) or name in dropped)
    }
    if command in SUBMITTERS:
        return kept
    return {name: value for name, value in kept.items() if not name.startswith(FILTERS)} | {"LC_ALL": "C"}
