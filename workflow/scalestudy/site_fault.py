"""What a node lacks: in a scheduler's job a fault of the site, on a workstation a reason to leave a run out."""

from __future__ import annotations

import os
import platform

from scalestudy.errors import Skipped, UserError

OF_JOBS = ("SCALESTUDY_JOB", "SLURM_JOB_ID", "PBS_JOBID", "LSB_JOBID", "SGE_TASK_ID")
"""Variables that jobs have: of the executor's job scripts, Slurm, PBS, LSF, Grid Engine."""


class SiteFault(UserError):
    """The site lacks what a run needs, today or on this node: a failure without a result, after which the same command
    makes the run again."""

    def __init__(self, what: str, remedy: str = "") -> None:
        super().__init__(what, platform.node(), remedy or "correct the site, then give the same command again")


def in_job() -> bool:
    """Whether this process belongs to a job of a scheduler."""
    return any(os.environ.get(name) for name in OF_JOBS)


def lacking(what: str) -> Exception:
    """To be raised where something is missing: a SiteFault in a job, Skipped elsewhere."""
    return SiteFault(what) if in_job() else Skipped(what)
