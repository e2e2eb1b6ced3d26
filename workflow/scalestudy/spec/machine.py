"""Machine: the hardware of runs. One file in config/machines/."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Annotated, Literal

from pydantic import AfterValidator, BeforeValidator, Field

from scalestudy.errors import Problem
from scalestudy.limits import usable_cores, usable_memory_bytes
from scalestudy.spec.base import Spec, refused
from scalestudy.spec.hostlist import slurm_hosts
from scalestudy.spec.run import RunSpec, one_or_more

GIB = 1 << 30
AUTO = "auto"
"""In place of a machine's name: the one where the command runs."""
SMALLER = "vary smaller numbers, or exclude this combination"
Precision = Literal["float64", "float32", "tf32", "float16", "bfloat16"]
Whole = Annotated[int, Field(ge=1)]
Positive = Annotated[float, Field(gt=0)]
HOSTS = r"^[A-Za-z0-9][A-Za-z0-9._,\[\]-]*$"
TRANSPORT = r"^[A-Za-z0-9]+(/[A-Za-z0-9]+)*$"


class Queue(Spec):
    """The limits of one queue, partition or resource group. Unset: no limit."""

    least_nodes: Whole | None = None
    """Nodes that one job must have at least."""
    most_nodes: Whole | None = None
    """Nodes that one job can have."""
    walltime_limit_h: Positive | None = None
    """Longest job, hours; unset: that of the machine."""
    most_jobs: Whole | None = None
    """Jobs of one user that run at the same time."""
    most_nodes_running: Whole | None = None
    """Nodes that the running jobs of one user have together."""
    devices_per_node: Annotated[int, Field(ge=0)] | None = None
    """Accelerators of its nodes; unset: those of the machine; 0: a queue of CPU nodes."""


class Prices(Spec):
    """Prices per hour of use; both are added up."""

    currency: str
    """Unit of the prices: a currency, or the points of a site."""
    per_device_hour: Positive | None = None
    """One accelerator for an hour."""
    per_node_hour: Positive | None = None
    """One node for an hour."""

    def per_hour(self, devices: float, nodes: float) -> float:
        """Price of an hour of so many devices and nodes."""
        return devices * (self.per_device_hour or 0.0) + nodes * (self.per_node_hour or 0.0)


class Transport(Spec):
    """NCCL's required transport on this machine, as its log names it; a run that used another is invalid."""

    within: Annotated[str, Field(pattern=TRANSPORT)] | None = None
    """Inside a node: `P2P` or `SHM`, more exactly `P2P/IPC`; unset: a slower one is a warning."""
    between: Annotated[str, Field(pattern=TRANSPORT)] | None = None
    """Between nodes: `NET/IB` or `NET/Socket`; unset: a slower one is a warning."""


def _unfolded(given: tuple[str, ...]) -> tuple[str, ...]:
    """Each name of lists with ranges."""
    try:
        names = tuple(name for part in given for name in slurm_hosts(part))
    except ValueError as error:
        raise refused(str(error), "write names, or ranges such as `node[01-16]`") from None
    if len(set(names)) < len(names):
        twice = next(name for name in names if names.count(name) > 1)
        raise refused(f"the host `{twice}` is named twice", "name each host once")
    return names


HostLists = Annotated[
    tuple[Annotated[str, Field(pattern=HOSTS)], ...], BeforeValidator(one_or_more), AfterValidator(_unfolded)
]


