"""The scheduler's job in the environment of a process: its id, nodes, launcher, end, this process's place.

Sources: sbatch(1) and srun(1) "OUTPUT ENVIRONMENT VARIABLES"; the PBS Professional user's guide, chapter "Submitting a
PBS job"; qsub(1) and sge_pe(5) of Grid Engine; mpirun(1) of Open MPI; the PMI and PMIx standards.
"""

from __future__ import annotations

import os
import platform
import subprocess
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from scalestudy.errors import UserError
from scalestudy.site_fault import JOB_IDS
from scalestudy.spec.hostlist import places, slurm_hosts

NODE_LISTS = {"SLURM_JOB_NODELIST": "srun", "PBS_NODEFILE": "pbsdsh", "PE_HOSTFILE": "qrsh"}
"""Where each scheduler lists the nodes of a job, and what starts processes on them."""
OF_MPI = ("OMPI_COMM_WORLD_RANK", "PMIX_RANK", "PMI_RANK")
PLACES = {"srun": ("SLURM_NODEID",), "mpiexec": OF_MPI, "mpirun": OF_MPI}
"""By launcher, the variables that number the processes that it starts.

Another launcher's variables say nothing: in a batch job of Slurm every process of mpirun has SLURM_NODEID=0.
"""
DEADLINES = ("MULTINODE_DEADLINE", "SCALESTUDY_DEADLINE")
"""When a job will be killed: as the executor says it in its own jobs, and as a person says it elsewhere."""
FAULTS = ("MULTINODE_FAULT", "SCALESTUDY_FAULT")
"""Names a file of the executor: a job that finds its node unfit says why there, and is tried on another one. The second
name is that of jobs which an earlier version of it has submitted."""
SCONTROL_S = 60


class JobEnvironment:
    """One process's view of the job that it is in, if it is in one."""

    def __init__(self, variables: Mapping[str, str] = os.environ) -> None:
        self.variables = variables

    @property
    def job_id(self) -> str | None:
        """The scheduler's id of the job, None outside jobs."""
        return next((self.variables[name] for name in JOB_IDS if self.variables.get(name)), None)

    @property
    def launcher(self) -> str | None:
        """The launcher of processes on the job's nodes, None without a scheduler's list of nodes."""
        variable = self._node_list
        return None if variable is None else NODE_LISTS[variable]

    @property
    def deadline(self) -> float | None:
        """When the job will be killed, seconds since 1970. Raises UserError where the variable is not a number."""
        name = next((name for name in DEADLINES if self.variables.get(name)), None)
        if name is None:
            return None
        text = self.variables[name]
        try:
            return float(text)
        except ValueError:
            raise UserError(f"`{text}` is not a time", name, "set it to seconds since 1970, or unset it") from None

    @property
    def is_of_slurm(self) -> bool:
        """Whether the job is Slurm's, so that srun starts processes in it."""
        return bool(self.variables.get("SLURM_JOB_ID"))

    def report_fault(self, why: str) -> None:
        """Report this node as unfit for the job, to the executor where there is one."""
        if file := next((self.variables[name] for name in FAULTS if self.variables.get(name)), None):
            with suppress(OSError):
                Path(file).write_text(" ".join(why.split()) + "\n", encoding="utf-8")

    def process_number(self, launcher: str) -> int | None:
        """The number of this process among those that a launcher started; None where it does not number them."""
        names = PLACES.get(launcher, ())
        return next((int(self.variables[name]) for name in names if self.variables.get(name, "").isdigit()), None)

    @staticmethod
    def process_number_in_shell(launcher: str) -> str:
        """The same, as a shell's parameter expansion; 0 where the launcher does not number its processes."""
        expression = "0"
        for name in reversed(PLACES.get(launcher, ())):
            expression = f"${{{name}:-{expression}}}"
        return expression

    def slots_of_nodes(self) -> dict[str, int]:
        """The nodes of the job in its own order, and how many slots it has on each; 0 where that is not known.

        Raises UserError where the list of nodes cannot be read.
        """
        variable = self._node_list
        if variable is None:
            return {}
        lines = self._of_slurm() if variable == "SLURM_JOB_NODELIST" else _of_file(variable, self.variables[variable])
        slots: dict[str, int] = {}
        for host, count in lines:
            slots[host] = slots.get(host, 0) + count
        return slots

    def here(self, hosts: Sequence[str]) -> str:
        """Which of the job's nodes this process is on: by the name that Slurm or the system has for it, else the first.

        A job's script starts on its first node.
        """
        names = (self.variables.get("SLURMD_NODENAME", ""), platform.node())
        known = [place for name in names for place in places([name], hosts) if place is not None]
        return hosts[known[0] if known else 0]

    def first_lines(self, hosts: tuple[str, ...]) -> list[int]:
        """The first line of each host in the node file of PBS, which has a host once per slot: pbsdsh counts lines."""
        lines = Path(self.variables["PBS_NODEFILE"]).read_text(encoding="utf-8").split()
        return [lines.index(host) for host in hosts]

    @property
    def _node_list(self) -> str | None:
        return next((name for name in NODE_LISTS if self.variables.get(name)), None)

    def _of_slurm(self) -> list[tuple[str, int]]:
        nodes = self.variables["SLURM_JOB_NODELIST"]
        command = ["scontrol", "show", "hostnames", nodes]
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=SCONTROL_S, check=True)
            hosts = done.stdout.split()
        except FileNotFoundError:  # in a container
            hosts = slurm_hosts(nodes)
        except (OSError, subprocess.SubprocessError) as error:
            raise UserError(f"the nodes of the job cannot be listed: {error}", "SLURM_JOB_NODELIST") from None
        tasks = slurm_tasks(self.variables.get("SLURM_TASKS_PER_NODE", ""))
        return list(zip(hosts, tasks if len(tasks) == len(hosts) else [0] * len(hosts), strict=True))


def _of_file(name: str, file: str) -> list[tuple[str, int]]:
    """Host and slots per line: PBS repeats a host once per slot, Grid Engine writes the number after it."""
    try:
        rows = [line.split() for line in Path(file).read_text(encoding="utf-8").splitlines() if line.strip()]
    except OSError as error:
        raise UserError(f"the job's list of nodes cannot be read: {error.strerror}", f"{name}={file}") from None
    return [(row[0], int(row[1]) if len(row) > 1 and row[1].isdigit() else 1) for row in rows]


def slurm_tasks(text: str) -> list[int]:
    """`2(x3),1` as [2, 2, 2, 1]."""
    tasks: list[int] = []
    for part in text.split(","):
        count, _, times = part.partition("(x")
        if count.isdigit():
            tasks += [int(count)] * int(times.rstrip(")") or 1)
    return tasks
