"""MPI_Allreduce, as ChainerMN calls it; ranks are started by mpirun."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist

from scalestudy.errors import UserError
from scalestudy.strategies.allreduce.schedule import Scheduled, Sum


class MPIAllReduce(Scheduled):
    """All gradients in one call by default. Tensors of GPUs go through host memory."""

    def algorithm(self, group: dist.ProcessGroup) -> Sum:
        """MPI's all-reduce over all ranks; `group` is torch's, and not used."""
        from mpi4py import MPI

        # Ranks are numbered as the run numbers them, in whatever order mpirun placed the processes.
        world = self.world
        places: list[Any] = [None] * world.ranks
        dist.all_gather_object(places, MPI.COMM_WORLD.Get_rank(), group=world.control or world.workers)
        if len(set(places)) < world.ranks:
            what = "the ranks of `mpi_allreduce` do not know each other: srun started them with another PMI than this MPI has"
            raise UserError(
                what, "site: srun_mpi", "set it to the PMI of this MPI, or leave it out: then mpirun starts them"
            )
        ranks = MPI.COMM_WORLD.Create_group(MPI.COMM_WORLD.group.Incl(places))

        def sum_by_mpi(buffer: torch.Tensor) -> None:
            wide = buffer.float() if buffer.itemsize < 4 else buffer  # MPI has no 16-bit floating-point types
            host = wide.cpu()
            ranks.Allreduce(MPI.IN_PLACE, host.numpy())
            if host is not buffer:
                buffer.copy_(host)

        return sum_by_mpi
