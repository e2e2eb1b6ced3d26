"""Which machines a run uses, of those that its job has, and how they are reached."""

from __future__ import annotations

import os
import platform
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from scalestudy.errors import UserError
from scalestudy.launch.job_environment import JobEnvironment
from scalestudy.site_fault import site_file
from scalestudy.spec.config import Site
from scalestudy.spec.hostlist import places
from scalestudy.spec.run import THIS_HOST, RunSpec


@dataclass(frozen=True)
class Allocation:
    """The machines of a job, or some of them, and how they are reached.

    The first is the one where this process is, unless `away`.
    """

    hosts: tuple[str, ...]
    launcher: str
    away: bool = False
    """Whether the first of them is another machine than this one."""

    @property
    def is_here(self) -> bool:
        """Whether this machine alone takes part."""
        return len(self.hosts) == 1 and not self.away


def allocation(environment: Mapping[str, str], site: Site) -> Allocation | None:
    """Return the job's allocation, or the site's hosts where there is no scheduler; None on one machine alone."""
    job = JobEnvironment(environment)
    if job.launcher is None:
        return Allocation(site.hosts, "ssh") if site.hosts else None
    nodes = job.nodes()
    return Allocation(tuple(nodes), job.launcher) if nodes else None


def where_to_run(spec: RunSpec, nodes: int, site: Site, environment: Mapping[str, str] = os.environ) -> Allocation:
    """The machines of a run and its launcher: the run's, else the site's, else the scheduler's own.

    With one machine, the nodes of the geometry are logical and no launcher is needed. Machines that a run names are
    taken in the order of the job, in which srun numbers them. Raises UserError where the job has several machines, but
    fewer than the run needs, or not those that it names, or where no launcher can reach them.
    """
    launcher_setting = spec.launch.launcher or site.launcher
    set_in = "launch.launcher" if spec.launch.launcher else f"{site_file()}: launcher"
    mpi = spec.strategy.needs_mpi or launcher_setting == "mpirun"
    here = Allocation((platform.node(),), "mpirun" if mpi else "local")
    by_name = spec.hosts is not None and spec.hosts != (THIS_HOST,)
    job_allocation = allocation(environment, site) if by_name or (nodes > 1 and launcher_setting != "local") else None
    if by_name:
        chosen = _chosen(spec.hosts or (), job_allocation)
    else:
        if job_allocation is None or len(job_allocation.hosts) == 1:
            if nodes > 1 and launcher_setting not in ("auto", "local", "mpirun"):
                raise UserError(
                    f"launcher `{launcher_setting}` has no {'second node' if job_allocation else 'nodes'} to reach",
                    set_in,
                    f"start it inside a job of several nodes, or name the nodes as `hosts` in {site_file()}",
                )
            return here
        if len(job_allocation.hosts) < nodes:
            names = ", ".join(job_allocation.hosts)
            raise UserError(f"the run needs {nodes} nodes, the job has {len(job_allocation.hosts)}: {names}", "nodes")
        chosen = list(range(nodes))
    if job_allocation is None:
        return here
    hosts = tuple(job_allocation.hosts[index] for index in chosen)
    away = by_name and hosts[0] != JobEnvironment(environment).here(job_allocation.hosts)
    if not away and len(hosts) == 1:
        return here
    if launcher_setting == "local":
        raise UserError("launcher `local` reaches no other node", set_in, "set it to `auto`, or to what reaches nodes")
    launcher = "mpirun" if mpi else job_allocation.launcher if launcher_setting == "auto" else launcher_setting
    if mpi and spec.strategy.servers_beside and len(hosts) > 1:
        what = "mpirun fills one node after the other, and parameter servers are dealt out to all of them"
        raise UserError(what, set_in, "use another launcher for this strategy")
    return Allocation(hosts, launcher, away)


def _chosen(hosts: Sequence[str], job_allocation: Allocation | None) -> list[int]:
    """Indices of named machines among those of the job. Raises UserError where it does not have one of them."""
    machines = (platform.node(),) if job_allocation is None else job_allocation.hosts
    indices = places(hosts, machines)
    if missing := [host for host, place in zip(hosts, indices, strict=True) if place is None]:
        has = f"the job has {', '.join(machines)}" if job_allocation is not None else f"this is {machines[0]}"
        what = f"the run is about {'node' if len(missing) == 1 else 'nodes'} {', '.join(missing)}, and {has}"
        raise UserError(what, "hosts", "start it in a job on those nodes; a profile that submits asks for them")
    return sorted(index for index in indices if index is not None)


def mpi_by_srun(site: Site) -> bool:
    """Whether ranks that speak MPI are started by srun here, in place of mpirun."""
    return site.srun_mpi is not None and bool(os.environ.get("SLURM_JOB_ID"))
