"""Progress lines on standard error for work that takes longer than a few seconds."""

from __future__ import annotations

import contextlib
import sys
import threading
import time
from collections.abc import Iterator

FIRST_S, EVERY_S, EVERY_IN_LOG_S = 3.0, 1.0, 30.0
"""Seconds until the first line, between lines on a terminal, and between lines in a log file."""

KEPT = "what is done is kept"
"""Part of a remedy; an error whose remedy contains it leaves the folder of an unfinished dataset in place."""


class Progress:
    """Counts what is done, by any thread, and prints it: `sharding: 12,000 of 50,000, 350/s, 2 min left`."""

    def __init__(self, what: str, total: int | None = None, done: int = 0) -> None:
        self._what, self._total, self._done, self._before = what, total, done, done
        self._started = time.monotonic()
        self._next, self._said, self._lock = self._started + FIRST_S, False, threading.Lock()
        self._live = sys.stderr.isatty()

    def add(self, count: int) -> None:
        """Count `count` more as done."""
        with self._lock:
            self._done += count
            now = time.monotonic()
            if now >= self._next:
                self._next = now + (EVERY_S if self._live else EVERY_IN_LOG_S)
                self._said = True
                print(self._line(now), end="" if self._live else "\n", file=sys.stderr, flush=True)

    def end(self) -> None:
        """Print a last line, if there was one before."""
        if self._said:
            print(self._line(time.monotonic()), file=sys.stderr, flush=True)

    def _line(self, now: float) -> str:
        rate = (self._done - self._before) / max(1e-9, now - self._started)
        text = f"{self._what}: {self._done:,}"
        if self._total is not None:
            text += f" of {self._total:,}"
        text += f", {rate:,.0f}/s"
        if self._total is not None and rate > 0 and self._done < self._total:
            text += f", {_duration((self._total - self._done) / rate)} left"
        return f"\r{text}\x1b[K" if self._live else text


@contextlib.contextmanager
def shown(what: str, total: int) -> Iterator[Progress]:
    """The progress of this block, with a last line where the block ends well."""
    progress = Progress(what, total)
    yield progress
    progress.end()


def _duration(seconds: float) -> str:
    minutes = round(seconds / 60)
    if minutes < 1:
        return f"{seconds:.0f} s"
    return f"{minutes} min" if minutes < 60 else f"{minutes // 60} h {minutes % 60} min"
