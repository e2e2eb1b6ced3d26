"""The strategies by name, with their options. Imports no torch: specs are checked where none is."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from scalestudy.spec.base import Spec


class StrategySpec(Spec):
    """How ranks exchange what they learn."""

    @property
    def servers_beside(self) -> int:
        """Processes beside the ranks: dedicated parameter servers."""
        return 0

    @property
    def most_ranks(self) -> int | None:
        """The largest number of ranks that the strategy can have, None for any."""
        return None

    @property
    def needs_mpi(self) -> bool:
        """Whether the ranks must be started by mpirun."""
        return False


class Single(StrategySpec):
    """One process, no exchange."""

    name: Literal["single"]

    @property
    def most_ranks(self) -> int | None:
        return 1


class AllReduce(StrategySpec):
    """DistributedDataParallel: bucketed ring all-reduce (gloo or NCCL), overlapped with backward."""

    name: Literal["allreduce"]
    bucket_mib: Annotated[float, Field(gt=0, le=4096)] = 25.0
    """Size of a gradient bucket, MiB. 25 is torch's default, with which the first bucket has 1 MiB."""
    compression: Literal["none", "fp16", "bf16"] = "none"
    """What gradients are rounded to on the wire."""


class HalvingDoubling(StrategySpec):
    """Recursive halving reduce-scatter, recursive doubling all-gather (Thakur et al. 2005; Caffe2 in 001)."""

    name: Literal["halving_doubling"]
    schedule: Literal["per_parameter", "flat"] = "flat"
    """One exchange per parameter, or one for all gradients after backward."""


class ParameterServer(StrategySpec):
    """Synchronous parameter servers, processes of their own beside the ranks (TensorFlow in 001)."""

    name: Literal["parameter_server"]
    servers: Annotated[int, Field(ge=1, le=1024)] = 1
    """Dedicated server processes; parameters are placed on them by size, largest first."""

    @property
    def servers_beside(self) -> int:
        return self.servers


AnyStrategy = Single | AllReduce | HalvingDoubling | ParameterServer
