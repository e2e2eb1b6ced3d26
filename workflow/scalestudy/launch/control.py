"""`scalestudy train` on a job of several nodes: starts an agent on each, receives their reports, ends all of them.

Why not torchrun: it would be a second supervisor with rules of its own (restarts, a port agreed on beforehand, one exec
and one import of torch per rank), and still nothing that watches heartbeats, ends a stopped rank, or says which rank
was the first to fail. The ranks find each other by torch's TCPStore, as torchrun's workers do.
"""

from __future__ import annotations

import hmac
import os
import pickle
import secrets
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from itertools import zip_longest
from multiprocessing.connection import wait as wait_for
from typing import Any

from scalestudy.files import read_json
from scalestudy.launch import launchers
from scalestudy.launch.agent import AGENT_CONFIG, AgentConfig
from scalestudy.launch.channel import Channel, Message
from scalestudy.launch.failures import SETTLE_S, Failure, RankFailed, failure_with_log, raise_cause
from scalestudy.launch.heartbeat import INTERVAL_S
from scalestudy.launch.lifeline import die_with
from scalestudy.training import rendezvous
from scalestudy.training.job import Job

START_S = 600.0
NAME_MISSING_S = 30.0
"""After so long it is printed which nodes have not come up."""
AUTHENTICATE_S = 2.0
"""A connection that has not shown the token by then is closed."""
POLL_S = 0.2
GRACE_S = 4.0
TASK_S = 60.0


