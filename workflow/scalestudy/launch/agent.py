"""One process per node: connects to `scalestudy train`, starts the node's ranks, and reports how they end.

Started by a launcher as `scalestudy agent FOLDER [INDEX]`. It obeys only its connection: when that ends, however it
ends, so do the ranks and the agent.
"""

from __future__ import annotations

import os
import signal
import socket
import sys
import time
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter

from scalestudy.files import write_json
from scalestudy.launch.channel import Channel
from scalestudy.launch.heartbeat import INTERVAL_S
from scalestudy.launch.job_environment import JobEnvironment
from scalestudy.launch.keeper import IGNORED_SIGNALS, keeper
from scalestudy.launch.local import devices_of
from scalestudy.launch.preload import preload
from scalestudy.launch.ranks import Ranks
from scalestudy.measure.system import UNMEASURED, Sampler
from scalestudy.training import rendezvous
from scalestudy.training.job import Job

CONNECT_S = 60.0
AGENT_CONFIG = "agent.json"
"""File of the AgentConfig in the run's scratch folder."""
TRY_S = 3.0


@dataclass(frozen=True)
class AgentConfig:
    """Configuration of an agent, in the run's folder."""

    job: Job
    addresses: list[str]
    """Of the machine where `scalestudy train` runs; the agent tries which of them it reaches."""
    port: int
    token: str
    """Known to those who can read the folder."""
    launcher: str

    @property
    def one_rank_each(self) -> bool:
        """Agents of mpirun have one process each, all others those of a host."""
        return self.launcher == "mpirun"

    def to_json(self) -> bytes:
        """Everything as JSON, which runs no code where it is read."""
        return _JSON.dump_json(self, by_alias=True)

    @staticmethod
    def from_json(text: bytes) -> AgentConfig:
        """Parse the text of `to_json`; ValueError for any other."""
        return _JSON.validate_json(text)


_JSON = TypeAdapter(AgentConfig)


def main(folder: Path, index: int | None) -> int:
    """Everything that an agent does; its exit status."""
    try:
        return _run(folder, index)
    except ConnectionError:
        return 1  # nobody is left to report to


def _run(folder: Path, index: int | None) -> int:
    for number in IGNORED_SIGNALS:
        signal.signal(number, signal.SIG_IGN)
    config = AgentConfig.from_json((folder / AGENT_CONFIG).read_bytes())
    index = JobEnvironment().process_number(config.launcher) if index is None else index
    if index is None:
        sys.exit(f"scalestudy: {socket.gethostname()}: `{config.launcher}` has not numbered the process of this node")
    channel, here, there = connect(config)
    channel.send({"token": config.token, "index": index})
    if config.job.spec.program is None:
        preload()
    ranks = [index] if config.one_rank_each else config.job.on_host(index)
    channel.send({"ready": _port(config.job) if 0 in ranks else 0})
    start = channel.receive()
    if start is None or "port" not in start:
        return 1
    # On the machine of `scalestudy train`, the address of its own choice may be one that other machines cannot reach.
    interface = rendezvous.interface_of(start["here"] if here == there else here)
    job = replace(config.job, store=(start["store"], start["port"]))
    return serve(job, index, ranks, channel, interface)


def _port(job: Job) -> int:
    """Port of the store, or one that a program may open."""
    return rendezvous.listen() if job.spec.program is None else rendezvous.free_port()


def serve(job: Job, index: int, ranks: list[int], channel: Channel, interface: str | None) -> int:
    """Start the ranks; watch them and the connection until one of the two has ended."""
    environment = {"GLOO_SOCKET_IFNAME": interface} if interface and "GLOO_SOCKET_IFNAME" not in os.environ else {}
    with keeper() as held:
        processes = Ranks(job, ranks, held.group, environment)
        processes.start()
        host = job.host_of(ranks[0])
        # Where each rank has an agent of its own, that of the first one looks at the machine's devices.
        devices = devices_of(job, host) if ranks[0] == job.on_host(host)[0] else ()
        sampler = Sampler(processes.pids, held.group, devices, job.spec.program is not None)
        sampler.start()
        try:
            return report(processes, channel, job.folder / f"system.{index}.json", sampler)
        finally:
            processes.end()


def report(processes: Ranks, channel: Channel, system: Path, sampler: Sampler) -> int:
    """Report events until the message to end comes."""
    reported, done, last = 0, False, 0.0
    while True:
        if channel in processes.watch([channel]):
            message = channel.receive()
            return 0 if message == {"end": True} else 1
        for failure in processes.failures[reported:]:
            channel.send({"failure": asdict(failure)})
        reported = len(processes.failures)
        if not processes.running and not done:
            done = True
            sampler.stop()
            write_json(system, sampler.rows)
            if sampler.said:
                system.with_name(f"{UNMEASURED}{system.name}").write_text(sampler.said, encoding="utf-8")
            channel.send({"done": not processes.failures})
        elif time.monotonic() - last >= INTERVAL_S:
            last = time.monotonic()
            channel.send({"alive": True})


def connect(config: AgentConfig) -> tuple[Channel, str, str]:
    """The connection to `scalestudy train`, this end's address and the other's."""
    deadline = time.monotonic() + CONNECT_S
    while True:
        for address in config.addresses:
            try:
                connection = socket.create_connection((address, config.port), timeout=TRY_S)
            except OSError:
                continue
            here: Any = connection.getsockname()
            return Channel(connection), here[0], address
        if time.monotonic() > deadline:
            tried = ", ".join(config.addresses)
            sys.exit(f"scalestudy: {socket.gethostname()} cannot reach port {config.port} of {tried}")
        time.sleep(0.5)
