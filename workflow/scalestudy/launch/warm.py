"""The warm server of a local driver: a process that has torch imported, and forks a child for each run.

Under a driver of this machine, `scalestudy train` passes its arguments, environment, folder and output streams over a
Unix socket to the server, which the first one starts. A child of the server does the work, and the client ends with its
exit status; signals that ask the client to stop are passed on to the child. That saves about 3.8 s per run: 0.61 s in
place of 4.39 s for a tiny perceptron and one epoch of digits, medians of five alternations on two cores.

All of them descend from one driver and share its affinity, umask and limits. Variables that libraries read when they
are loaded are part of the address. The server ends with its driver, once its children have ended.

Not used inside scheduler jobs, nor with SCALESTUDY_WARM=0.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import multiprocessing
import os
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator
from multiprocessing.connection import wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any, NoReturn

from scalestudy import processes
from scalestudy.launch.preload import RUN_MODULES, preload
from scalestudy.launch.signals import ASK_TO_STOP
from scalestudy.measure.instrument import code_digest
from scalestudy.site_fault import in_job

START_S = 90.0
POLL_S = 1.0
REQUEST_S = 5.0
READ_WHEN_LOADED = ("LD_", "GLIBC_", "MALLOC_", "PYTHON", "OMP_", "GOMP_", "KMP_", "MKL_", "OPENBLAS_", "DNNL_", "ONEDNN_",
                    "ATEN_", "TORCH", "PYTORCH_", "NUMEXPR_")  # fmt: skip
"""Prefixes of variables that the loader, Python, OpenMP or torch read once, when they are loaded."""

SERVER = "from scalestudy.cli import run_command; from scalestudy.launch.warm import serve; serve(run_command)"

Work = Callable[[list[str]], int]
"""From the arguments of a command to its exit status."""

_is_child = False


def is_wanted() -> bool:
    """Whether this process has a driver on this machine, and may use its warm server."""
    return processes.driver() != "" and os.environ.get("SCALESTUDY_WARM") != "0" and not in_job() and not _is_child


def call(arguments: list[str]) -> int | None:
    """Run `scalestudy ARGUMENTS` in a child of the warm server; its exit status, None where no server can be started."""
    connection = _connect() or _start()
    if connection is None:
        return None
    request = {"arguments": arguments, "folder": str(Path.cwd()), "environment": dict(os.environ)}
    with connection, contextlib.suppress(ConnectionError):
        socket.send_fds(connection, [b"\n"], [1, 2])
        connection.sendall(json.dumps(request).encode() + b"\n")
        answers = connection.makefile("r")
        if child := answers.readline():
            with _signals_passed_to(int(child)):
                if code := answers.readline():
                    return _exit_status(int(code))
    what = "the warm server, which was making this run, was killed or failed; the run was ended with it"
    remedy = "run the same command again, or set SCALESTUDY_WARM=0 to run without it"
    print(f"scalestudy: {what}\n    {remedy}", file=sys.stderr, flush=True)
    return 1


def _exit_status(code: int) -> int:
    """The exit status for an exit code of multiprocessing, which is minus the signal of a killed child; with a message."""
    if code >= 0:
        return code
    what = f"the process that was making this run was killed by signal {-code} ({signal.Signals(-code).name})"
    memory = ": the kernel does that where memory runs out (see dmesg)" if -code == signal.SIGKILL else ""
    print(f"scalestudy: {what}{memory}", file=sys.stderr, flush=True)
    return 128 - code


@contextlib.contextmanager
def _signals_passed_to(child: int) -> Iterator[None]:
    def send(number: int, _frame: object) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(child, number)

    before = {number: signal.signal(number, send) for number in ASK_TO_STOP}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _address() -> str:
    """The server's abstract address (unix(7)): one per driver, interpreter, and settings of its libraries."""
    loaded = sorted(item for item in os.environ.items() if item[0].startswith(READ_WHEN_LOADED))
    which = json.dumps([processes.driver(), sys.executable, __file__, loaded])
    return f"\0scalestudy-{hashlib.sha256(which.encode()).hexdigest()[:32]}"


