"""How a process becomes one of its run: threads, device, process groups."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist

from scalestudy.errors import UserError
from scalestudy.hardware import ON_PURPOSE
from scalestudy.strategies.base import World
from scalestudy.strategies.nodes import group_of
from scalestudy.training.job import Job
from scalestudy.training.oom import is_oom
from scalestudy.training.rendezvous import store as rendezvous_store


def join(job: Job, rank: int) -> World:
    """Become rank `rank` of the run, or one of its parameter servers. UserError where its GPU cannot be used."""
    spec, resolved = job.spec, job.resolved
    torch.set_num_threads(resolved.threads_per_rank)
    device = torch.device("cpu")
    if resolved.device == "cuda" and rank < spec.ranks:
        place = job.local_rank(rank)
        device = torch.device("cuda", place % resolved.devices if job.shares_devices else place)
        try:
            torch.cuda.set_device(device)
        except RuntimeError as error:  # a driver too old for this torch, or a device that is busy
            if is_oom(error):
                raise
            what = f"torch {torch.__version__} cannot use GPU {device.index}: {str(error).strip().splitlines()[0]}"
            raise UserError(what, remedy=f"`scalestudy doctor` says more; {ON_PURPOSE}") from None
        allow_tf32(spec.tf32)
    workers = control = None
    if job.processes > 1 or spec.strategy.name != "single":
        # Servers are CPU processes: with them, a GPU run exchanges through the host. NCCL refuses two ranks on one device.
        through_host = bool(spec.strategy.servers_beside) or job.shares_devices
        backend = "nccl" if resolved.device == "cuda" and not through_host else "gloo"
        dist.init_process_group(backend, store=rendezvous_store(job, rank), rank=rank, world_size=job.processes)
        workers = group_of(range(spec.ranks))
        control = group_of(range(spec.ranks), "gloo") if backend == "nccl" else None
    servers = spec.strategy.servers_beside
    return World(rank, spec.ranks, servers, device, resolved.ranks_per_node, workers, control)


def allow_tf32(allowed: bool | None) -> None:
    """Let float32 products use TF32 or not; None leaves it as torch has it.

    By torch's older names: it refuses a mixture of both, and compiled code reads the older ones.
    """
    if allowed is not None:
        torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = allowed


def uses_tf32(device: torch.device) -> list[str] | None:
    """Which products of float32 may be computed in TF32; None on a CPU."""
    if device.type != "cuda":
        return None
    products = ["matrix products"] if torch.backends.cuda.matmul.allow_tf32 else []
    return products + (["convolutions"] if torch.backends.cudnn.allow_tf32 else [])


def barrier(world: World) -> None:
    """Wait for all ranks that train."""
    if world.workers is not None and world.ranks > 1:
        dist.barrier(group=world.workers)


def gathered(part: Any, world: World) -> list[Any]:
    """The parts of all ranks that train, on every one of them; None is left out."""
    if world.workers is None or world.ranks == 1:
        return [part]
    parts: list[Any] = [None] * world.ranks
    dist.all_gather_object(parts, part, group=world.workers)
    return [part for part in parts if part is not None]


def device_name(device: torch.device) -> str:
    """The accelerator as its maker calls it, or `cpu`."""
    return torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu"


def device_bus_id(device: torch.device) -> str | None:
    """The GPU's PCI address as the kernel writes it."""
    if device.type != "cuda":
        return None
    found: Any = torch.cuda.get_device_properties(device)
    return f"{found.pci_domain_id:04x}:{found.pci_bus_id:02x}:{found.pci_device_id:02x}.0"
