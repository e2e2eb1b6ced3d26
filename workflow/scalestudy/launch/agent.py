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

from pydantic import TypeAdapter

from scalestudy.files import write_json
from scalestudy.launch import mpi
from scalestudy.launch.connections import Channel
from scalestudy.launch.job_environment import JobEnvironment
from scalestudy.launch.keeper import IGNORED_SIGNALS, keeper
from scalestudy.launch.preload import preload
from scalestudy.launch.ranks import INTERVAL_S, Ranks
from scalestudy.training import rendezvous
from scalestudy.training.job import Job

CONNECT_S = 60.0
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


AGENT_CONFIG = "agent.json"
"""File of the AgentConfig in the run's scratch folder."""
AS_JSON = TypeAdapter(AgentConfig)


def main(folder: Path, index: int | None) -> int:
    """Everything that an agent does; its exit status."""
    for number in IGNORED_SIGNALS:
        signal.signal(number, signal.SIG_IGN)
    config = AS_JSON.validate_json((folder / AGENT_CONFIG).read_bytes())
    job = config.job
    index = JobEnvironment().process_number(config.launcher) if index is None else index
    if index is None:
        sys.exit(f"scalestudy: {socket.gethostname()}: `{config.launcher}` has not numbered the process of this node")
    channel, train_address = connect(config)
    here = channel.addresses[0]
    try:
        channel.send({"token": config.token, "index": index})
        if job.spec.program is None:
            preload()
        ranks = [index] if config.launcher == "mpirun" else job.on_host(index)
        open_port = rendezvous.listen if job.spec.program is None else rendezvous.free_port
        channel.send({"ready": open_port() if 0 in ranks else 0})
        start = channel.receive()
        if start is None or "port" not in start:
            return 1
        # On the machine of `scalestudy train`, the address of its own choice may be one that other machines cannot reach.
        interface = rendezvous.interface_of(start["here"] if here == train_address else here)
        unset = interface is not None and "GLOO_SOCKET_IFNAME" not in os.environ
        environment = {"GLOO_SOCKET_IFNAME": str(interface)} if unset else {}
        if config.launcher == "mpirun":
            environment |= {name: value for name, value in mpi.SAYS_TRANSPORTS.items() if name not in os.environ}
        with keeper() as group:
            job = replace(job, store=(start["store"], start["port"]))
            processes = Ranks(job, ranks, group, environment)
            processes.start()
            try:
                return report(processes, channel, job.folder / f"system.{index}.json")
            finally:
                processes.end()
    except ConnectionError:
        return 1  # there is no process left to report to


def report(processes: Ranks, channel: Channel, system: Path) -> int:
    """Report events until the message to end comes."""
    reported, done, last = 0, False, 0.0
    while True:
        if channel in processes.watch([channel]):
            return 0 if channel.receive() == {"end": True} else 1
        for failure in processes.failures[reported:]:
            channel.send({"failure": asdict(failure)})
        reported = len(processes.failures)
        if not processes.running and not done:
            done = True
            write_json(system, processes.samples())
            channel.send({"done": not processes.failures})
        elif time.monotonic() - last >= INTERVAL_S:
            last = time.monotonic()
            channel.send({"alive": True})


def connect(config: AgentConfig) -> tuple[Channel, str]:
    """The connection to `scalestudy train`, and its address."""
    deadline = time.monotonic() + CONNECT_S
    while True:
        for address in config.addresses:
            try:
                return Channel(socket.create_connection((address, config.port), timeout=TRY_S)), address
            except OSError:
                continue
        if time.monotonic() > deadline:
            tried = ", ".join(config.addresses)
            sys.exit(f"scalestudy: {socket.gethostname()} cannot reach port {config.port} of {tried}")
        time.sleep(0.5)