class Machine(Spec):
    """Hardware, limits, prices. Unset values are detected where the run starts."""

    description: str = ""
    """One line of description."""
    nodes: Whole | None = None
    """Nodes that one run can have; unset: no limit is checked."""
    hosts: HostLists = ()
    """Names of its nodes, as its scheduler has them: `[node01, node02]`, or ranges, `["node[01-16]"]`. `vary.nodes: each` of
    a study measures each of them."""
    devices_per_node: Annotated[int, Field(ge=0)] | None = None
    """Accelerators of a node; unset: as found; 0: a CPU machine."""
    device: Literal["cpu", "cuda"] | None = None
    """Device of runs whose study does not set one; unset: as found."""
    device_name: str | None = None
    """Name of the accelerator, as its vendor has it."""
    accelerator: str | None = None
    """Its name in config/reference/step_times.csv: the plan expects those step times."""
    peak_tflops: dict[Precision, Positive] = {}
    """Dense peak of one accelerator per number type, 10^12 operations per second."""
    device_link_gb_per_s: Positive | None = None
    """Between the accelerators of a node, per accelerator, both directions together, GB/s."""
    network_gb_per_s: Positive | None = None
    """Between nodes, per node, one direction, GB/s."""
    transport: Transport = Transport()
    """What NCCL has to use; unset: whatever it finds."""
    cores_per_node: Whole | None = None
    """Physical cores of a node; unset: as found."""
    memory_gib: Positive | None = None
    """Main memory of a node, GiB; unset: as found."""
    job_memory_gib: Positive | None = None
    """Memory that a job requests on each node, GiB; unset: nine tenths of `memory_gib`."""
    walltime_limit_h: Positive | None = None
    """Longest job, hours; what takes longer is a chain of jobs."""
    start_up_s: Positive | None = None
    """Seconds of a job outside its run: its start, imports, and its end; unset: 20 to 120 s, on one node 0.5 to 10 s."""
    exclusive: bool = True
    """Whether each job has its nodes to itself: then all their accelerators count as used, idle ones too."""
    limits: Queue = Queue()
    """Limits of one user that hold in every queue."""
    queues: dict[str, Queue] = {}
    """Queues by name, in the order in which they are tried; none: the site's `scheduler.queue`."""
    prices: Prices | None = None
    """What use costs; unset: no cost is shown."""
    sources: dict[str, str] = {}
    """Source of each value."""

    @property
    def cores(self) -> int:
        """Cores of a node; unset: as found."""
        return self.cores_per_node or usable_cores()

    @property
    def memory_bytes(self) -> int:
        """Main memory of a node, bytes; as found, to three digits, because an update of the kernel takes or gives some MiB."""
        memory_gib = float(f"{usable_memory_bytes() / GIB:.3g}") if self.memory_gib is None else self.memory_gib
        return int(memory_gib * GIB)


def geometry(spec: RunSpec, machine: Machine, devices: int | None = None) -> tuple[int, int]:
    """Nodes of a run, and ranks on each; `devices` are those found on a node where the machine does not say.

    Unset values follow from the machine: a rank per device, and the least number of nodes that shares the ranks equally.
    Without devices, or on the CPU, all ranks are on one node. Emulated devices need no real ones, and shared ones are
    meant for several ranks: where there are too few nodes, more ranks share a node.
    """
    ranks = spec.ranks
    if (named := spec.nodes_named) is not None:
        return named, ranks // named
    if spec.ranks_per_node is not None:
        per_node = min(spec.ranks_per_node, ranks)
        return -(-ranks // per_node), per_node
    devices = machine.devices_per_node or devices
    if not devices or (spec.device or machine.device) == "cpu":
        return 1, ranks
    nodes = next(n for n in range(-(-ranks // devices), ranks + 1) if ranks % n == 0)
    most = 1 if spec.launch.oversubscribe and machine.nodes is None else machine.nodes
    if (spec.accelerator or spec.launch.oversubscribe) and most is not None and nodes > most:
        nodes = next(n for n in range(most, 0, -1) if ranks % n == 0)
    return nodes, ranks // nodes


def machine_problems(spec: RunSpec, machine: Machine, name: str) -> Iterator[Problem]:
    """Find requirements of a spec beyond this machine."""
    named = spec.nodes_named
    if spec.accelerator and named is None and spec.ranks_per_node is None:
        return
    nodes, per_node = geometry(spec, machine)
    most = max_nodes(machine)
    uses_devices = (spec.device or machine.device or "cuda") == "cuda"
    devices = machine.devices_per_node or 0 if uses_devices else 0
    if most is not None and nodes > most and spec.network is None:  # the nodes of an emulated network are on one host
        what = f"{spec.ranks} ranks need {nodes} nodes; machine `{name}` has {most}"
        yield Problem(("ranks",), what, SMALLER)
    elif devices and per_node > devices and not spec.launch.oversubscribe:
        key = "ranks_per_node" if named is None else "nodes" if spec.hosts is None else "hosts"
        what = f"{per_node} ranks on a node need as many devices; machine `{name}` has {devices} on each"
        yield Problem((key,), what, SMALLER)


def max_nodes(machine: Machine) -> int | None:
    """Nodes that one job can have in any queue of the machine; None where nothing is known."""
    in_queues = max((queue.most_nodes or math.inf for queue in machine.queues.values()), default=math.inf)
    most = min(machine.nodes or math.inf, machine.limits.most_nodes or math.inf, in_queues)
    return None if math.isinf(most) else int(most)
