"""The scheduler's job in the environment of a process: its id, nodes, launcher, end, this process's place.

Sources: sbatch(1) and srun(1) "OUTPUT ENVIRONMENT VARIABLES"; the PBS Professional user's guide, chapter "Submitting a
PBS job"; qsub(1) and sge_pe(5) of Grid Engine; mpirun(1) of Open MPI; the PMI and PMIx standards.
"""

from __future__ import annotations

import os
import platform
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from scalestudy.errors import UserError
from scalestudy.site_fault import JOB_IDS
from scalestudy.spec.hostlist import places, slurm_hosts

LAUNCHERS = {"SLURM_JOB_NODELIST": "srun", "PBS_NODEFILE": "pbsdsh", "PE_HOSTFILE": "qrsh"}
"""By each scheduler's variable with the nodes of a job, what starts processes on them."""
MPI_RANKS = ("OMPI_COMM_WORLD_RANK", "PMIX_RANK", "PMI_RANK")
PLACES = {"srun": ("SLURM_NODEID",), "mpiexec": MPI_RANKS, "mpirun": MPI_RANKS}
"""By launcher, the variables that number its processes; in a batch job of Slurm mpirun's all have SLURM_NODEID=0."""
DEADLINES = ("MULTINODE_DEADLINE", "SCALESTUDY_DEADLINE")
"""Time of a job's kill, from the executor in its own jobs and from a person elsewhere."""
FAULT = "MULTINODE_FAULT"
"""File of the executor for the reason why a node is unfit: the job is tried on another one."""


class JobEnvironment:
    """One process's view of the job that it is in, if it is in one."""

    def __init__(self, variables: Mapping[str, str] = os.environ) -> None:
        self.variables = variables

    def _first(self, names: Sequence[str]) -> str | None:
        """The first of these variables that is set."""
        return next((name for name in names if self.variables.get(name)), None)

    @property
    def job_id(self) -> str | None:
        """The scheduler's id of the job, None outside jobs."""
        name = self._first(JOB_IDS)
        return None if name is None else self.variables[name]

    @property
    def launcher(self) -> str | None:
        """The launcher of processes on the job's nodes, None without a scheduler's list of nodes."""
        name = self._first(tuple(LAUNCHERS))
        return None if name is None else LAUNCHERS[name]

    @property
    def deadline(self) -> float | None:
        """When the job will be killed, seconds since 1970. Raises UserError where the variable is not a number."""
        name = self._first(DEADLINES)
        try:
            return None if name is None else float(self.variables[name])
        except ValueError:
            what, remedy = f"`{self.variables[str(name)]}` is not a time", "set it to seconds since 1970, or unset it"
            raise UserError(what, str(name), remedy) from None

    def report_fault(self, why: str) -> None:
        """Report this node as unfit for the job, to the executor where there is one."""
        if file := self.variables.get(FAULT):
            with suppress(OSError):
                Path(file).write_text(" ".join(why.split()) + "\n", encoding="utf-8")

    def process_number(self, launcher: str) -> int | None:
        """The number of this process among those that a launcher started; None where it does not number them."""
        names = PLACES.get(launcher, ())
        return next((int(self.variables[name]) for name in names if self.variables.get(name, "").isdigit()), None)

    def nodes(self) -> list[str]:
        """The nodes of a job with a launcher, in its own order. Raises UserError where their list cannot be read."""
        name = self._first(tuple(LAUNCHERS))
        assert name is not None, "it has a launcher"
        nodes = self.variables[name]
        try:
            if name == "SLURM_JOB_NODELIST":
                return slurm_hosts(nodes)
            # PBS repeats a host once per slot, Grid Engine writes the number after it.
            lines = Path(nodes).read_text(encoding="utf-8").splitlines()
            return list(dict.fromkeys(line.split()[0] for line in lines if line.strip()))
        except (OSError, ValueError) as error:
            raise UserError(f"the job's list of nodes cannot be read: {error}", f"{name}={nodes}") from None

    def here(self, hosts: Sequence[str]) -> str:
        """Which of the job's nodes this process is on: by the name that Slurm or the system has for it, else the first.

        A job's script starts on its first node.
        """
        names = (self.variables.get("SLURMD_NODENAME", ""), platform.node())
        indices = [place for name in names for place in places([name], hosts) if place is not None]
        return hosts[indices[0] if indices else 0]
