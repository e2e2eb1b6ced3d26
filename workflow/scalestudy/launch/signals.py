"""Signals to the process that started a run: the first one asks its ranks to stop, a second one ends it at once."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

from scalestudy import processes
from scalestudy.training.control_files import AGREED, DRIVER_IS_GONE, REQUEST

AGREE_S = 30.0
"""Ranks may take so long from a signal to their agreement to stop."""
LOOK_S = 1.0
"""How often the process that started the ranks looks for its driver, and at the clock."""
SAME_SIGNAL_S = 1.0
"""Signals within this time are one: schedulers send them to the job and to each of its processes."""
ASK_TO_STOP = (signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2)
END_AT_ONCE = (signal.SIGINT, signal.SIGHUP)


class EndedBySignal(Exception):
    """A run that was ended at once."""


@contextmanager
def handled(folder: Path) -> Iterator[None]:
    """SIGTERM, SIGUSR1, SIGUSR2 and the death of the run's driver ask the ranks to stop; SIGINT and SIGHUP end the run.

    So does a second signal, or AGREE_S without agreement of the ranks. `folder` is the job's scratch, where rank 0
    looks. Raises EndedBySignal in the main thread.
    """
    requests = _Requests(folder)
    handlers: dict[signal.Signals, Callable[[int, FrameType | None], None]] = {
        **dict.fromkeys(ASK_TO_STOP, requests.ask),
        **dict.fromkeys(END_AT_ONCE, requests.end),
        signal.SIGALRM: requests.look,
    }
    before = {number: signal.signal(number, handler) for number, handler in handlers.items()}
    signal.setitimer(signal.ITIMER_REAL, LOOK_S, LOOK_S)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        for number, handler in before.items():
            signal.signal(number, handler)


class _Requests:
    """The requests to stop that one run has had."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.driver = folder, processes.driver()
        self.first_s: float | None = None

    def end(self, number: int, _frame: FrameType | None) -> None:
        """End the run at once."""
        raise EndedBySignal(f"the run was stopped by {signal.Signals(number).name}")

    def ask(self, number: int, _frame: FrameType | None) -> None:
        """Ask the ranks to stop; a second time, end the run."""
        if self.first_s is None:
            self._request(signal.Signals(number).name)
        elif time.monotonic() - self.first_s >= SAME_SIGNAL_S:
            raise EndedBySignal(f"the run was ended by a second signal, {signal.Signals(number).name}")

    def look(self, _number: int, _frame: FrameType | None) -> None:
        """Look for the driver, and whether the ranks have agreed in time."""
        if self.first_s is None and processes.is_gone(self.driver):
            self._request(DRIVER_IS_GONE)
        late = self.first_s is not None and time.monotonic() - self.first_s >= AGREE_S
        if late and not (self.folder / AGREED).exists():
            raise EndedBySignal(f"the ranks did not agree to stop within {AGREE_S:.0f} s of the request")

    def _request(self, why: str) -> None:
        self.first_s = time.monotonic()
        (self.folder / REQUEST).write_text(why, encoding="utf-8")
