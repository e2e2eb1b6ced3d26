"""Says so when a process that others wait for has been stopped: they would wait in silence."""

from __future__ import annotations

import sys
import time
from pathlib import Path

LOOK_S = 5.0
"""How often is looked."""
PATIENCE_S = 30.0
"""A process that a debugger or a shell stops for a moment is not worth a line."""


class StopWatch:
    """Watches one process from another. `what` names it in the message."""

    def __init__(self, pid: int, what: str) -> None:
        self.pid, self.what = pid, what
        self._since: float | None = None
        self._said = False

    def look(self) -> None:
        """Called every LOOK_S; prints one line for each time that the process is stopped for longer than PATIENCE_S."""
        if not is_stopped(self.pid):
            self._since, self._said = None, False
            return
        now = time.monotonic()
        self._since = now if self._since is None else self._since
        if now - self._since >= PATIENCE_S and not self._said:
            self._said = True
            what = (
                f"{self.what} (process {self.pid}) is stopped, by SIGSTOP, a shell or a debugger; the run waits for it"
            )
            print(f"scalestudy: {what}\n    to continue it: kill -CONT {self.pid}", file=sys.stderr, flush=True)


def is_stopped(pid: int) -> bool:
    """Whether the kernel has stopped a process, as proc(5) has it."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state in "Tt"
