"""Request of a job to its scheduler: explicit per run, from its spec and the machine, never from the size of a file."""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields, replace
from typing import Any

from scalestudy.cluster.plan.expected import Expectation, TimeEstimate
from scalestudy.errors import UserError
from scalestudy.spec.machine import Machine, geometry
from scalestudy.spec.run import THIS_HOST, RunSpec
from scalestudy.spec.study import Run

CALIBRATION_MIN = 30
"""Walltime of a run without an estimate, minutes: it continues in further jobs where that is too short, and what it
took then says what runs like it take."""
ROUND_MIN = 6
"""Walltimes are whole multiples of six minutes, a tenth of an hour, so that hours add up exactly."""
LINK_MARGIN_S = 300
"""What each attempt of a chain needs in addition to training: the checkpoint that it writes, and the one that it reads."""
MEMORY_SHARE = 0.9
"""Share of a node's memory that a job requests: the rest is the system's."""
MIN_DATA_S = 600.0
MAX_CPU_NODE_CORES, MAX_CPU_NODE_MB = 16, 64 * 1024
"""Limits of a data preparation's request in a CPU queue: its nodes may be smaller than the machine's GPU nodes."""


@dataclass(frozen=True)
class Resources:
    """The resources of one job, under the names that the executor reads, and how many jobs in a row it takes."""

    nodes: int
    ranks_per_node: int
    gpus_per_node: int
    cpus_per_rank: int
    mem_mb: int
    runtime: int | None
    """Minutes of one job; None: no limit is known, the site's default holds."""
    queue: str | None
    links: int = 1
    """Jobs in a row, each resuming from the checkpoint of the one before."""
    gpus_held_per_node: int = 0
    """Idle GPUs included of a node that the job has to itself."""
    hosts: str | None = None
    """Names of the nodes that the job has to get, with commas between them; None: any."""

    @property
    def gpus_held(self) -> int:
        """GPUs that the job asks for or keeps idle, over all nodes."""
        return self.nodes * max(self.gpus_per_node, self.gpus_held_per_node)

    def to_dict(self) -> dict[str, Any]:
        """By name; `links` is not a resource."""
        return {name: value for name, value in asdict(self).items() if name in NAMES}

    @property
    def requested_s(self) -> int:
        """Walltime of all attempts, seconds; 0 where no limit is known."""
        return 60 * (self.runtime or 0) * self.links


NAMES = tuple(field.name for field in fields(Resources) if field.name != "links")


def of_run(run: Run, machine: Machine, estimate: TimeEstimate) -> Resources:
    """Request of a run. Measured runs have nodes to themselves, so they request all devices of those nodes."""
    nodes, per_node = geometry(run.spec, machine)
    if run.spec.network is not None:
        nodes, per_node = 1, run.spec.ranks  # nodes of an emulated network are namespaces of one machine
    queue = queue_for(machine, nodes, estimate, devices=bool(machine.devices_per_node))
    runtime, links = walltime(estimate, limit_min(machine, queue))
    cpus = cpus_per_rank(run.spec, machine, nodes, per_node)
    devices = machine.devices_per_node or 0
    held = max(devices, _devices_of(machine, queue) or 0) if machine.exclusive else devices
    hosts = ",".join(run.spec.hosts) if run.spec.hosts and run.spec.hosts != (THIS_HOST,) else None
    return Resources(nodes, per_node, devices, cpus, memory_mb(machine), runtime, queue, links, held, hosts)


def of_dataset(machine: Machine, estimate: TimeEstimate) -> Resources:
    """The request to prepare a dataset: one node and no accelerator, in a queue of CPU nodes where the machine has one."""
    estimate = replace(estimate, high_s=max(MIN_DATA_S, estimate.high_s))
    queue = queue_for(machine, 1, estimate)
    limit = limit_min(machine, queue)
    runtime, jobs = walltime(estimate, limit)
    of_queue = _devices_of(machine, queue)
    held = (machine.devices_per_node or 0) if of_queue is None else of_queue
    idle = held if machine.exclusive else 0
    runtime = limit if jobs > 1 else runtime  # it is not divided among several
    cores, memory = machine.cores, memory_mb(machine)
    if machine.devices_per_node and of_queue == 0:
        cores, memory = min(cores, MAX_CPU_NODE_CORES), min(memory, MAX_CPU_NODE_MB)
    return Resources(1, 1, 0, cores, memory, runtime, queue, gpus_held_per_node=idle)


def _devices_of(machine: Machine, queue: str | None) -> int | None:
    """Return the accelerators per node of a queue; None where the machine file does not state them."""
    return machine.queues[queue].devices_per_node if queue is not None else None


