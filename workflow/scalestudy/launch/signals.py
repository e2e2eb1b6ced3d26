"""Signals to the process that started a run: the first one asks its ranks to stop, a second one ends it at once."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

from scalestudy import processes
from scalestudy.spec.program import Program
from scalestudy.training.control_files import AGREED, DRIVER_IS_GONE, REQUEST

AGREE_S = 600.0
"""Time limit of the ranks' agreement to stop: they may be in an evaluation, or in a long step."""
LOOK_S = 1.0
"""Interval of looks at the driver and the clock."""
SAME_SIGNAL_S = 1.0
"""Signals within this time are one: schedulers send them to the job and to each of its processes."""
ASK_TO_STOP = (signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2)
END_AT_ONCE = (signal.SIGINT, signal.SIGHUP)


class EndedBySignal(Exception):
    """A run that was ended at once."""


@contextmanager
def handled(folder: Path, program: Program | None) -> Iterator[None]:
    """SIGTERM, SIGUSR1, SIGUSR2 and the death of the run's driver ask the ranks to stop; SIGINT and SIGHUP end the run.

    So does a second signal, or AGREE_S without agreement of the ranks; and the first one, where a program cannot resume.
    `folder` is the job's scratch, where rank 0 looks. Raises EndedBySignal in the main thread.
    """
    driver, first_s = processes.driver(), None

    def request(why: str) -> None:
        nonlocal first_s
        if program is not None and not program.resume:
            who = "the end of its driver" if why == DRIVER_IS_GONE else why
            raise EndedBySignal(f"the run was stopped by {who}; its program cannot go on (`program.resume` is not set)")
        first_s = time.monotonic()
        (folder / REQUEST).write_text(why, encoding="utf-8")

    def end(number: int, _frame: FrameType | None) -> None:
        raise EndedBySignal(f"the run was stopped by {signal.Signals(number).name}")

    def ask(number: int, _frame: FrameType | None) -> None:
        if first_s is None:
            request(signal.Signals(number).name)
        elif time.monotonic() - first_s >= SAME_SIGNAL_S:
            raise EndedBySignal(f"the run was ended by a second signal, {signal.Signals(number).name}")

    def look(_number: int, _frame: FrameType | None) -> None:
        if first_s is None and processes.is_gone(driver):
            request(DRIVER_IS_GONE)
        late = first_s is not None and time.monotonic() - first_s >= AGREE_S
        if late and not (folder / AGREED).exists():
            who = "the ranks" if program is None else "the program"
            raise EndedBySignal(f"{who} did not stop within {AGREE_S:.0f} s of the request")

    handlers: dict[signal.Signals, Callable[[int, FrameType | None], None]] = {
        **dict.fromkeys(ASK_TO_STOP, ask),
        **dict.fromkeys(END_AT_ONCE, end),
        signal.SIGALRM: look,
    }
    before = {number: signal.signal(number, handler) for number, handler in handlers.items()}
    signal.setitimer(signal.ITIMER_REAL, LOOK_S, LOOK_S)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        for number, handler in before.items():
            signal.signal(number, handler)