def _connect() -> socket.socket | None:
    """A connection to the server, None where none of this user listens."""
    connection = socket.socket(socket.AF_UNIX)
    with contextlib.suppress(OSError):
        connection.connect(_address())
        if _is_mine(connection):
            return connection
    connection.close()
    return None


def _is_mine(connection: socket.socket) -> bool:
    """Whether the other end is a process of this user: every user can take or call an abstract address."""
    _, user, _ = struct.unpack(
        "3i", connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
    )
    return bool(user == os.getuid())


def _start() -> socket.socket | None:
    """Start a server and connect to it. Of several that start at once, the one that gets the address stays."""
    quiet = subprocess.DEVNULL
    server = subprocess.Popen(  # -P: it imports nothing from the folder where it starts
        [sys.executable, "-P", "-c", SERVER], stdin=quiet, stdout=quiet, stderr=quiet, start_new_session=True
    )
    deadline = time.monotonic() + START_S
    while time.monotonic() < deadline and server.poll() in (None, 0):
        if connection := _connect():
            return connection
        time.sleep(0.02)
    return None


# The server


def serve(work: Work) -> None:
    """Import, listen, fork a child per request. It starts no thread, so that its children may fork ranks."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    listener = socket.socket(socket.AF_UNIX)
    try:
        listener.bind(_address())
    except OSError:
        return  # another server has it
    preload(*RUN_MODULES)
    code_digest()  # of the code that was imported just now
    listener.listen(16)
    driver = processes.driver()
    children: list[tuple[BaseProcess, socket.socket]] = []
    while children or not processes.is_gone(driver):
        clients = [client for _, client in children if client.fileno() >= 0]
        ready = wait([listener, *clients, *(process.sentinel for process, _ in children)], POLL_S)
        for process, client in list(children):
            if process.sentinel in ready:
                process.join()
                _send(client, process.exitcode)
                client.close()
                children.remove((process, client))
            elif client in ready:  # its request is whole: the client has ended
                client.close()
                os.kill(process.pid or 0, signal.SIGHUP)
        if listener in ready:
            client, _ = listener.accept()
            if (child := _forked(client, listener, work)) is not None:
                children.append((child, client))


def _send(client: socket.socket, number: int | None) -> None:
    with contextlib.suppress(OSError):
        client.sendall(f"{number}\n".encode())


def _forked(client: socket.socket, listener: socket.socket, work: Work) -> BaseProcess | None:
    """A child for a client's request; None where the client is another user's, or went away."""
    try:
        client.settimeout(REQUEST_S)
        _, streams, _, _ = socket.recv_fds(client, 1, 2)
        request = json.loads(client.makefile("r").readline()) if _is_mine(client) else None
        client.settimeout(None)
    except (OSError, ValueError):
        return None
    if request is None:
        return None
    process = multiprocessing.get_context("fork").Process(
        target=_work, args=(os.getpid(), listener, streams, request, work)
    )
    process.start()
    for stream in streams:
        os.close(stream)
    _send(client, process.pid)
    return process


def _work(parent: int, listener: socket.socket, streams: list[int], request: dict[str, Any], work: Work) -> NoReturn:
    """Do the work in the client's name, in a child."""
    global _is_child
    _is_child, status = True, 1
    try:
        os.setsid()
        processes.die_with(parent, signal.SIGHUP)
        listener.close()
        for number, stream in enumerate(streams, start=1):
            os.dup2(stream, number)
            os.close(stream)
        os.chdir(request["folder"])
        os.environ.clear()
        os.environ.update(request["environment"])
        tempfile.tempdir = None  # the client's TMPDIR counts
        status = work(request["arguments"])
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)
