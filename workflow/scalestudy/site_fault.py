"""Lacks of a node: in a scheduler's job a fault of the site, which is tried again; elsewhere a reason to skip a run."""

from __future__ import annotations

import os
import platform
from collections.abc import Collection
from typing import Literal

from scalestudy.errors import Skipped, UserError

JOB_IDS = ("PBS_JOBID", "SLURM_JOB_ID", "JOB_ID", "LSB_JOBID")
"""Variables with which schedulers number their jobs: PBS, Slurm, Grid Engine, LSF."""
EXECUTOR_JOB = "MULTINODE_JOB"
"""Name of the job, in those of the executor; launchers pass it on to a job's other nodes."""
Lackable = Literal["mpirun", "mpi4py", "c++", "gpu"]
"""What a site can say that none of its nodes has."""
SITE = "SCALESTUDY_SITE"
"""Environment variable by which commands that a rule starts learn the site file of the profile."""
CHANGES = "SCALESTUDY_SET"
"""And the keys that `set` of Snakemake's `--config` changes in every study, one `KEY=VALUE` a line."""


def site_file() -> str:
    """The file with the set-up and submission of jobs, as messages name it."""
    file = os.environ.get(SITE, "")
    return os.path.relpath(file) if file else "the profile's site.yaml"


class SiteFault(UserError):
    """A node, or the site's set-up of it, is unfit for a run: no property of the run, so no result is written.

    The executor tries the job once more, elsewhere if possible; after that the same command makes the run again.
    """

    def __init__(self, what: str, remedy: str = "") -> None:
        super().__init__(what, platform.node(), remedy or _correct_site())


def _correct_site() -> str:
    return f"correct the site, or what {site_file()} loads and requests, then run the same command again"


def in_job() -> bool:
    """Whether this process belongs to a job of a scheduler."""
    return any(os.environ.get(name) for name in (EXECUTOR_JOB, *JOB_IDS))


def lacking(reason: str, what: Lackable | None = None, lacks: Collection[Lackable] = ()) -> SiteFault | Skipped:
    """To be raised where something is missing: SiteFault in a job, Skipped elsewhere and where the site has none.

    `lacks` is the site's list of features without a node; a feature without a name there is always a fault in a job.
    """
    if what in lacks or not in_job():
        return Skipped(reason)
    skip = f"; where no node has it, `lacks: [{what}]` in {site_file()} has such runs skipped" if what else ""
    return SiteFault(reason, _correct_site() + skip)
