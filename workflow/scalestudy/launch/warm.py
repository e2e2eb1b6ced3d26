"""The client of a warm parent: a process that has torch imported, and forks a child for each command.

`scalestudy train`, `try` and `agent` pass their arguments, environment, folder and output streams over a Unix socket to
the parent (warm_parent.py); a child of it does the work, and the client ends with its exit status. Signals that ask a
client to stop are passed on to the child.

That saves about 3.8 s per run: `scalestudy try` of a tiny perceptron, one epoch of digits, took 0.61 s with it and
4.39 s without (SCALESTUDY_WARM=0), medians of five alternations on two cores of a shared machine.

The child inherits its process settings from the parent (CPU affinity, umask, resource limits, niceness, cgroup), and
libraries read some variables when they are loaded. So there is one parent per combination of these: a client uses only
a parent that was started under its own settings, and starts one where there is none.

Not used inside scheduler jobs, nor with SCALESTUDY_WARM=0.
"""

from __future__ import annotations

import array
import contextlib
import hashlib
import json
import os
import resource
import signal
import socket
import stat
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from scalestudy.launch.signals import ASK_TO_STOP
from scalestudy.site_fault import in_job

START_S = 90.0
SHORT_FOLDER = "/tmp"
MAX_FOLDER_BYTES = 107 - len("/0123456789ab.1234567")
"""The address of a Unix socket has 108 bytes (unix(7)), the last of them 0; the longest name in the folder ends in a process id."""
INHERITED = (
    "Uid",
    "Gid",
    "Groups",
    "Umask",
    "NoNewPrivs",
    "CapEff",
    "Seccomp",
    "Cpus_allowed_list",
    "Mems_allowed_list",
)
"""Fields of /proc/self/status that a forked process has from its parent, and that change what it can do (proc(5))."""
READ_WHEN_LOADED = ("LD_", "GLIBC_", "MALLOC_", "PYTHON", "OMP_", "GOMP_", "KMP_", "MKL_", "OPENBLAS_", "DNNL_", "ONEDNN_",
                    "ATEN_", "TORCH", "PYTORCH_", "NUMEXPR_")  # fmt: skip
"""Prefixes of variables that the loader, Python, OpenMP or torch read once, when they are loaded."""

_is_child = False


def wanted() -> bool:
    """Whether a warm parent may be used here."""
    return sys.platform == "linux" and os.environ.get("SCALESTUDY_WARM") != "0" and not in_job()


def this_is_a_child() -> None:
    """From now on this process does its work itself: it is a child of a warm parent."""
    global _is_child  # noqa: PLW0603 (a property of the process)
    _is_child = True


def call(arguments: list[str]) -> int | None:
    """Run `scalestudy ARGUMENTS` in a child of the warm parent, and return its exit status.

    None where this process has to do the work itself: a parent cannot be started here, or this is its child already.
    """
    if _is_child:
        return None
    try:
        address = _address()
        connection = connect(address) or _start(address)
    except OSError:  # no folder for the socket, or no room in it: a run needs neither
        connection = None
    if connection is None:
        return None
    with connection:
        request = json.dumps(
            {"arguments": arguments, "folder": str(Path.cwd()), "environment": dict(os.environ)}
        ).encode()
        descriptors = array.array("i", [1, 2])
        header = len(request).to_bytes(8, "big")
        try:
            connection.sendmsg([header], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, descriptors)])
            connection.sendall(request)
            with _signals_sent_on(connection):
                answer = connection.recv(64)
        except ConnectionError:
            answer = b""
    return _exit_status(answer, address.with_suffix(".log"))


def _exit_status(answer: bytes, log: Path) -> int:
    """The exit status of a command from the parent's answer; empty: the parent is gone. Prints its failure."""
    if not answer:
        what = "the warm parent process, which was making this run, was killed or failed; the run was ended with it"
        remedy = f"run the same command again, or set SCALESTUDY_WARM=0 to run without it; its log is {log}"
        print(f"scalestudy: {what}\n    {remedy}", file=sys.stderr, flush=True)
        return 1
    code = int(answer)
    if code >= 0:
        return code
    name = signal.Signals(-code).name
    what = f"the process that was making this run was killed by signal {-code} ({name})"
    memory = ": the kernel does that where memory runs out (see dmesg)" if -code == signal.SIGKILL else ""
    print(f"scalestudy: {what}{memory}", file=sys.stderr, flush=True)
    return 128 - code


@contextlib.contextmanager
def _signals_sent_on(connection: socket.socket) -> Iterator[None]:
    """Signals that ask a run to stop are for the child that makes it: each is sent there as one byte."""

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
    """The parent's socket: one per user, interpreter, state of the code, and settings of the process."""
    package = Path(__file__).resolve().parent.parent
    state = hashlib.sha256(f"{sys.executable} {package} {_settings()}".encode())
    for file in sorted(package.rglob("*.py")):
        status = file.stat()
        state.update(f"{file} {status.st_mtime_ns} {status.st_size}".encode())
    return _folder() / f"{state.hexdigest()[:12]}.sock"


def _settings() -> str:
    """Settings that a child inherits from its parent or from the parent's loaded libraries."""
    status = Path("/proc/self/status").read_text(encoding="utf-8", errors="replace").splitlines()
    limits = {name: resource.getrlimit(getattr(resource, name)) for name in dir(resource) if name.startswith("RLIMIT_")}
    namespaces = [str(path.readlink()) for path in sorted(Path("/proc/self/ns").iterdir())]
    return json.dumps([
        [line for line in status if line.partition(":")[0] in INHERITED],
        limits,
        os.getpriority(os.PRIO_PROCESS, 0),
        os.sched_getscheduler(0),
        Path("/proc/self/cgroup").read_text(encoding="utf-8"),
        namespaces,
        sorted((name, value) for name, value in os.environ.items() if name.startswith(READ_WHEN_LOADED)),
    ])  # fmt: skip


def _folder() -> Path:
    """A folder that only this user can enter, short enough for a socket's address. Raises OSError where there is none."""
    named = os.environ.get("XDG_RUNTIME_DIR")
    places = (*([named] if named else []), tempfile.gettempdir(), SHORT_FOLDER)
    for place in places:
        folder = Path(place) / f"scalestudy-{os.getuid()}"
        if len(os.fsencode(folder)) > MAX_FOLDER_BYTES:
            continue
        with contextlib.suppress(OSError):
            folder.mkdir(mode=0o700, exist_ok=True)
            status = folder.lstat()
            if status.st_uid == os.getuid() and not status.st_mode & 0o077 and stat.S_ISDIR(status.st_mode):
                return folder
    raise PermissionError(f"no folder of {', '.join(places)} is this user's alone")


def connect(address: Path) -> socket.socket | None:
    """A connection to the parent at an address, None where none listens there."""
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
            [sys.executable, "-m", "scalestudy.commands.warm", str(address)],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            cwd="/",
            start_new_session=True,
        )
    deadline = time.monotonic() + START_S
    while time.monotonic() < deadline:
        if connection := connect(address):
            return connection
        if parent.poll() is not None and parent.returncode != 0:
            return None
        time.sleep(0.02)
    return None
