"""`scalestudy train` on a job of several nodes: starts an agent on each, receives their reports, ends all of them.

Why not torchrun: it would be a second supervisor with rules of its own (restarts, a port agreed on beforehand, one exec
and one import of torch per rank), and still nothing that watches heartbeats, ends a stopped rank, or says which rank
was the first to fail. The ranks find each other by torch's TCPStore, as torchrun's workers do.
"""

from __future__ import annotations

import math
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from typing import IO

from scalestudy.files import read_json
from scalestudy.launch import launchers
from scalestudy.launch.agent import AGENT_CONFIG, AS_JSON, AgentConfig
from scalestudy.launch.allocation import mpi_by_srun
from scalestudy.launch.connections import Connections
from scalestudy.launch.failures import SETTLE_S, Failure, NodeFailed, RankFailed, failure_with_log, raise_cause
from scalestudy.launch.ranks import INTERVAL_S
from scalestudy.processes import die_with
from scalestudy.spec.config import read_site
from scalestudy.training import rendezvous
from scalestudy.training.job import Job

START_S = 600.0
NAME_MISSING_S = 30.0
"""Delay until the nodes that have not come up are named."""
TASK_S = 60.0
POLL_S = 0.2
GRACE_S = 4.0
MIN_GRACE_S = 0.5
LAST_MESSAGES_S = 2.0
"""The last messages of agents may arrive so long after their launcher has ended."""
SUMMED = ("cpu_s", "read_bytes", "anonymous_bytes")
"""Of a sample: the use of an agent's own processes; all else is of the host."""


