"""Which machines a run uses, of those that its job has, and how they are reached."""

from __future__ import annotations

import os
import platform
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from scalestudy.errors import UserError
from scalestudy.launch.job_environment import JobEnvironment
from scalestudy.spec.config import Site
from scalestudy.spec.run import RunSpec


@dataclass(frozen=True)
class Allocation:
    """The machines of a job, the one where it runs first; how they are reached; slots on each where that is known."""

    hosts: tuple[str, ...]
    launcher: str
    slots: tuple[int, ...] = ()


def allocation(environment: Mapping[str, str], site: Site) -> Allocation | None:
    """What the scheduler gave to this job, or the site's hosts where there is no scheduler; None on one machine alone."""
    job = JobEnvironment(environment)
    if job.launcher is None:
        return Allocation(site.hosts, "ssh") if site.hosts else None
    slots = job.slots_of_nodes()
    return Allocation(tuple(slots), job.launcher, tuple(slots.values())) if slots else None


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
    """A warning where the scheduler's slots per node differ from the ranks that the run places there."""
    if any(slots not in (0, ranks_per_node) for slots in where.slots) and len(set(where.slots)) > 1:
        dealt = ", ".join(f"{slots} on {host}" for host, slots in zip(where.hosts, where.slots, strict=True))
        return [f"the job's slots are uneven ({dealt}); {ranks_per_node} ranks run on each node"]
    return []
