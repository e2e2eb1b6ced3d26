"""A line on standard error now and then, for work that takes longer than a few seconds."""

from __future__ import annotations

import sys
import threading
import time

FIRST_S, EVERY_S, EVERY_IN_LOG_S = 3.0, 1.0, 30.0
"""When the first line comes, and how often then; in a log file, less often."""

KEPT = "what is done is kept"
"""Part of a remedy after which the folder of a dataset that is half made stays."""


class Progress:
    """Counts what is done, by any thread, and says so: `sharding: 12,000 of 50,000, 350/s, 2 min left`."""

    def __init__(self, what: str, total: int | None = None, done: int = 0) -> None:
        self._what, self._total, self._done, self._before = what, total, done, done
        self._started = time.monotonic()
        self._next, self._said, self._lock = self._started + FIRST_S, False, threading.Lock()
        self._live = sys.stderr.isatty()

    def add(self, count: int) -> None:
        """So many more are done."""
        with self._lock:
            self._done += count
            now = time.monotonic()
            if now >= self._next:
                self._next = now + (EVERY_S if self._live else EVERY_IN_LOG_S)
                self._said = True
                print(self._line(now), end="" if self._live else "\n", file=sys.stderr, flush=True)

    def end(self) -> None:
        """The last line, where there was one before."""
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


def _duration(seconds: float) -> str:
    minutes = round(seconds / 60)
    if minutes < 1:
        return f"{seconds:.0f} s"
    return f"{minutes} min" if minutes < 60 else f"{minutes // 60} h {minutes % 60} min"
