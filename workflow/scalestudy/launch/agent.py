"""One process per node: connects to `scalestudy train`, starts the node's ranks, and tells it what becomes of them.

Started by a launcher as `scalestudy agent FOLDER [INDEX]`. It obeys nothing but its connection:
when that ends, however it ends, so do the ranks and the agent.
"""

from __future__ import annotations

import importlib
import os
import pickle
import signal
import socket
import sys
import time
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from scalestudy.files import write_json
from scalestudy.launch.channel import Channel
from scalestudy.launch.heartbeat import INTERVAL_S
from scalestudy.launch.launchers import INDEX_VARIABLES
from scalestudy.launch.ranks import Ranks
from scalestudy.launch.reaper import DEAF_TO, janitor
from scalestudy.launch.warm import PRELOAD
from scalestudy.measure.system import Sampler
from scalestudy.training import rendezvous
from scalestudy.training.job import Job

CONNECT_S = 60.0
TRY_S = 3.0


@dataclass(frozen=True)
class Orders:
    """What an agent finds in the run's folder."""

    job: Job
    addresses: list[str]
    """Of the machine where `scalestudy train` runs; which of them is reached from here is tried."""
    port: int
    token: str
    """Known to those who can read the folder."""
    one_rank_each: bool
    """Agents of mpirun have one process each, others those of a host."""


def main(folder: Path, index: int | None) -> int:
    """The whole life of an agent; its exit status."""
    try:
        return _live(folder, own_index() if index is None else index)
    except ConnectionError:
        return 1  # there is nobody left to tell


def _live(folder: Path, index: int) -> int:
    for number in DEAF_TO:
        signal.signal(number, signal.SIG_IGN)
    # Written by who started this process, in a folder that only the user can enter.
    orders: Orders = pickle.loads((folder / "orders").read_bytes())
    channel, here, there = connect(orders)
    channel.send({"token": orders.token, "index": index})
    for module in PRELOAD:
        importlib.import_module(module)
    ranks = [index] if orders.one_rank_each else orders.job.on_host(index)
    channel.send({"ready": rendezvous.listen() if 0 in ranks else 0})
    start = channel.receive()
    if start is None or "port" not in start:
        return 1
    # Beside `scalestudy train` this machine's own choice of address may be one that other machines cannot reach.
    interface = rendezvous.interface_of(start["here"] if here == there else here)
    job = replace(orders.job, store=(start["store"], start["port"]))
    return serve(job, index, ranks, channel, interface)


def serve(job: Job, index: int, ranks: list[int], channel: Channel, interface: str | None) -> int:
    """Start the ranks, watch them and the connection until one of both has ended."""
    environment = {"GLOO_SOCKET_IFNAME": interface} if interface and "GLOO_SOCKET_IFNAME" not in os.environ else {}
    with janitor() as group:
        processes = Ranks(job, ranks, group, environment)
        processes.start()
        sampler = Sampler(processes.pids)
        sampler.start()
        try:
            return report(processes, channel, job.folder / f"system.{index}.json", sampler)
        finally:
            processes.end()


def report(processes: Ranks, channel: Channel, system: Path, sampler: Sampler) -> int:
    """Tell what happens, until told to end."""
    told, done, last = 0, False, 0.0
    while True:
        if channel in processes.watch([channel]):
            message = channel.receive()
            return 0 if message == {"end": True} else 1
        for failure in processes.failures[told:]:
            channel.send({"failure": asdict(failure)})
        told = len(processes.failures)
        if not processes.running and not done:
            done = True
            sampler.stop()
            write_json(system, sampler.rows)
            channel.send({"done": not processes.failures})
        elif time.monotonic() - last >= INTERVAL_S:
            last = time.monotonic()
            channel.send({"alive": True})


def connect(orders: Orders) -> tuple[Channel, str, str]:
    """The connection to `scalestudy train`, this end's address and the other's."""
    deadline = time.monotonic() + CONNECT_S
    while True:
        for address in orders.addresses:
            try:
                connection = socket.create_connection((address, orders.port), timeout=TRY_S)
            except OSError:
                continue
            here: Any = connection.getsockname()
            return Channel(connection), here[0], address
        if time.monotonic() > deadline:
            tried = ", ".join(orders.addresses)
            sys.exit(f"scalestudy: {socket.gethostname()} cannot reach port {orders.port} of {tried}")
        time.sleep(0.5)


def own_index() -> int:
    """This agent's number, as its launcher's environment has it."""
    return next(int(os.environ[name]) for name in INDEX_VARIABLES if name in os.environ)
