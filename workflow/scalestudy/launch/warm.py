"""A parent process that has torch imported, so that the next run starts in a tenth of a second.

`scalestudy train` and `try` are light clients: they hand their arguments, environment, folder and output streams over a
Unix socket; the parent forks a child that does the work in their name, and answers with its exit status. A signal that
asks a client to stop is handed to its child. The parent imports and waits, nothing else: it has no threads of its own and starts none, so that its children may fork ranks. It
ends after IDLE_S without work. A client that dies takes its child along; a parent that dies takes its children along.

Not used inside scheduler jobs, nor with SCALESTUDY_WARM=0.
"""

from __future__ import annotations

import array
import contextlib
import ctypes
import hashlib
import importlib
import json
import os
import select
import signal
import socket
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

IDLE_S = 120.0
START_S = 90.0
POLL_S = 1.0
IN_A_JOB = ("PBS_JOBID", "SLURM_JOB_ID", "JOB_ID", "LSB_JOBID")
PR_SET_PDEATHSIG = 1
ASK_TO_STOP = (signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2)


def wanted() -> bool:
    """Whether a warm parent may be used here."""
    return (
        sys.platform == "linux"
        and os.environ.get("SCALESTUDY_WARM") != "0"
        and not any(os.environ.get(name) for name in IN_A_JOB)
    )


def call(arguments: list[str]) -> int | None:
    """Run `scalestudy ARGUMENTS` in a child of the warm parent; its exit status, None where there is no parent to be had."""
    address = _address()
    connection = _connect(address) or _start(address)
    if connection is None:
        return None
    with connection:
        request = json.dumps(
            {"arguments": arguments, "folder": str(Path.cwd()), "environment": dict(os.environ)}
        ).encode()
        descriptors = array.array("i", [1, 2])
        header = len(request).to_bytes(8, "big")
        connection.sendmsg([header], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, descriptors)])
        connection.sendall(request)
        with _signals_sent_on(connection):
            answer = connection.recv(64)
    return int(answer) if answer else 1


@contextlib.contextmanager
def _signals_sent_on(connection: socket.socket) -> Iterator[None]:
    """Signals that ask a run to stop are for the child that makes it: each goes there as one byte."""

    def send(number: int, _frame: object) -> None:
        with contextlib.suppress(OSError):
            connection.send(bytes([number]))

    before = {number: signal.signal(number, send) for number in ASK_TO_STOP}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _address() -> Path:
    """The parent's socket: one per user, interpreter and state of the code."""
    package = Path(__file__).resolve().parent.parent
    state = hashlib.sha256(f"{sys.executable} {package}".encode())
    for file in sorted(package.rglob("*.py")):
        status = file.stat()
        state.update(f"{file} {status.st_mtime_ns} {status.st_size}".encode())
    return _folder() / f"{state.hexdigest()[:16]}.sock"


def _folder() -> Path:
    """A folder that only this user can enter."""
    folder = Path(os.environ.get("XDG_RUNTIME_DIR") or tempfile.gettempdir()) / f"scalestudy-{os.getuid()}"
    folder.mkdir(mode=0o700, exist_ok=True)
    status = folder.lstat()
    if status.st_uid != os.getuid() or status.st_mode & 0o077 or folder.is_symlink():
        raise PermissionError(f"{folder} is not this user's alone")
    return folder


def _connect(address: Path) -> socket.socket | None:
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        connection.connect(str(address))
        return connection
    except OSError:
        connection.close()
        return None


def _start(address: Path) -> socket.socket | None:
    """Start a parent and connect to it. Of several that start at once, the one that gets the address stays."""
    log = address.with_suffix(".log")
    with open(log, "wb") as output:
        parent = subprocess.Popen(
            [sys.executable, "-m", "scalestudy.launch.warm", str(address)],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            cwd="/",
            start_new_session=True,
        )
    deadline = time.monotonic() + START_S
    while time.monotonic() < deadline:
        if connection := _connect(address):
            return connection
        if parent.poll() is not None and parent.returncode != 0:
            return None
        time.sleep(0.02)
    return None


# The parent's side


@dataclass
class _Child:
    pid: int
    pidfd: int
    client: socket.socket
    asked_to_end: float | None = None


