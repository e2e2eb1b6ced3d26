"""`scalestudy train` on a job of several nodes: starts an agent on each, hears what becomes of the ranks, ends all.

Why not torchrun: it would bring a second supervisor with rules of its own (restarts, a port agreed on beforehand, one
exec and one import of torch per rank), and still nothing that hears heartbeats, ends a stopped rank, or says which
rank was first to fail. The agents are found by torch's TCPStore, as torchrun's workers are.
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
from collections.abc import Callable
from contextlib import suppress
from itertools import zip_longest
from multiprocessing.connection import wait as wait_for
from typing import Any

from scalestudy.files import read_json
from scalestudy.launch import launchers
from scalestudy.launch.agent import Orders
from scalestudy.launch.channel import Channel
from scalestudy.launch.heartbeat import INTERVAL_S
from scalestudy.launch.ranks import PR_SET_PDEATHSIG, Failure, RankFailed, last_lines, raise_cause
from scalestudy.training import rendezvous
from scalestudy.training.job import Job

START_S = 600.0
SAY_WHO_IS_MISSING_S = 30.0
SETTLE_S = 0.5
"""After the first failure others are heard for so long: the one that explains them may come from a farther node."""
POLL_S = 0.2
GRACE_S = 4.0
TASK_S = 60.0


class Control:
    """The agents of one run."""

    def __init__(self, job: Job, launcher: str) -> None:
        self.job, self.launcher = job, launcher
        self.count = job.processes if launcher == "mpirun" else len(job.hosts)
        self.agents: dict[int, Channel] = {}
        self.strangers: list[Channel] = []
        self.ready: dict[int, int] = {}
        self.done: set[int] = set()
        self.failures: list[Failure] = []
        self.silent_s: dict[int, float] = {}
        self.starters: list[subprocess.Popen[bytes]] = []
        self.output = job.log / "launch.log"
        self.listener = socket.create_server(("", 0), backlog=4096)
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
        orders = Orders(self.job, rendezvous.addresses(), port, self.token, self.launcher == "mpirun")
        descriptor = os.open(self.job.folder / "orders", os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with open(descriptor, "wb") as stream:
            stream.write(pickle.dumps(orders))
        script = launchers.write_script(self.job.folder)
        self.job.log.mkdir(parents=True, exist_ok=True)
        with open(self.output, "wb") as output:
            for command in launchers.commands(self.launcher, self.job, script):
                self.starters.append(self._popen(command, output))
                if self.launcher == "pbsdsh":
                    self._wait_for_task()

    def _wait_for_task(self) -> None:
        """PBS takes one request of a job at a time."""
        try:
            self.starters[-1].wait(TASK_S)
        except subprocess.TimeoutExpired:
            host = self.host(len(self.starters) - 1)
            raise RankFailed(f"pbsdsh: node {host} has not started its task within {TASK_S:g} s") from None

    def _popen(self, command: list[str], output: Any) -> subprocess.Popen[bytes]:
        parent = os.getpid()

        def dies_with_parent() -> None:
            import ctypes

            ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
            if os.getppid() != parent:
                os._exit(1)

        try:
            return subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env=launchers.environment_for(self.launcher),
                preexec_fn=dies_with_parent,  # noqa: PLW1509 (this process has no other threads)
                process_group=0,  # not the janitor's: mpirun has to clean up after itself
            )
        except FileNotFoundError:
            raise RankFailed(f"there is no `{command[0]}` here, the launcher of this run") from None

    def start(self) -> None:
        """All agents are there: every rank may start."""
        ends = {index: ends_of(channel) for index, channel in self.agents.items()}
        # This machine's address as another one reaches it, where there is another: what it uses by itself, loopback
        # or a bridge of its own, tells others nothing.
        others = [mine for mine, theirs in ends.values() if mine != theirs]
        mine, first = ends[0]
        here = others[0] if others else mine
        store = here if first == mine else first
        for index, channel in self.agents.items():
            self.silent_s[index] = 0.0
            channel.send({"here": here, "store": store, "port": max(self.ready.values())})

    def until(self, reached: Callable[[], bool], limit_s: float | None) -> None:
        """Hear agents until something is reached. Raises RankFailed on a failure, or when the limit is over."""
        begin, said, asked = time.monotonic(), False, time.monotonic()
        while not reached():
            self.hear()
            now = time.monotonic()
            if limit_s is None:
                self.note_silence(now - asked)
            else:
                self.note_dead_starters()
                if now - begin > limit_s:
                    self.failures.append(self.launch_failure(f"{self.missing()} did not come up within {limit_s:g} s"))
                if now - begin > SAY_WHO_IS_MISSING_S and not said:
                    said = True
                    print(f"scalestudy: waiting for {self.missing()}", file=sys.stderr, flush=True)
            asked = now
            if self.failures:
                self.settle()
                raise_cause(self.failures, self.job)

    def settle(self) -> None:
        """Hear what else has failed meanwhile."""
        deadline = time.monotonic() + SETTLE_S
        while time.monotonic() < deadline:
            self.hear()

    def hear(self) -> None:
        """Take in what agents say, and new ones."""
        watched: list[Any] = [self.listener, *self.strangers, *self.agents.values()]
        ready: Any
        for ready in wait_for(watched, POLL_S):
            if ready is self.listener:
                self.strangers.append(Channel(self.listener.accept()[0]))
            elif ready in self.strangers:
                self.strangers.remove(ready)
                self.admit(ready)
            else:
                index = next(index for index, channel in self.agents.items() if channel is ready)
                self.take(index, self.agents[index])

    def admit(self, channel: Channel) -> None:
        """A new connection: an agent of ours knows the token."""
        hello = channel.receive(wait=False)
        if hello is None or not hmac.compare_digest(str(hello.get("token")), self.token):
            channel.close()
            return
        self.agents[int(hello["index"])] = channel
        if channel.has_more:
            self.take(int(hello["index"]), channel)

    def take(self, index: int, channel: Channel) -> None:
        """One or more messages of an agent, or its end."""
        while True:
            message = channel.receive()
            self.silent_s[index] = 0.0
            match message:
                case {"ready": port}:
                    self.ready[index] = int(port)
                case {"failure": failure}:
                    self.failures.append(Failure(**{**failure, "tail": tuple(failure["tail"])}))
                case {"done": _}:
                    self.done.add(index)
                case None:
                    channel.close()
                    del self.agents[index]
                    if index not in self.done:
                        self.failures.append(
                            self.launch_failure(f"the agent on {self.host(index)} ended without a word", "node")
                        )
            if not channel.has_more:
                return

    def note_silence(self, elapsed_s: float) -> None:
        """An agent that says nothing for as long as a rank may be silent has gone, with its node or its network."""
        for index in set(self.agents) - self.done:
            self.silent_s[index] += min(elapsed_s, 2 * INTERVAL_S)
            if self.silent_s[index] > self.job.spec.heartbeat_timeout_s:
                what = f"node {self.host(index)} gave no sign of life for {self.job.spec.heartbeat_timeout_s:g} s"
                self.failures.append(Failure("node", what))

    def note_dead_starters(self) -> None:
        """A launcher that has ended before its agents came will bring no more."""
        for index, starter in enumerate(self.starters):
            status = starter.poll()
            if status is not None and not (status == 0 and self.launcher == "pbsdsh"):
                deadline = time.monotonic() + 2.0  # its agents' last words may still be on their way
                while len(self.ready) < self.count and not self.failures and time.monotonic() < deadline:
                    self.hear()
                if not self.failures:
                    whom = f"node {self.host(index)}" if len(self.starters) > 1 else self.missing()
                    self.failures.append(self.launch_failure(f"{whom} could not be started (exit status {status})"))
                return

    def launch_failure(self, what: str, kind: str = "failed") -> Failure:
        """What went wrong with a launcher, with the last lines that it or its agents wrote."""
        return Failure(kind, f"{self.launcher}: {what}", str(self.output), tuple(last_lines(self.output)))

    def missing(self) -> str:
        """The agents that have not come, as a person calls them."""
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
        for channel in [*self.agents.values(), *self.strangers]:
            with suppress(ConnectionError):
                channel.send({"end": True})
        deadline = time.monotonic() + GRACE_S
        while self.agents and time.monotonic() < deadline:
            self.hear()  # an agent's connection ends once its ranks have
        for channel in [*self.agents.values(), *self.strangers]:
            channel.close()
        self.listener.close()
        for starter in self.starters:
            _end(starter, max(0.5, deadline - time.monotonic()))
        if self.output.exists() and self.output.stat().st_size == 0:
            self.output.unlink()


def added(agents: list[list[dict[str, float]]]) -> list[dict[str, float]]:
    """The samples of one node, where each of its processes has an agent of its own: what they take is added up."""
    rows = []
    for together in zip_longest(*agents):
        there = [row for row in together if row is not None]
        taken = {name: sum(row[name] for row in there) for name in there[0]}
        rows.append({**taken, **{name: there[0][name] for name in ("time_s", "machine_cpu_percent")}})
    return rows


def ends_of(channel: Channel) -> tuple[str, str]:
    """Addresses of a connection: this end's, the other's."""
    return str(channel.socket.getsockname()[0]), str(channel.socket.getpeername()[0])


def _end(starter: subprocess.Popen[bytes], wait_s: float) -> None:
    """Wait for a launcher, ask it to end, make it end."""
    for ask in (starter.terminate, starter.kill):
        try:
            starter.wait(wait_s)
            return
        except subprocess.TimeoutExpired:
            ask()
    starter.wait()


def run_on_nodes(job: Job, launcher: str) -> list[dict[str, float]]:
    """Make a run whose processes are on several machines, or started by mpirun."""
    return Control(job, launcher).run()
