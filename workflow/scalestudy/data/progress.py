"""Progress of work: lines on standard error where it takes longer than a few seconds."""

from __future__ import annotations

import sys
import threading
import time

from scalestudy.errors import duration

FIRST_S, EVERY_S = 3.0, 10.0
"""Seconds until the first line, and between lines."""


class Progress:
    """Counts what is done, by any thread, and prints it: `sharding: 12,000 of 50,000, 350/s, 2 min left`."""

    def __init__(self, what: str, total: int = 0, done: int = 0) -> None:
        """`done` were there before, and took none of this time."""
        self._what, self._total, self._done, self._before = what, total, done, done
        self._started = time.monotonic()
        self._next, self._printed, self._lock = self._started + FIRST_S, False, threading.Lock()

    def add(self, count: int) -> None:
        """Count `count` more as done."""
        with self._lock:
            self._done += count
            now = time.monotonic()
            if now >= self._next:
                self._next = now + EVERY_S
                self._print()

    def __enter__(self) -> Progress:
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        """Print a last line where the block ends well, if there was one before."""
        if self._printed and kind is None:
            self._print()

    def _print(self) -> None:
        rate = (self._done - self._before) / max(1e-9, time.monotonic() - self._started)
        of = f" of {self._total:,}" if self._total else ""
        text = f"{self._what}: {self._done:,}{of}, {rate:,.0f}/s"
        if rate > 0 and self._done < self._total:
            text += f", {duration((self._total - self._done) / rate)} left"
        self._printed = True
        print(text, file=sys.stderr, flush=True)