def walltime(estimate: TimeEstimate, limit: int | None) -> tuple[int | None, int]:
    """Minutes of one job and the number of jobs: the 95th percentile and a margin, rounded up, cut at the limit.

    A run beyond it, or slower than expected, resumes in further jobs. A run of unknown time requests
    CALIBRATION_MIN.
    """
    seconds, links = needed(estimate), 1
    if limit is not None and seconds > 60 * limit and math.isfinite(estimate.high_s):
        links = math.ceil(estimate.high_s / max(60.0, 60 * limit - LINK_MARGIN_S))
        seconds = estimate.high_s / links + LINK_MARGIN_S
    minutes = ROUND_MIN * max(1, math.ceil(seconds / (60 * ROUND_MIN)))
    return minutes if limit is None else min(minutes, limit), links


def needed(estimate: TimeEstimate) -> float:
    """Seconds of walltime that a run needs in all, with one margin for its checkpoint."""
    return estimate.high_s + LINK_MARGIN_S if math.isfinite(estimate.high_s) else 60.0 * CALIBRATION_MIN


def limit_min(machine: Machine, queue: str | None) -> int | None:
    """Longest job in a queue, whole tenths of hours in minutes; None where no limit is known."""
    hours = machine.queues[queue].walltime_limit_h if queue is not None else None
    hours = hours or machine.limits.walltime_limit_h or machine.walltime_limit_h
    if hours is None:
        return None
    minutes = int(hours * 60 + 1e-3)  # hours as written have six digits
    return minutes - minutes % ROUND_MIN if minutes >= ROUND_MIN else max(1, minutes)


def queue_for(machine: Machine, nodes: int, estimate: TimeEstimate, *, devices: bool = False) -> str | None:
    """The first queue that accepts that many nodes for that long; else the one of them with the longest jobs.

    With `devices` a queue of CPU nodes is none; without, such queues come first.
    """
    fitting = [
        name for name, one in machine.queues.items() if (one.least_nodes or 1) <= nodes <= (one.most_nodes or nodes)
    ]
    of_cpus = [name for name in fitting if machine.queues[name].devices_per_node == 0]
    fitting = [name for name in fitting if name not in of_cpus] if devices else of_cpus or fitting
    for name in fitting:
        limit = limit_min(machine, name)
        if limit is None or needed(estimate) <= 60 * limit:
            return name
    return max(fitting, key=lambda name: limit_min(machine, name) or 0, default=None)


def cpus_per_rank(spec: RunSpec, machine: Machine, nodes: int, ranks_per_node: int) -> int:
    """Cores of each rank: its threads or its share of the node's cores, and its share of the parameter servers'.

    A node has one share per device, so that a rank has the same cores whether or not the node is full.
    """
    node_cores = machine.cores
    shares = max(machine.devices_per_node or 0, ranks_per_node)
    each = spec.threads_per_rank or (max(1, node_cores // shares) if machine.devices_per_node else 1)
    servers_on_node = -(-spec.strategy.servers_beside // nodes)
    needed = -(-(ranks_per_node + servers_on_node) * each // ranks_per_node)
    return max(1, min(needed, node_cores // ranks_per_node))


def memory_mb(machine: Machine) -> int:
    """Memory that a job requests on each node, MiB, which schedulers call MB: measured runs do not share nodes."""
    if machine.job_memory_gib is not None:
        return int(machine.job_memory_gib * 1024)
    return int(MEMORY_SHARE * machine.memory_bytes / (1 << 20))


def refuse_caps(caps: Mapping[str, Any]) -> None:
    """Raise UserError where `--resources` caps the geometry: Snakemake would silently make each run smaller."""
    for name in (*NAMES, "mem_mib"):
        if name in caps and name != "queue":
            remedy = "cap what runs at the same time with `--jobs N`"
            raise UserError(f"a cap on `{name}` would change the runs themselves", f"--resources {name}=…", remedy)


class Planner:
    """Resources and expectations of the configurations and datasets on one machine, each worked out once."""

    def __init__(self, name: str, machine: Machine) -> None:
        self.name, self.machine = name, machine
        self._known: dict[str, tuple[Resources, TimeEstimate]] = {}

    @functools.cached_property
    def expectation(self) -> Expectation:
        """Read when it is first needed: a command that runs nothing needs no history."""
        return Expectation(self.name, self.machine)

    def of(self, run: Run) -> tuple[Resources, TimeEstimate]:
        """Request of the run's job, and its expectation; repeats have the same."""
        if run.configuration not in self._known:
            estimate = self.expectation.of(run)
            self._known[run.configuration] = of_run(run, self.machine, estimate), estimate
        return self._known[run.configuration]

    def of_dataset(self, dataset: str, spec: RunSpec) -> tuple[Resources, TimeEstimate]:
        """Request of the job that prepares a run's data, and its expectation."""
        if dataset not in self._known:
            estimate = self.expectation.of_dataset(spec)
            self._known[dataset] = of_dataset(self.machine, estimate), estimate
        return self._known[dataset]
