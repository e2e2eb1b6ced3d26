"""Heartbeats: every process of a run counts up once a second, in memory that it shares with the process that started it."""

from __future__ import annotations

import mmap
import struct
import threading
from pathlib import Path

INTERVAL_S = 1.0
COUNTER = struct.Struct("=Q")
STATES = {
    "T": "it is stopped, by SIGSTOP or a debugger",
    "t": "it is stopped by a debugger",
    "D": "it waits for a device",
}


class Heartbeats:
    """One counter per process. Made before the processes are forked; it leaves no file behind.

    The counting thread is one of Python's: it runs while the main thread waits, sleeps, or computes in a library that
    has released the interpreter's lock, as torch does. So a slow step beats, a stopped process does not.
    """

    def __init__(self, count: int) -> None:
        self._memory = mmap.mmap(-1, COUNTER.size * max(1, count))
        self._seen = [0] * count
        self._silent_s = [0.0] * count

    def start(self, slot: int) -> None:
        """Begin to beat; called by the process itself."""
        threading.Thread(target=self._beat, args=(slot,), name="heartbeat", daemon=True).start()

    def _beat(self, slot: int) -> None:
        count, pause = 0, threading.Event()
        while True:
            count += 1
            COUNTER.pack_into(self._memory, slot * COUNTER.size, count)
            pause.wait(INTERVAL_S)

    def silent_s(self, slot: int, elapsed_s: float) -> float:
        """Seconds that the process has been silent, `elapsed_s` after the last call.

        A gap between two calls counts as two intervals at most: a job that is suspended as a whole and
        resumed has lost no process.
        """
        (count,) = COUNTER.unpack_from(self._memory, slot * COUNTER.size)
        if count != self._seen[slot]:
            self._seen[slot], self._silent_s[slot] = count, 0.0
        else:
            self._silent_s[slot] += min(elapsed_s, 2 * INTERVAL_S)
        return self._silent_s[slot]


def why_silent(pid: int) -> str:
    """Return the kernel's state of a stalled process; empty where it explains nothing."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()[0]
    except OSError:
        return ""
    return STATES.get(state, "")
