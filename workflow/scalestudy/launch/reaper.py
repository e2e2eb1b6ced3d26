"""Whatever happens to the process that supervises a run, nothing of the run stays behind."""

from __future__ import annotations

import os
import select
import shutil
import signal
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from scalestudy.launch.lifeline import Lifeline

IGNORED_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)
"""By a run's ranks, agents and reaper: the process that started them decides when they end."""


@contextmanager
def reaper(folder: Path | None = None) -> Iterator[int]:
    """A process that waits for this one's end, even by SIGKILL, then removes `folder` and ends its process group.

    Yields the group, which the run's processes join: what they start and leave running (a loader's workers) is in it
    too. When the block ends, everything in the group is ended.
    """
    lifeline = Lifeline()
    group = os.fork()
    if group == 0:
        _wait_and_clean(lifeline, folder)
    lifeline.hold()
    with suppress(PermissionError):  # it may have done so itself
        os.setpgid(group, group)
    try:
        yield group
    finally:
        with suppress(ProcessLookupError):
            os.killpg(group, signal.SIGKILL)
        os.waitpid(group, 0)
        lifeline.release()


def _wait_and_clean(lifeline: Lifeline, folder: Path | None) -> None:
    try:
        os.setpgid(0, 0)
        for number in IGNORED_SIGNALS:
            signal.signal(number, signal.SIG_IGN)
        select.select([lifeline.watch()], [], [])
        if folder is not None:
            shutil.rmtree(folder, ignore_errors=True)
            shutil.rmtree(folder, ignore_errors=True)  # a process that was still writing has ended by now
        os.killpg(0, signal.SIGKILL)
    finally:
        os._exit(1)