class Control:
    """The agents of one run."""

    def __init__(self, job: Job, launcher: str) -> None:
        self.job, self.launcher = job, launcher
        self.count = job.processes if launcher == "mpirun" else len(job.hosts)
        self.agents: dict[int, Channel] = {}
        self.unauthenticated: dict[Channel, float] = {}
        """Connections that have not shown the token, with the time by which they must."""
        self.ready: dict[int, int] = {}
        self.done: set[int] = set()
        self.failures: list[Failure] = []
        self.silent_s: dict[int, float] = {}
        self.launcher_processes: list[subprocess.Popen[bytes]] = []
        self.output = job.log / "launch.log"
        self.listener = socket.create_server(("", 0), backlog=4096)
        self.listener.setblocking(False)  # a peer may be gone by the time it is accepted
        self.token = secrets.token_hex(16)

    def run(self) -> list[dict[str, float]]:
        """The whole run; returns what its agents sampled. Raises RankFailed, with every process ended."""
        try:
            self.launch()
            self.until(lambda: len(self.ready) == self.count, START_S)
            self.start()
            self.until(lambda: len(self.done) == self.count, None)
            return self.samples()
        finally:
            self.end()

    def launch(self) -> None:
        """Write what agents need to know, and start them."""
        port = int(self.listener.getsockname()[1])
        config = AgentConfig(self.job, rendezvous.addresses(), port, self.token, self.launcher)
        descriptor = os.open(self.job.folder / AGENT_CONFIG, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with open(descriptor, "wb") as stream:
            stream.write(pickle.dumps(config))
        script = launchers.write_script(self.job.folder)
        self.job.log.mkdir(parents=True, exist_ok=True)
        with open(self.output, "wb") as output:
            for command in launchers.commands(self.launcher, self.job, script):
                self.launcher_processes.append(self._popen(command, output))
                if self.launcher == "pbsdsh":
                    self._wait_for_task()

    def _wait_for_task(self) -> None:
        """PBS takes one request of a job at a time."""
        try:
            self.launcher_processes[-1].wait(TASK_S)
        except subprocess.TimeoutExpired:
            host = self.host(len(self.launcher_processes) - 1)
            raise RankFailed(f"pbsdsh: node {host} has not started its task within {TASK_S:g} s") from None

    def _popen(self, command: list[str], output: Any) -> subprocess.Popen[bytes]:
        try:
            return subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env=launchers.environment_for(self.launcher),
                preexec_fn=partial(die_with, os.getpid(), signal.SIGTERM),  # noqa: PLW1509 (this process has no other threads)
                process_group=0,  # not the reaper's: mpirun has to clean up after itself
            )
        except FileNotFoundError:
            raise RankFailed(f"there is no `{command[0]}` here, the launcher of this run") from None

    def start(self) -> None:
        """All agents are there: every rank may start."""
        ends = {index: ends_of(channel) for index, channel in self.agents.items()}
        # This machine's address as another one reaches it, where there is another: the address that it uses to reach
        # itself, loopback or a bridge of its own, is of no use to others.
        others = [mine for mine, theirs in ends.values() if mine != theirs]
        mine, first = ends[0]
        here = others[0] if others else mine
        store = here if first == mine else first
        for index, channel in self.agents.items():
            self.silent_s[index] = 0.0
            channel.send({"here": here, "store": store, "port": max(self.ready.values())})

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
                    self.failures.append(self.launch_failure(f"{self.missing()} did not come up within {limit_s:g} s"))
                if now - begin > NAME_MISSING_S and not missing_named:
                    missing_named = True
                    print(f"scalestudy: waiting for {self.missing()}", file=sys.stderr, flush=True)
            before = now
            if self.failures:
                self.hear_other_failures()
                raise_cause(self.failures, self.job)

    def hear_other_failures(self) -> None:
        """Hear what else has failed meanwhile."""
        deadline = time.monotonic() + SETTLE_S
        while time.monotonic() < deadline:
            self.hear()

    def hear(self) -> None:
        """Take in what agents report, and new agents; waits POLL_S at most, whatever the other ends do."""
        watched: list[Any] = [self.listener, *self.unauthenticated, *self.agents.values()]
        for ready in wait_for(watched, POLL_S):
            if ready is self.listener:
                self.accept()
            elif ready in self.unauthenticated:
                self.authenticate(ready)  # type: ignore[arg-type]
            else:
                index = next(index for index, channel in self.agents.items() if channel is ready)
                self.take(index, self.agents[index].arrived())
        now = time.monotonic()
        for channel in [channel for channel, deadline in self.unauthenticated.items() if now >= deadline]:
            self.refuse(channel)

    def accept(self) -> None:
        """A new connection: it has to show the token soon."""
        with suppress(OSError):  # it is gone already
            self.unauthenticated[Channel(self.listener.accept()[0])] = time.monotonic() + AUTHENTICATE_S

    def authenticate(self, channel: Channel) -> None:
        """Make a connection an agent's if its first message has the token and the agent's number."""
        messages = channel.arrived()
        if not messages:
            return
        index = agent_number(messages[0], self.token, self.count)
        if index is None or index in self.agents:
            self.refuse(channel)
            return
        del self.unauthenticated[channel]
        self.agents[index] = channel
        self.take(index, messages[1:])

    def refuse(self, channel: Channel) -> None:
        """Close a connection that has not authenticated itself."""
        del self.unauthenticated[channel]
        channel.close()

    def take(self, index: int, messages: Sequence[Message | None]) -> None:
        """Messages of an agent, or its end."""
        for message in messages:
            self.silent_s[index] = 0.0
            match message:
                case {"ready": port}:
                    self.ready[index] = int(port)
                case {"failure": failure}:
                    self.failures.append(Failure(**{**failure, "tail": tuple(failure["tail"])}))
                case {"done": _}:
                    self.done.add(index)
                case None:
                    self.agents.pop(index).close()
                    if index not in self.done:
                        what = f"the agent on {self.host(index)} ended without a message"
                        self.failures.append(self.launch_failure(what, "node"))
                    return

    def note_silence(self, elapsed_s: float) -> None:
        """An agent that is silent for longer than a rank may be is gone, with its node or its network."""
        for index in set(self.agents) - self.done:
            self.silent_s[index] += min(elapsed_s, 2 * INTERVAL_S)
            if self.silent_s[index] > self.job.spec.tolerate_stall_s:
                what = f"node {self.host(index)} gave no sign of life for {self.job.spec.tolerate_stall_s:g} s"
                self.failures.append(Failure("node", what))

    def note_dead_launchers(self) -> None:
        """A launcher that ended before its agents came starts no more of them."""
        for index, process in enumerate(self.launcher_processes):
            status = process.poll()
            if status is not None and not (status == 0 and self.launcher == "pbsdsh"):
                deadline = time.monotonic() + 2.0  # its agents' last messages may still be on their way
                while len(self.ready) < self.count and not self.failures and time.monotonic() < deadline:
                    self.hear()
                if not self.failures:
                    whom = f"node {self.host(index)}" if len(self.launcher_processes) > 1 else self.missing()
                    self.failures.append(self.launch_failure(f"{whom} could not be started (exit status {status})"))
                return

    def launch_failure(self, what: str, kind: str = "failed") -> Failure:
        """What went wrong with a launcher, with the last lines that it or its agents wrote."""
        return failure_with_log(kind, f"{self.launcher}: {what}", self.output)

    def missing(self) -> str:
        """The nodes whose agents have not come, for a message."""
        names = sorted({self.host(index) for index in range(self.count) if index not in self.ready})
        return ("node " if len(names) == 1 else "nodes ") + ", ".join(names[:8]) + (", …" if len(names) > 8 else "")

    def host(self, index: int) -> str:
        """The machine of an agent."""
        return self.job.hosts[self.job.host_of(index) if self.launcher == "mpirun" else index]

    def samples(self) -> list[dict[str, float]]:
        """What the agents' samplers saw, with the index of the node."""
        of_node: dict[int, list[list[dict[str, float]]]] = {}
        for index in range(self.count):
            node = self.job.host_of(index) if self.launcher == "mpirun" else index
            of_node.setdefault(node, []).append(read_json(self.job.folder / f"system.{index}.json"))
        return [{"node": node, **row} for node, agents in of_node.items() for row in added(agents)]

    def end(self) -> None:
        """End every agent, and with them every rank; then the launchers, which have nothing more to wait for."""
        for channel in self.agents.values():
            with suppress(ConnectionError):
                channel.send({"end": True})
        deadline = time.monotonic() + GRACE_S
        while self.agents and time.monotonic() < deadline:
            self.hear()  # an agent's connection ends once its ranks have
        for channel in [*self.agents.values(), *self.unauthenticated]:
            channel.close()
        self.listener.close()
        for process in self.launcher_processes:
            _end(process, max(0.5, deadline - time.monotonic()))
        if self.output.exists() and self.output.stat().st_size == 0:
            self.output.unlink()


