"""Whatever happens to the process that supervises a run, nothing of the run stays behind."""

from __future__ import annotations

import os
import select
import shutil
import signal
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

DEAF_TO = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)


@contextmanager
def janitor(folder: Path | None = None) -> Iterator[int]:
    """A process that waits for this one's end, even by SIGKILL, then removes `folder` and ends its process group.

    Yields the group, which the run's processes join: what they start and forget (a loader's workers) is in it too. When
    the block ends, everything in the group is ended.
    """
    parent = os.getpid()
    group = os.fork()
    if group == 0:
        _wait_and_clean(parent, folder)
    with suppress(PermissionError):  # it may have done so itself
        os.setpgid(group, group)
    try:
        yield group
    finally:
        with suppress(ProcessLookupError):
            os.killpg(group, signal.SIGKILL)
        os.waitpid(group, 0)


def _wait_and_clean(parent: int, folder: Path | None) -> None:
    try:
        os.setpgid(0, 0)
        for number in DEAF_TO:
            signal.signal(number, signal.SIG_IGN)
        watched = os.pidfd_open(parent)
        if os.getppid() == parent:
            select.select([watched], [], [])
        if folder is not None:
            shutil.rmtree(folder, ignore_errors=True)
            shutil.rmtree(folder, ignore_errors=True)  # a process that was still writing has ended by now
        os.killpg(0, signal.SIGKILL)
    finally:
        os._exit(1)
