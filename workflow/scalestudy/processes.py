"""Processes: which one is which, the driver of a run, and how one learns that another has ended."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
from pathlib import Path

DRIVER = "SCALESTUDY_DRIVER"
"""Variable with the identity of the driver: the Snakemake process on this machine that started a run and waits for it."""
PR_SET_PDEATHSIG = 1
_held: set[int] = set()
"""Writing ends of lifelines that this process holds."""


def identity(process: int) -> str | None:
    """`id:start`, the start in the kernel's own count, as process ids come again; None where it has ended."""
    try:
        status = Path(f"/proc/{process}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    state, *others = status.rpartition(")")[2].split()
    return None if state in "ZX" else f"{process}:{others[18]}"


def is_gone(process: str) -> bool:
    """Whether the process of an identity has ended; the empty identity has not."""
    return process != "" and identity(int(process.partition(":")[0])) != process


def announce_driver() -> None:
    """Name this process as the driver of all processes that it starts."""
    os.environ[DRIVER] = identity(os.getpid()) or ""


def conceal_driver() -> None:
    """Keep the driver's identity from submitted jobs on other machines, whatever environment a scheduler hands on."""
    os.environ.pop(DRIVER, None)


def driver() -> str:
    """Identity of this process's driver; empty for a process that a person, or a job's script, has started."""
    return os.environ.get(DRIVER, "")


def die_with(parent: int, number: int = signal.SIGKILL) -> None:
    """Have the kernel send this process a signal when its parent ends; called in a new process. Linux only.

    `parent` is the parent as it knew itself: where that has ended already, so does this process.
    """
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, number)
    if os.getppid() != parent:
        os._exit(1)


class Lifeline:
    """A pipe whose reading end reports the end of the process that holds the other one.

    Made before a fork, after which one of the two processes calls `hold` and the other `watch`. A later child of the holder
    does not hold the pipe. (`os.pidfd_open` would do as well, but is not in every build of Python.)
    """

    def __init__(self) -> None:
        self.reading, self._writing = os.pipe()

    def hold(self) -> None:
        """Report the end of this process."""
        os.close(self.reading)
        _held.add(self._writing)

    def watch(self) -> int:
        """This process is the one that is notified; returns the descriptor to select on."""
        os.close(self._writing)
        return self.reading

    def tell(self, line: str) -> None:
        """Send the watcher a line, shorter than PIPE_BUF."""
        os.write(self._writing, f"{line}\n".encode(errors="surrogateescape"))

    def release(self) -> None:
        """The holder no longer needs it: the watcher is notified."""
        _held.discard(self._writing)
        os.close(self._writing)


def _close_held() -> None:
    for descriptor in _held:
        with contextlib.suppress(OSError):
            os.close(descriptor)
    _held.clear()


os.register_at_fork(after_in_child=_close_held)
