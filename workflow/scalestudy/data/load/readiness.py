"""How often a queue was not empty: the stage before the first queue that is often empty is the slow one."""

from __future__ import annotations

import threading
import time


class Readiness:
    """Share of time in which a queue was not empty, from its first item on."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._items = 0
        self._begin: float | None = None
        self._since = 0.0
        self._filled_s = 0.0

    def count(self, more: int) -> None:
        """Count items that were put in; negative: taken out."""
        now = time.monotonic()
        with self._lock:
            if self._begin is None:
                self._begin = self._since = now
            if self._items > 0:
                self._filled_s += now - self._since
            self._items += more
            self._since = now

    @property
    def share(self) -> float:
        """0 to 1, until now; 0 where no item ever came."""
        now = time.monotonic()
        with self._lock:
            if self._begin is None or now <= self._begin:
                return 0.0
            filled_s = self._filled_s + (now - self._since if self._items > 0 else 0.0)
            return filled_s / (now - self._begin)
