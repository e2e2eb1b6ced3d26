"""Job: everything that the processes of one run need to know."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from scalestudy.spec.run import RunSpec


@dataclass(frozen=True)
class Resolved:
    """Settings that the machine resolved."""

    nodes: int
    ranks_per_node: int
    threads_per_rank: int
    device: str
    cores: int
    step_time_s: float | None
    """Emulated compute time of one step; None where compute is real."""
    transport_within: str | None = None
    """What NCCL has to use inside a node, as its log names it; None: the machine's description does not say."""
    transport_between: str | None = None
    """The same between nodes."""
    devices: int = 0
    """Accelerators of a machine; 0: ranks compute on cores."""
    peak_tflops: float | None = None
    """Dense peak of one accelerator in the number type of matrix products, as the machine's description has it."""
    convolution_peak_tflops: float | None = None
    """The same in the number type of convolutions."""


@dataclass(frozen=True)
class Job:
    """One run, ready to start."""

    run: str
    spec: RunSpec
    resolved: Resolved
    manifest: Path
    folder: Path
    """Scratch that all ranks see: rendezvous and their reports."""
    extensions: Path
    log: Path = Path("log")
    """Folder of the processes' output, one `rank.<k>.log` each."""
    hosts: tuple[str, ...] = ("localhost",)
    """Machines that take part; a single one holds all nodes of the geometry."""
    away: bool = False
    """Whether the first of them is another one than that of `scalestudy train`."""
    store: tuple[str, int] | None = None
    """Address at which processes find each other; None: they use a file in `folder`, on one machine."""
    run_folder: Path = Path("run")
    """The folder of the result, on a file system that all ranks see: checkpoints, and a file that asks to stop."""
    resume: Path | None = None
    """The run's own checkpoint to resume from."""
    relays: tuple[int, ...] = ()
    """The processes that are the switch of an emulated network and the server on it: their CPU time is the run's own."""
    deadline: float | None = None
    """When this job will be killed, seconds since 1970."""

    def node_of(self, process: int) -> int:
        """The node, perhaps a logical one, of a process. Ranks fill node after node; servers are dealt to them in turn."""
        if process >= self.spec.ranks:
            return (process - self.spec.ranks) % self.resolved.nodes
        return process // self.resolved.ranks_per_node

    @property
    def shares_devices(self) -> bool:
        """Whether several ranks compute on one accelerator: then NCCL cannot be used."""
        ranks_of_host = -(-self.spec.ranks // len(self.hosts))
        return self.resolved.device == "cuda" and 0 < self.resolved.devices < ranks_of_host

    @property
    def processes(self) -> int:
        """Ranks and parameter servers."""
        return self.spec.ranks + self.spec.strategy.servers_beside

    def host_of(self, rank: int) -> int:
        """Index of the machine of a process: that of its node, or the only one."""
        return 0 if len(self.hosts) == 1 else self.node_of(rank)

    def on_host(self, host: int) -> list[int]:
        """The processes of one machine, in order; a process's place among them is its local rank."""
        return [rank for rank in range(self.processes) if self.host_of(rank) == host]

    def local_rank(self, rank: int) -> int:
        """The place of a process among those of its machine."""
        return self.on_host(self.host_of(rank)).index(rank)

    def title(self, rank: int) -> str:
        """A process as messages call it."""
        return f"rank {rank}" if rank < self.spec.ranks else f"parameter server {rank - self.spec.ranks}"

    def log_of(self, rank: int) -> Path:
        """Where a process's output goes."""
        return self.log / f"rank.{rank}.log"
