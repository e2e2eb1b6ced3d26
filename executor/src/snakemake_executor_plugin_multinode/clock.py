"""The clock, passed in wherever time decides something, so that tests can use their own."""

from __future__ import annotations

import time


class Clock:
    """The clocks of this host."""

    def now_s(self) -> float:
        """Monotonic seconds, for intervals."""
        return time.monotonic()

    def unix_s(self) -> float:
        """Seconds since 1970; for records."""
        return time.time()

    def wait(self, seconds: float) -> None:
        """Let so much time pass."""
        time.sleep(seconds)