class Control:
    """The agents of one run, and the processes of its launcher (srun, ssh, mpirun, …), which end with this process."""

    def __init__(self, job: Job, launcher: str) -> None:
        self.job, self.launcher = job, launcher
        self.count = job.processes if launcher == "mpirun" else len(job.hosts)
        self.connections = Connections(self.count)
        self.ready: dict[int, int] = {}
        self.done: set[int] = set()
        self.failures: list[Failure] = []
        self.silent_s: dict[int, float] = {}
        self.launchers: list[subprocess.Popen[bytes]] = []
        self.log = job.log / "launch.log"

    def run(self) -> list[dict[str, float]]:
        """Run to the end; returns the agents' samples. Raises RankFailed, with every process ended."""
        try:
            self.launch()
            self.until(lambda: len(self.ready) == self.count, START_S)
            self.start()
            self.until(lambda: len(self.done) == self.count, None)
            return self.samples()
        finally:
            self.end()

    def launch(self) -> None:
        """Write the agents' configuration, and start them. Raises RankFailed where the launcher is missing."""
        port: int = self.connections.listener.getsockname()[1]
        config = AgentConfig(self.job, rendezvous.addresses(), port, self.connections.token, self.launcher)
        descriptor = os.open(self.job.folder / AGENT_CONFIG, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with open(descriptor, "wb") as stream:
            stream.write(AS_JSON.dump_json(config, by_alias=True))
        by_mpirun = self.launcher == "mpirun" and not mpi_by_srun(read_site())
        script = launchers.write_script(self.job.folder, by_mpirun=by_mpirun)
        self.log.parent.mkdir(parents=True, exist_ok=True)
        with open(self.log, "wb") as output:
            for command in launchers.commands(self.launcher, self.job, script):
                self._start(command, output)

    def _start(self, command: list[str], output: IO[bytes]) -> None:
        try:
            process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env=launchers.environment_for(command[0]),
                preexec_fn=partial(die_with, os.getpid(), signal.SIGTERM),  # noqa: PLW1509 (there are no other threads)
                process_group=0,  # not the keeper's: mpirun has to clean up after itself
            )
            self.launchers.append(process)
            if self.launcher == "pbsdsh":  # PBS takes one request of a job at a time
                process.wait(TASK_S)
        except FileNotFoundError:
            raise RankFailed(f"`{command[0]}`, the launcher of this run, is not installed here") from None
        except subprocess.TimeoutExpired:
            host = self.job.hosts[len(self.launchers) - 1]
            raise NodeFailed(f"pbsdsh: node {host} has not started its task within {TASK_S:g} s") from None

    def start(self) -> None:
        """All agents are there: every rank may start."""
        # This machine's address as another one reaches it, where there is another: the address that it uses to reach
        # itself, loopback or a bridge of its own, is of no use to others.
        addresses = {index: channel.addresses for index, channel in self.connections.agents.items()}
        others = [mine for mine, theirs in addresses.values() if mine != theirs]
        mine, first = addresses[0]
        here = others[0] if others else mine
        store = here if first == mine else first
        self.silent_s = dict.fromkeys(addresses, 0.0)
        self.connections.send({"here": here, "store": store, "port": max(self.ready.values())})

    def until(self, reached: Callable[[], bool], limit_s: float | None) -> None:
        """Hear agents until something is reached. Raises RankFailed on a failure, or when the limit is over."""
        begin = before = time.monotonic()
        missing_named = False
        while not reached():
            self.hear()
            now = time.monotonic()
            if limit_s is None:
                self.note_silence(now - before)
            else:
                self.note_dead_launchers()
                if now - begin > limit_s:
                    self.lose_node(f"{self.missing()} did not come up within {limit_s:g} s")
                if now - begin > NAME_MISSING_S and not missing_named:
                    missing_named = True
                    print(f"scalestudy: waiting for {self.missing()}", file=sys.stderr, flush=True)
            before = now
            if self.failures:
                self.hear(SETTLE_S)
                raise_cause(self.failures, self.job)

    def hear(self, for_s: float = 0.0) -> None:
        """Receive the agents' reports, once or for a time."""
        deadline = time.monotonic() + for_s
        while True:
            for index, message in self.connections.messages(POLL_S):
                self.silent_s[index] = 0.0
                match message:
                    case {"ready": port}:
                        self.ready[index] = int(port)
                    case {"failure": failure}:
                        self.failures.append(Failure(**{**failure, "tail": tuple(failure["tail"])}))
                    case {"done": _}:
                        self.done.add(index)
                    case None if index not in self.done:
                        self.lose_node(f"the agent on {self.host(index)} ended without a message")
            if time.monotonic() >= deadline:
                return

    def lose_node(self, what: str) -> None:
        """Note the loss of a node, with the last lines that the launcher or its agents wrote."""
        self.failures.append(failure_with_log("node", f"{self.launcher}: {what}", self.log))

    def note_silence(self, elapsed_s: float) -> None:
        """An agent that is silent for longer than a rank may be is gone, with its node or its network."""
        for index in set(self.connections.agents) - self.done:
            self.silent_s[index] += min(elapsed_s, 2 * INTERVAL_S)
            if self.silent_s[index] > self.job.spec.heartbeat_timeout_s:
                what = f"node {self.host(index)} sent no heartbeat for {self.job.spec.heartbeat_timeout_s:g} s"
                self.failures.append(Failure("node", what))

    def note_dead_launchers(self) -> None:
        """A launcher that ended before its agents came starts no more of them; pbsdsh ends when it has succeeded."""
        for index, process in enumerate(self.launchers):
            status = process.poll()
            if status is None or (status == 0 and self.launcher == "pbsdsh"):
                continue
            deadline = time.monotonic() + LAST_MESSAGES_S
            while len(self.ready) < self.count and not self.failures and time.monotonic() < deadline:
                self.hear()
            if not self.failures:
                whom = f"node {self.host(index)}" if len(self.launchers) > 1 else self.missing()
                self.lose_node(f"{whom} could not be started (exit status {status})")
            return

    def missing(self) -> str:
        """Name the nodes without an agent, for a message."""
        names = sorted({self.host(index) for index in range(self.count) if index not in self.ready})
        return ("node " if len(names) == 1 else "nodes ") + ", ".join(names[:8]) + (", …" if len(names) > 8 else "")

    def node(self, index: int) -> int:
        """The node of an agent."""
        return self.job.host_of(index) if self.launcher == "mpirun" else index

    def host(self, index: int) -> str:
        """The machine of an agent."""
        return self.job.hosts[self.node(index)]

    def samples(self) -> list[dict[str, float]]:
        """Return the agents' samples, with the index of the node."""
        of_node: dict[int, list[list[dict[str, float]]]] = {}
        for index in range(self.count):
            rows = read_json(self.job.folder / f"system.{index}.json")
            # null where the kernel has no value
            samples = [{name: math.nan if value is None else value for name, value in row.items()} for row in rows]
            of_node.setdefault(self.node(index), []).append(samples)
        return [{"node": node, **row} for node, agents in of_node.items() for row in added(agents)]

    def end(self) -> None:
        """End every agent, and with them every rank; then the launchers, which have nothing more to wait for."""
        self.connections.send({"end": True})
        deadline = time.monotonic() + GRACE_S
        while self.connections.agents and time.monotonic() < deadline:
            self.hear()  # an agent's connection ends once its ranks have
        self.connections.close()
        for process in self.launchers:
            wait_s = max(MIN_GRACE_S, deadline - time.monotonic())
            for ask in (process.terminate, process.kill):
                try:
                    process.wait(wait_s)
                except subprocess.TimeoutExpired:
                    ask()
            process.wait()
        if self.log.exists() and self.log.stat().st_size == 0:
            self.log.unlink()


def added(agents: list[list[dict[str, float]]]) -> list[dict[str, float]]:
    """The samples of one node, where each of its processes has an agent of its own: their use is summed.

    CPU times count from the start, so an agent that has ended stays at its last sample. One of them looks at the node's
    devices.
    """
    rows = []
    for number in range(max(map(len, agents))):
        at_once = [samples[min(number, len(samples) - 1)] for samples in agents if samples]
        devices = next((row for row in at_once if "devices" in row), {})
        latest = max(at_once, key=lambda row: row["clock_s"])
        rows.append({**devices, **latest, **{name: sum(row[name] for row in at_once) for name in SUMMED}})
    return rows
