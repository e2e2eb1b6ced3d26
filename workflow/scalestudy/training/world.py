"""How a process becomes one of its run: threads, device and its memory, process groups."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

import torch
import torch.distributed as dist

from scalestudy.errors import Skipped, UserError
from scalestudy.hardware import ON_PURPOSE
from scalestudy.strategies.base import World, group_of
from scalestudy.training.job import Job
from scalestudy.training.rendezvous import store as rendezvous_store

NO_MEMORY = ("out of memory", "CUBLAS_STATUS_ALLOC_FAILED", "CUDNN_STATUS_ALLOC_FAILED")
"""Of CUDA and its libraries, in an error that torch gives no type of its own."""
NO_MEMORY_OF_CPU = "DefaultCPUAllocator: can't allocate memory"
"""Of torch on a CPU. Where the run sets no limit, the host's memory is exhausted, and the next time it may not be."""
OTHERS_BYTES = 3 << 30
"""What others hold of a device beyond this is no property of the run. The driver and a process's own context, its libraries
and NCCL's buffers take 1 to 2 GiB that torch's allocator does not count."""


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
    properties: Any = torch.cuda.get_device_properties(device)
    return f"{properties.pci_domain_id:04x}:{properties.pci_bus_id:02x}:{properties.pci_device_id:02x}.0"


# Memory of the device


def is_oom(error: BaseException) -> bool:
    """Whether an error says that a device's memory does not suffice."""
    is_named = isinstance(error, RuntimeError) and any(words in str(error) for words in NO_MEMORY)
    return is_named or isinstance(error, torch.OutOfMemoryError)


@contextmanager
def oom_as_skip(job: Job) -> Iterator[None]:
    """Raise Skipped where memory of the device runs out inside: the same happens next time.

    UserError where others hold much of the device: then it may not.
    """
    try:
        yield
    except (RuntimeError, MemoryError) as error:
        limit_mib = job.spec.memory_limit_mib
        is_limited = limit_mib is not None and (isinstance(error, MemoryError) or NO_MEMORY_OF_CPU in str(error))
        if not is_limited and not is_oom(error):
            raise
        print(f"{type(error).__name__}: {error}", flush=True)  # torch's whole message, for the log
        first = str(error).strip().split("\n")[0].rpartition("DefaultCPUAllocator: ")[2]
        message = first[:300].rstrip(".")  # torch names request, capacity and use
        others = 0
        with suppress(RuntimeError, AssertionError):  # after some errors the device answers nothing more
            if torch.cuda.is_initialized() and not job.shares_devices:
                free, total = torch.cuda.mem_get_info()
                others = total - free - torch.cuda.memory_reserved()
        if others > OTHERS_BYTES:
            what = f"memory of the device ran out, of which others hold {others / 2**30:.1f} GiB: {message}"
            remedy = "end the other programs on this device, then run the same command again"
            raise UserError(what, remedy=remedy) from None
        within = "" if limit_mib is None else f" in {limit_mib:g} MiB"
        raise Skipped(
            f"does not fit{within}: {message}; use a smaller batch, or another strategy or precision"
        ) from None
