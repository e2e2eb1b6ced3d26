"""The warm parent: imports the modules of runs, and forks a child for each command that a client passes on (warm.py).

It imports and waits, nothing else: it has no threads and starts none, so that its children may fork ranks. It ends
after IDLE_S without work. A client that dies takes its child along; a parent that dies takes its children along.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import socket
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from scalestudy.launch import warm
from scalestudy.launch.preload import OF_RUNS, preload
from scalestudy.launch.signals import ASK_TO_STOP
from scalestudy.processes import Lifeline, die_with

IDLE_S = 120.0
POLL_S = 1.0
REQUEST_S = 5.0
KILL_AFTER_S = 10.0
STREAMS = 2
"""A client passes on its standard output and standard error."""

Work = Callable[[list[str]], int]
"""From the arguments of a command to its exit status."""


@dataclass
class RunRequest:
    """A client's request, and the streams of its output."""

    arguments: list[str]
    folder: str
    environment: dict[str, str]
    streams: list[int]


@dataclass
class Child:
    """A process that does the work of one client."""

    pid: int
    ended: int
    """Readable once it has ended."""
    client: socket.socket
    asked_to_end: float | None = None

    def answer(self) -> None:
        """Send the client its exit status; minus the signal that killed it."""
        _, status = os.waitpid(self.pid, 0)
        with contextlib.suppress(OSError):
            self.client.sendall(str(os.waitstatus_to_exitcode(status)).encode())
        self.close()

    def close(self) -> None:
        """Close this process's ends of the connections to child and client."""
        self.client.close()
        os.close(self.ended)


def serve(address: Path, work: Work) -> None:
    """Import, listen, fork a child per request, end when idle."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    preload(*OF_RUNS)
    _bind(listener, address)
    mine = address.stat().st_ino
    children: list[Child] = []
    last_work = time.monotonic()
    while children or time.monotonic() - last_work < IDLE_S:
        if not address.exists() or address.stat().st_ino != mine:
            break  # replaced or removed: no client can reach this parent any more
        if _serve_once(listener, children, work):
            last_work = time.monotonic()
    with contextlib.suppress(OSError):
        if address.stat().st_ino == mine:
            address.unlink()
    for child in children:
        os.kill(child.pid, signal.SIGHUP)


def _serve_once(listener: socket.socket, children: list[Child], work: Work) -> bool:
    """Wait for clients and children; returns whether anything happened."""
    watched: list[Any] = [listener, *(child.ended for child in children), *(child.client for child in children)]
    ready, _, _ = select.select(watched, [], [], POLL_S)
    if listener in ready:
        client, _ = listener.accept()
        if (request := read_request(client)) is None:
            client.close()
        else:
            children.append(_fork(request, client, listener, children, work))
    for child in list(children):
        if child.ended in ready:
            child.answer()
            children.remove(child)
        else:
            _end_if_client_gone(child, child.client in ready)
    return bool(ready)


def _bind(listener: socket.socket, address: Path) -> None:
    """Take the address, unless a living parent has it: then end well, its client will find the other."""
    temporary = address.with_suffix(f".{os.getpid()}")
    listener.bind(str(temporary))
    listener.listen(16)
    if other := warm.connect(address):
        other.close()
        temporary.unlink()
        sys.exit(0)
    temporary.replace(address)


def read_request(client: socket.socket) -> RunRequest | None:
    """A client's request; None, with no descriptor left open, where it went away or only looked whether this lives."""
    client.settimeout(REQUEST_S)
    streams: list[int] = []
    try:
        header, streams, _, _ = socket.recv_fds(client, 8, STREAMS)
        if len(header) == 8 and len(streams) == STREAMS:
            plain = json.loads(_receive(client, int.from_bytes(header, "big")))
            client.settimeout(None)
            return RunRequest(plain["arguments"], plain["folder"], plain["environment"], streams)
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        pass
    for stream in streams:
        os.close(stream)
    return None


def _receive(client: socket.socket, size: int) -> bytes:
    data = b""
    while len(data) < size:
        block = client.recv(size - len(data))
        if not block:
            raise ConnectionError("the client is gone")
        data += block
    return data


def _fork(
    request: RunRequest, client: socket.socket, listener: socket.socket, others: list[Child], work: Work
) -> Child:
    parent, lifeline = os.getpid(), Lifeline()
    pid = os.fork()
    if pid == 0:
        try:
            os.setsid()
            die_with(parent, signal.SIGHUP)
            lifeline.hold()
            listener.close()
            client.close()
            for other in others:
                other.close()
        except BaseException:
            os._exit(1)
        _work(request, work)
    for stream in request.streams:
        os.close(stream)
    return Child(pid, lifeline.watch(), client)


def _work(request: RunRequest, work: Work) -> NoReturn:
    """Do the work in the client's name, in a child."""
    status = 1
    try:
        for number, stream in enumerate(request.streams, start=1):
            os.dup2(stream, number)
            os.close(stream)
        os.chdir(request.folder)
        os.environ.clear()
        os.environ.update(request.environment)
        tempfile.tempdir = None  # this process has the parent's in mind; the client's TMPDIR counts
        warm.this_is_a_child()
        status = work(request.arguments)
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)


def _end_if_client_gone(child: Child, client_ready: bool) -> None:
    """After its request a client only passes on signals. A client that is gone has its child asked to end, then killed."""
    now = time.monotonic()
    if child.asked_to_end is None and client_ready:
        numbers = _signals_from(child.client)
        for number in numbers:
            os.kill(child.pid, number)
        if not numbers:
            os.kill(child.pid, signal.SIGHUP)
            child.asked_to_end = now
    elif child.asked_to_end is not None:
        time.sleep(0.05)  # the connection stays readable: do not spin
        if now - child.asked_to_end > KILL_AFTER_S:
            os.killpg(child.pid, signal.SIGKILL)


def _signals_from(client: socket.socket) -> list[int]:
    try:
        return [number for number in client.recv(64, socket.MSG_DONTWAIT) if number in ASK_TO_STOP]
    except OSError:
        return []