def serve(address: Path, work: Callable[[list[str]], int]) -> None:
    """Import, listen, fork a child per request, end when idle."""
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    for module in PRELOAD:
        importlib.import_module(module)
    _bind(listener, address)
    mine = address.stat().st_ino
    children: list[_Child] = []
    last_work = time.monotonic()
    while children or time.monotonic() - last_work < IDLE_S:
        if not address.exists() or address.stat().st_ino != mine:
            break  # replaced or cleaned away: nobody can reach this parent any more
        watched: list[Any] = [listener, *(child.pidfd for child in children), *(child.client for child in children)]
        ready, _, _ = select.select(watched, [], [], POLL_S)
        if listener in ready:
            client, _ = listener.accept()
            if child := _fork(client, listener, children, work):
                children.append(child)
        for child in list(children):
            if child.pidfd in ready:
                _answer(child)
                children.remove(child)
            else:
                _end_if_forsaken(child, child.client in ready)
        if ready:
            last_work = time.monotonic()
    with contextlib.suppress(OSError):
        if address.stat().st_ino == mine:
            address.unlink()
    for child in children:
        os.kill(child.pid, signal.SIGHUP)


PRELOAD = (
    "torch",
    "torch._dynamo",
    "torch.distributed",
    "torch.export",
    "torch.nn.parallel",
    "scalestudy.training.loop",
    "scalestudy.results.result",
)
"""What every rank needs; none of it starts threads or touches a GPU."""


def _bind(listener: socket.socket, address: Path) -> None:
    """Take the address, unless a living parent has it: then end well, its client will find the other."""
    temporary = address.with_suffix(f".{os.getpid()}")
    listener.bind(str(temporary))
    listener.listen(16)
    if other := _connect(address):
        other.close()
        temporary.unlink()
        sys.exit(0)
    temporary.replace(address)


def _fork(
    client: socket.socket, listener: socket.socket, children: list[_Child], work: Callable[[list[str]], int]
) -> _Child | None:
    client.settimeout(5)
    try:
        header, ancillary, _, _ = client.recvmsg(8, socket.CMSG_SPACE(2 * 4))
        if len(header) < 8 or not ancillary:
            client.close()  # a parent that only looked whether this one lives
            return None
        request = _receive(client, int.from_bytes(header, "big"))
    except OSError:
        client.close()
        return None
    streams = array.array("i")
    streams.frombytes(ancillary[0][2])
    parent = os.getpid()
    pid = os.fork()
    if pid:
        for stream in streams:
            os.close(stream)
        client.settimeout(None)
        return _Child(pid, os.pidfd_open(pid), client)
    status = 1
    try:
        os.setsid()
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGHUP)
        if os.getppid() != parent:
            os._exit(1)
        listener.close()
        client.close()
        for child in children:
            child.client.close()
            os.close(child.pidfd)
        os.dup2(streams[0], 1)
        os.dup2(streams[1], 2)
        for stream in streams:
            os.close(stream)
        os.chdir(request["folder"])
        os.environ.clear()
        os.environ.update(request["environment"])
        status = work(request["arguments"])
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)


def _receive(client: socket.socket, size: int) -> dict[str, Any]:
    data = b""
    while len(data) < size:
        block = client.recv(size - len(data))
        if not block:
            raise ConnectionError("the client went away")
        data += block
    request: dict[str, Any] = json.loads(data)
    return request


def _answer(child: _Child) -> None:
    _, status = os.waitpid(child.pid, 0)
    code = os.waitstatus_to_exitcode(status)
    with contextlib.suppress(OSError):
        child.client.sendall(str(code if code >= 0 else 128 - code).encode())
    child.client.close()
    os.close(child.pidfd)


def _end_if_forsaken(child: _Child, client_spoke: bool) -> None:
    """After its request a client only hands on signals; when there are none to read, it is gone: its child is ended, then killed."""
    now = time.monotonic()
    if child.asked_to_end is None and client_spoke:
        numbers = _signals_from(child.client)
        for number in numbers:
            os.kill(child.pid, number)
        if not numbers:
            os.kill(child.pid, signal.SIGHUP)
            child.asked_to_end = now
    elif child.asked_to_end is not None:
        time.sleep(0.05)  # its client stays readable: do not spin
        if now - child.asked_to_end > 10:
            os.killpg(child.pid, signal.SIGKILL)


def _signals_from(client: socket.socket) -> list[int]:
    try:
        return [number for number in client.recv(64, socket.MSG_DONTWAIT) if number in ASK_TO_STOP]
    except OSError:
        return []


if __name__ == "__main__":
    from scalestudy.cli import run_command

    signal.signal(signal.SIGINT, signal.SIG_IGN)
    serve(Path(sys.argv[1]), run_command)
