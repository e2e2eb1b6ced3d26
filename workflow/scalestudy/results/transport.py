"""Which way the gradients went, and whether that is the way they should go: 003's rules 8b and 9 as checks."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from scalestudy.training.job import Job
from scalestudy.training.rendezvous import speed

# `… Ring 00 : 0[0] -> 1[1] via P2P/IPC` (NCCL 2.4), `… Channel 00/0 : 0[0] -> 1[1] via P2P/CUMEM` (since 2.7), and
# `… Ring 01 : 16 -> 0 [send] via NET/IB/0`; the ranks are those of the communicator.
VIA = re.compile(r"(?:Ring|Channel) \S+ : (\d+)\S* -> (\d+)\S* (?:\[\w+\] )?via (\w+(?:/\w+)*)")


def nccl_transports(text: str) -> Counter[tuple[int, int, str]]:
    """From NCCL's log: how often each transport was taken, by sender and receiver."""
    return Counter((int(a), int(b), via.upper()) for a, b, via in VIA.findall(text))


def nccl_doubts(job: Job, log: str, has_infiniband: bool) -> Iterator[str]:
    """What 003 would not call optimal: not P2P inside a node, not InfiniBand between nodes that have it."""
    for (sender, receiver, via), count in sorted(nccl_transports(log).items()):
        if max(sender, receiver) >= job.spec.ranks:
            continue
        inside = job.host_of(sender) == job.host_of(receiver)
        if inside and not via.startswith("P2P"):
            yield f"NCCL sends from rank {sender} to {receiver}, on one machine, via {via}, not P2P ({count} channels)"
        elif not inside and has_infiniband and not via.startswith("NET/IB"):
            yield f"NCCL sends from rank {sender} to {receiver} via {via}, not NET/IB, though there is InfiniBand"


def gloo_doubts(job: Job, interface: str | None, speeds: dict[str, int]) -> Iterator[str]:
    """Between machines: not over loopback, and over the fastest network that there is."""
    if len(job.hosts) == 1 or interface is None:
        return
    fastest = max(speeds, key=lambda name: speeds[name], default=interface)
    if interface == "lo":
        yield "gloo exchanges over loopback: all hosts of the job are one machine"
    elif speeds.get(fastest, 0) > speeds.get(interface, 0) > 0:
        yield (
            f"gloo exchanges over {interface} ({speeds[interface]} Mbit/s), though there is {fastest} "
            f"({speeds[fastest]} Mbit/s): set GLOO_SOCKET_IFNAME"
        )


def doubts(job: Job, backend: str, interface: str | None) -> Iterator[str]:
    """What is wrong with the transport of a run that has ended."""
    if backend == "nccl":
        logs = sorted(job.log.glob("nccl.*.log"))
        text = "\n".join(log.read_text(encoding="utf-8", errors="replace") for log in logs)
        infiniband = Path("/sys/class/infiniband")
        yield from nccl_doubts(job, text, infiniband.is_dir() and any(infiniband.iterdir()))
    elif backend == "gloo":
        names = [path.name for path in Path("/sys/class/net").glob("*") if is_up(path)]
        yield from gloo_doubts(job, interface, {name: speed(name) for name in names})


def is_up(interface: Path) -> bool:
    """Whether a network interface can be used."""
    try:
        return (interface / "operstate").read_text(encoding="ascii").strip() == "up"
    except OSError:
        return False
