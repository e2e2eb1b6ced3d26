"""The strategies by name, with their options. Imports no torch: specs are checked where none is."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from pydantic import Field

from scalestudy.spec.base import Spec


class StrategySpec(Spec):
    """How ranks exchange gradients or weights."""

    max_ranks: ClassVar[int | None] = None
    """The largest number of ranks that the strategy can have, None for any."""
    emulatable: ClassVar[bool] = True
    """Whether it works where an emulated accelerator takes the place of the layers."""
    scales_loss: ClassVar[bool] = True
    """Whether its update knows the scale of a float16 loss."""
    keeps_layout: ClassVar[bool] = True
    """Whether weights may lie in another memory format than the contiguous one."""
    synchronous: ClassVar[bool] = True
    """Whether all ranks make the same step at the same time.

    Where they do not, updates have a staleness, and ranks agree on stopping only where they meet.
    """
    needs_build: ClassVar[bool] = False
    """Whether it needs something that is compiled on the machine first, after the runs that do not."""
    needs_mpi: ClassVar[bool] = False
    """Whether its ranks have to be started by mpirun."""

    @property
    def servers_beside(self) -> int:
        """Processes in addition to the ranks: parameter servers."""
        match self:
            case ParameterServer() | AsyncParameterServer():
                return self.servers
        return 0

    @property
    def shares_devices(self) -> bool:
        """Whether it works where ranks share an accelerator: over gloo, which has broadcast and all-reduce for tensors of a
        GPU, or through the host, as with servers."""
        by_ring = isinstance(self, Ring) and self.schedule != "overlapped"
        return isinstance(self, AllReduce) or by_ring or self.servers_beside > 0

    @property
    def idle_alone(self) -> bool:
        """Whether one rank alone does the same as `single`: no gradient is packed, copied or sent.

        Such runs are measurements of the same thing, and efficiencies are relative to all of them together. Overlapped,
        DistributedDataParallel fills its buckets on one rank too; and mpirun places a process its own way.
        """
        scheduled = isinstance(self, Scheduled) and self.schedule != "overlapped" and not self.needs_mpi
        return isinstance(self, Single) or scheduled


Algorithm = Literal["ring", "halving_doubling"]
"""What sums one buffer over some ranks: gloo's or NCCL's own all-reduce (gloo's is a ring), or halving and doubling."""


class Scheduled(StrategySpec):
    """An algorithm that sums one buffer over ranks, and when it runs."""

    schedule: Literal["per_parameter", "flat", "overlapped"] = "flat"
    """One exchange per parameter, one for all gradients after backward, or bucket by bucket during backward."""
    bucket_mib: Annotated[float, Field(gt=0, le=4096)] = 25.0
    """Size of a bucket where the exchange is overlapped, MiB; as with `allreduce`."""


class Single(StrategySpec):
    """One process, no exchange."""

    name: Literal["single"]
    max_ranks = 1


class AllReduce(StrategySpec):
    """DistributedDataParallel: bucketed ring all-reduce (gloo or NCCL), overlapped with backward."""

    name: Literal["allreduce"]
    bucket_mib: Annotated[float, Field(gt=0, le=4096)] = 25.0
    """Size of a gradient bucket, MiB. 25 is torch's default, with which the first bucket has 1 MiB."""
    compression: Literal["none", "fp16", "bf16"] = "none"
    """What gradients are rounded to on the wire."""


class Ring(Scheduled):
    """All-reduce of gloo (a segmented ring) or NCCL, in one call, or in one per parameter (ChainerMN's naive and flat)."""

    name: Literal["ring"]


class HalvingDoubling(Scheduled):
    """Recursive halving reduce-scatter, recursive doubling all-gather (Thakur et al. 2005; Caffe2 with Gloo)."""

    name: Literal["halving_doubling"]


class Hierarchical(Scheduled):
    """Reduce to a leader in each node, sum between leaders, broadcast in each node (ChainerMN)."""

    name: Literal["hierarchical"]
    outer: Algorithm = "ring"
    """How the leaders sum."""
    outer_transport: Literal["same", "gloo"] = "same"
    """`gloo`: leaders exchange over TCP through host memory, where GPUs exchange by NCCL inside the node."""


class TwoDimensional(Scheduled):
    """Reduce-scatter inside each node, all-reduce of each part between nodes, all-gather inside (ChainerMN)."""

    name: Literal["two_dimensional"]
    outer: Algorithm = "ring"
    """How the parts are summed between nodes."""


class MPIAllReduce(Scheduled):
    """MPI_Allreduce, through host memory; variables of the MPI library choose its algorithm."""

    name: Literal["mpi_allreduce"]
    needs_mpi = True


class ParameterServer(StrategySpec):
    """Synchronous parameter servers, as in TensorFlow; parameters are placed on them by size, largest first."""

    name: Literal["parameter_server"]
    scales_loss = False
    servers: Annotated[int, Field(ge=1, le=1024)] = 1
    """How many servers share the parameters: processes in addition to the ranks."""


class AsyncParameterServer(StrategySpec):
    """Parameter servers that apply each gradient when it arrives, on whatever weights there are by then."""

    name: Literal["async_parameter_server"]
    synchronous = False
    scales_loss = False
    servers: Annotated[int, Field(ge=1, le=1024)] = 1
    """Dedicated server processes; parameters are placed on them by size, largest first."""


class Zero1(StrategySpec):
    """Each rank keeps the optimiser's state of one part of the weights and steps it (ZeRO stage 1)."""

    name: Literal["zero1"]
    scales_loss = False
    keeps_layout = False


class FSDP(StrategySpec):
    """torch's fully_shard: weights, gradients and optimiser's state sharded, gathered layer by layer (ZeRO stage 3)."""

    name: Literal["fsdp"]
    emulatable = False
    keeps_layout = False
    unit_mib: Annotated[float, Field(ge=0, le=4096)] = 1.0
    """Layers with at least this many MiB of weights are gathered one at a time; smaller ones together with the rest."""


class Horovod(StrategySpec):
    """Horovod's DistributedOptimizer: fused all-reduces during backward; `make horovod` builds it."""

    name: Literal["horovod"]
    needs_build = True
    scales_loss = False


class Pipeline(StrategySpec):
    """Pipeline parallelism with automatically chosen stages, times data parallelism (RaNNC, GPipe, PipeDream)."""

    name: Literal["pipeline"]
    emulatable = False
    scales_loss = False  # its stages cannot agree on the scale
    stages: Annotated[int, Field(ge=1, le=4096)] | None = None
    """Stages of the model, each on a separate rank; ranks over stages are replicas. Unset: chosen."""
    micro_batches: Annotated[int, Field(ge=1, le=65536)] | None = None
    """Parts of a replica's batch that pass through the stages one after the other. Unset: chosen."""


AnyStrategy = (
    Single
    | AllReduce
    | Ring
    | HalvingDoubling
    | Hierarchical
    | TwoDimensional
    | MPIAllReduce
    | ParameterServer
    | AsyncParameterServer
    | Zero1
    | FSDP
    | Horovod
    | Pipeline
)
