"""The strategies by name, with their options. Imports no torch: specs are checked where none is."""

from __future__ import annotations

from collections.abc import Iterator
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
    def emulates(self) -> bool:
        """Whether the strategy can be run with a stand-in for compute."""
        return True

    def problems(self, ranks: int, global_batch: int) -> Iterator[tuple[str, str]]:
        """Options that cannot be with so many ranks and samples: the key, and what is wrong."""
        return iter(())


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


class Pipeline(StrategySpec):
    """Automatic model parallelism: the model is cut into stages that work as a pipeline, times data parallelism (002)."""

    name: Literal["pipeline"]
    stages: Annotated[int, Field(ge=1, le=4096)] | None = None
    """Stages of the model, each on a rank of its own; ranks over stages are replicas. Unset: chosen."""
    micro_batches: Annotated[int, Field(ge=1, le=65536)] | None = None
    """Parts of a replica's batch that follow each other through the stages. Unset: chosen."""
    schedule: Literal["gpipe", "1f1b"] = "1f1b"
    """All forward passes and then all backward passes, or backward as soon as possible, which takes less memory."""
    memory_limit_mib: Annotated[float, Field(gt=0)] | None = None
    """Memory that a stage may take on its device while it trains, above that of the process before there is a model."""

    @property
    def emulates(self) -> bool:
        return False

    def problems(self, ranks: int, global_batch: int) -> Iterator[tuple[str, str]]:
        if self.stages is not None and ranks % self.stages:
            yield "stages", f"{ranks} ranks cannot be shared equally by {self.stages} stages"
            return
        parts = self.micro_batches or 1
        replicas = ranks // self.stages if self.stages is not None else 1
        if global_batch % (replicas * parts):
            yield "micro_batches", f"{global_batch // replicas} samples cannot be cut into {parts} equal parts"


AnyStrategy = Single | AllReduce | HalvingDoubling | ParameterServer | Pipeline
