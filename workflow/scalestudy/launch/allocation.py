"""Which machines a job has, by what its scheduler tells it, and how they are reached."""

from __future__ import annotations

import os
import platform
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from scalestudy.errors import UserError
from scalestudy.spec.config import Site
from scalestudy.spec.run import RunSpec

# What each scheduler sets inside a job, and what reaches its nodes (facts in the manuals of Slurm, PBS, Grid Engine).
OWN_LAUNCHER = {"SLURM_JOB_NODELIST": "srun", "PBS_NODEFILE": "pbsdsh", "PE_HOSTFILE": "qrsh"}


@dataclass(frozen=True)
class Allocation:
    """The machines of a job, the one where it runs first; how they are reached; slots on each where that is known."""

    hosts: tuple[str, ...]
    launcher: str
    slots: tuple[int, ...] = ()


def allocation(environment: Mapping[str, str], site: Site) -> Allocation | None:
    """What the scheduler gave to this job, or the site's hosts where there is no scheduler; None on one machine alone."""
    for name, launcher in OWN_LAUNCHER.items():
        if value := environment.get(name):
            lines = _slurm(environment) if launcher == "srun" else _lines(name, value)
            slots: dict[str, int] = {}
            for host, count in lines:
                slots[host] = slots.get(host, 0) + count
            return Allocation(tuple(slots), launcher, tuple(slots.values())) if slots else None
    return Allocation(site.hosts, "ssh") if site.hosts else None


def _lines(name: str, file: str) -> list[tuple[str, int]]:
    """Host and slots per line: PBS repeats a host once per slot, Grid Engine writes the number after it."""
    try:
        rows = [line.split() for line in Path(file).read_text(encoding="utf-8").splitlines() if line.strip()]
    except OSError as error:
        raise UserError(f"the job's list of nodes cannot be read: {error.strerror}", f"{name}={file}") from None
    return [(row[0], int(row[1]) if len(row) > 1 and row[1].isdigit() else 1) for row in rows]


def _slurm(environment: Mapping[str, str]) -> list[tuple[str, int]]:
    command = ["scontrol", "show", "hostnames", environment["SLURM_JOB_NODELIST"]]
    try:
        hosts = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True).stdout.split()
    except (OSError, subprocess.SubprocessError) as error:
        raise UserError(f"the nodes of the job cannot be listed: {error}", "SLURM_JOB_NODELIST") from None
    tasks = slurm_tasks(environment.get("SLURM_TASKS_PER_NODE", ""))
    return list(zip(hosts, tasks if len(tasks) == len(hosts) else [0] * len(hosts), strict=True))


def slurm_tasks(text: str) -> list[int]:
    """`2(x3),1` as [2, 2, 2, 1]."""
    tasks: list[int] = []
    for part in text.split(","):
        count, _, times = part.partition("(x")
        if count.isdigit():
            tasks += [int(count)] * int(times.rstrip(")") or 1)
    return tasks


def where_to_run(spec: RunSpec, nodes: int, site: Site, environment: Mapping[str, str] = os.environ) -> Allocation:
    """The machines of a run and its launcher: the run's, else the site's, else the scheduler's own.

    With one machine, the nodes of the geometry are logical and no launcher is needed. Raises UserError where the job
    has several machines, but fewer than the run needs.
    """
    wanted = spec.launch.launcher or site.launcher
    mpi = spec.strategy.needs_mpi or wanted == "mpirun"
    found = allocation(environment, site) if nodes > 1 and wanted != "local" else None
    if found is None or len(found.hosts) == 1:
        if nodes > 1 and wanted not in ("auto", "local", "mpirun"):
            raise UserError(
                f"launcher `{wanted}` has no {'second node' if found else 'nodes'} to reach",
                "launch.launcher" if spec.launch.launcher else "the site's `launcher`",
                "start it inside a job of several nodes, or name the nodes as `hosts` in the site's site.yaml",
            )
        return Allocation((platform.node(),), "mpirun" if mpi else "local")
    if len(found.hosts) < nodes:
        names = ", ".join(found.hosts)
        raise UserError(f"the run needs {nodes} nodes, the job has {len(found.hosts)}: {names}", "nodes")
    launcher = "mpirun" if mpi else found.launcher if wanted == "auto" else wanted
    return Allocation(found.hosts[:nodes], launcher, found.slots[:nodes])


def uneven(where: Allocation, ranks_per_node: int) -> Sequence[str]:
    """A warning where the scheduler dealt slots otherwise than the run places its ranks."""
    if any(slots not in (0, ranks_per_node) for slots in where.slots) and len(set(where.slots)) > 1:
        dealt = ", ".join(f"{slots} on {host}" for host, slots in zip(where.hosts, where.slots, strict=True))
        return [f"the job has slots dealt unevenly ({dealt}); {ranks_per_node} ranks run on each node"]
    return []
