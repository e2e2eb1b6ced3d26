"""Time, handed in wherever it decides something, so that a test can have its own."""

from __future__ import annotations

import time


class Clock:
    """The clocks of this host."""

    def now_s(self) -> float:
        """Seconds that never go back; for intervals."""
        return time.monotonic()

    def unix_s(self) -> float:
        """Seconds since 1970; for records."""
        return time.time()
