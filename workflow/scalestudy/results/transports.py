"""The network that the ranks used, by the logs of NCCL and MPI, and by gloo's interface."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from scalestudy.training.job import Job

# `… Ring 00 : 0[0] -> 1[1] via P2P/IPC` (NCCL 2.4), `… Channel 00/0 : 0[0] -> 1[1] via P2P/CUMEM` (since 2.7), and
# `… Ring 01 : 16 -> 0 [send] via NET/IB/0`; the ranks are those of the communicator.
VIA = re.compile(
    r"(?:Ring|Channel) \S+ : ([0-9]{1,9})(?![0-9])\S* -> ([0-9]{1,9})(?![0-9])\S* (?:\[\w{1,20}\] )?"
    r"via (\w{1,32}(?:/\w{1,32}){0,4})"
)
# `[n01:71] mca: bml: Using tcp btl for send to [[19046,1],1] on node n02`: Open MPI's log, for each rank that is sent to.
BTL = re.compile(r"Using (\w{1,32}) btl for send to \[\[\d{1,9},\d{1,9}\],(\d{1,9})\]")
MAX_LOG_BYTES = 1 << 26
"""Of each log: connections are in its first lines, and a trace of all calls can fill a disk."""

Transports = Counter[tuple[int, int, str]]
"""How often each transport was used, by sender and receiver."""


def nccl_transports(text: str) -> Transports:
    """The transports that NCCL's log names."""
    return Counter((int(a), int(b), via.upper()) for a, b, via in VIA.findall(text))


def transports_of(job: Job) -> Transports:
    """The transports that NCCL's logs of all ranks name; none without NCCL."""
    return sum((nccl_transports(beginning(log)) for log in job.log.glob("nccl.*.log")), Counter())


def mpi_transports(job: Job) -> Transports:
    """The transports to other ranks that the logs of all ranks name in Open MPI's words; none without it."""
    logs = [(rank, beginning(log)) for rank in range(job.spec.ranks) if (log := job.log_of(rank)).exists()]
    return Counter(
        (rank, int(to), f"MPI {via}") for rank, log in logs for via, to in BTL.findall(log) if int(to) != rank
    )


def beginning(log: Path) -> str:
    """The first MAX_LOG_BYTES of a log."""
    with log.open("rb") as stream:
        return stream.read(MAX_LOG_BYTES).decode(errors="replace")


def _pairs(job: Job, used: Transports) -> Iterator[tuple[int, int, str, bool, int]]:
    """Sender, receiver, transport, whether both are on one host, and the number of channels."""
    for (sender, receiver, via), count in sorted(used.items()):
        if max(sender, receiver) < job.spec.ranks:
            yield sender, receiver, via, job.host_of(sender) == job.host_of(receiver), count


def nccl_warnings(job: Job, used: Transports, has_infiniband: bool) -> Iterator[str]:
    """Transports slower than the hardware allows: not P2P inside a node, not InfiniBand between nodes that have it."""
    for sender, receiver, via, inside, count in _pairs(job, used):
        if inside and not via.startswith("P2P"):
            yield f"NCCL sends from rank {sender} to {receiver}, on one machine, via {via}, not P2P ({count} channels)"
        elif not inside and has_infiniband and not via.startswith("NET/IB"):
            yield f"NCCL sends from rank {sender} to {receiver} via {via}, not NET/IB, though there is InfiniBand"


def unpromised_transports(job: Job, used: Transports) -> Iterator[str]:
    """Transports other than those that the machine's description promises (`transport`), one sentence each."""
    for sender, receiver, via, inside, _ in _pairs(job, used):
        promised = job.resolved.transport_within if inside else job.resolved.transport_between
        if promised is not None and not via.startswith(promised.upper()):
            yield (
                f"NCCL sent from rank {sender} to {receiver} via {via}, and transport.{'within' if inside else 'between'} "
                f"of the machine is {promised}: see log/nccl.{sender}.log"
            )


def transports_named(job: Job, backend: str, interface: str | None, used: Transports) -> dict[str, str]:
    """`transport_within` a node and `transport_between` nodes, as the log of NCCL or MPI names those that were `used`, or
    gloo's network; without those that are not known.
    """
    if not used and backend == "gloo" and interface is not None and job.spec.ranks > 1:
        return {f"transport_{'between' if len(job.hosts) > 1 else 'within'}": f"TCP over {interface}"}
    transports: dict[str, dict[str, None]] = {}
    for _, _, via, inside, _ in _pairs(job, used):
        place = transports.setdefault(f"transport_{'within' if inside else 'between'}", {})
        place["/".join(via.split("/")[:2])] = None  # without the number of the card
    return {place: ", ".join(sorted(names)) for place, names in sorted(transports.items())}


def unknown_transport(job: Job, used: Transports) -> str | None:
    """Why NCCL's transport cannot be compared with the machine file; None where it can, or needs not."""
    promised = job.resolved.transport_within or job.resolved.transport_between
    if job.spec.ranks == 1 or promised is None or used:
        return None
    return "which transport NCCL used cannot be checked: its log names none (is NCCL_DEBUG set?)"
