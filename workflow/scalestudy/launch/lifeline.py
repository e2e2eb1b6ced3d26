"""How processes learn that another has ended, however it ended."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal

PR_SET_PDEATHSIG = 1
_held: set[int] = set()
"""Writing ends that this process holds."""


def die_with(parent: int, number: int = signal.SIGKILL) -> None:
    """Have the kernel send this process a signal when its parent ends; called in a new process. Linux only.

    `parent` is the parent as it knew itself: where that has ended already, so does this process.
    """
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, number)
    if os.getppid() != parent:
        os._exit(1)


class Lifeline:
    """A pipe that nobody writes to: its reading end becomes readable when the process that holds the other end ends.

    Made before a fork, after which one of the two processes calls `hold` and the other `watch`. What the holder forks
    later does not hold the pipe. (`os.pidfd_open` would do as well, but is not in every build of Python.)
    """

    def __init__(self) -> None:
        self.reading, self._writing = os.pipe()

    def hold(self) -> None:
        """This process is the one whose end is reported."""
        os.close(self.reading)
        _held.add(self._writing)

    def watch(self) -> int:
        """This process is the one that is notified; returns the descriptor to select on."""
        os.close(self._writing)
        return self.reading

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