def added(agents: list[list[dict[str, float]]]) -> list[dict[str, float]]:
    """The samples of one node, where each of its processes has an agent of its own: what they take is summed."""
    rows = []
    for at_once in zip_longest(*agents):
        known = [row for row in at_once if row is not None]
        summed = {name: sum(row[name] for row in known) for name in known[0]}
        rows.append({**summed, **{name: known[0][name] for name in ("time_s", "machine_cpu_percent")}})
    return rows


def agent_number(hello: Message | None, token: str, count: int) -> int | None:
    """The number of the agent that sent the first message of a connection; None where an agent of this run did not."""
    if hello is None or not hmac.compare_digest(str(hello.get("token")).encode(), token.encode()):
        return None
    index = hello.get("index")
    return index if isinstance(index, int) and 0 <= index < count else None


def ends_of(channel: Channel) -> tuple[str, str]:
    """Addresses of a connection: this end's, the other's."""
    return str(channel.socket.getsockname()[0]), str(channel.socket.getpeername()[0])


def _end(process: subprocess.Popen[bytes], wait_s: float) -> None:
    """Wait for a launcher, ask it to end, make it end."""
    for ask in (process.terminate, process.kill):
        try:
            process.wait(wait_s)
            return
        except subprocess.TimeoutExpired:
            ask()
    process.wait()


def run_on_nodes(job: Job, launcher: str) -> list[dict[str, float]]:
    """Make a run whose processes are on several machines, or started by mpirun."""
    return Control(job, launcher).run()
