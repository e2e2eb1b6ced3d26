"""How the processes of a run find each other, and on which network."""

from __future__ import annotations

import os
import socket
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil

from scalestudy.limits import kernel_text
from scalestudy.training.job import Job

if TYPE_CHECKING:
    import torch.distributed as dist

# The socket of rank 0's store: bound by the process that forks it, on a port that the kernel chose: no port can
# be in use already, and none has to be agreed on beforehand.
_listener: socket.socket | None = None


def listen() -> int:
    """Open the socket of the store, for a rank 0 that is forked afterwards; returns its port."""
    global _listener  # noqa: PLW0603 (inherited by fork; a process has one run)
    _listener = socket.create_server(("", 0), backlog=4096)
    return int(_listener.getsockname()[1])


def free_port() -> int:
    """A port that is free now, for a program that opens it later."""
    with socket.create_server(("", 0)) as server:
        return int(server.getsockname()[1])


def store(job: Job, rank: int) -> dist.Store:
    """The run's key-value store: a file on one machine, rank 0's server on several."""
    import torch
    import torch.distributed as dist

    if job.store is None:
        return dist.FileStore(str(job.folder / "rendezvous"), job.processes)
    address, port = job.store
    if rank > 0:
        return dist.TCPStore(address, port, job.processes, False)
    assert _listener is not None
    # Compared as versions; before 2.8, libuv served on no socket that was open already.
    way: Any = {"master_listen_fd": _listener.detach(), "use_libuv": torch.__version__ >= "2.8"}
    return dist.TCPStore(address, port, job.processes, True, wait_for_workers=False, **way)


def environment(job: Job, rank: int) -> dict[str, str]:
    """The variables by which libraries learn a process's place, named as torchrun names them."""
    # NCCL logs once, at the start, which transports it uses; `results/warnings.py` reads the log.
    nccl_log = {
        "NCCL_DEBUG": "INFO",
        "NCCL_DEBUG_SUBSYS": "INIT,P2P,SHM,NET",
        "NCCL_DEBUG_FILE": str(job.log / f"nccl.{rank}.log"),
    }
    return {
        "RANK": str(rank),
        "WORLD_SIZE": str(job.processes),
        "LOCAL_RANK": str(job.local_rank(rank)),
        "LOCAL_WORLD_SIZE": str(len(job.on_host(job.host_of(rank)))),
        "GROUP_RANK": str(job.host_of(rank)),
        "CUDA_DEVICE_ORDER": os.environ.get("CUDA_DEVICE_ORDER", "PCI_BUS_ID"),
        **({} if "NCCL_DEBUG" in os.environ or job.resolved.device != "cuda" else nccl_log),
    }


def addresses() -> list[str]:
    """This machine's IPv4 addresses, the fastest network first, loopback last."""
    interface_addresses = [
        (name == "lo" or address.address.startswith("127."), -speed(name), address.address)
        for name, several in psutil.net_if_addrs().items()
        for address in several
        if address.family == socket.AF_INET
    ]
    return [address for *_, address in sorted(interface_addresses)]


def speed(interface: str) -> int:
    """Megabits per second as the kernel has it; 0 where it does not know."""
    text = kernel_text(Path(f"/sys/class/net/{interface}/speed"))
    return int(text) if text.isdigit() else 0


def interface_of(address: str) -> str | None:
    """The network interface that has an address."""
    for name, several in psutil.net_if_addrs().items():
        if (socket.AF_INET, address) in [entry[:2] for entry in several]:
            return name
    return None


def leave_mpi() -> None:
    """End MPI where this process used it: mpirun takes a process that ends without for one that failed."""
    if "mpi4py.MPI" in sys.modules:
        from mpi4py import MPI

        if MPI.Is_initialized() and not MPI.Is_finalized():
            MPI.Finalize()
