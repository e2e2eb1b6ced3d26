"""The keeper: a process beside a run's supervisor that holds its lock, and cleans up after it, also after SIGKILL."""

from __future__ import annotations

import os
import shutil
import signal
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from scalestudy.processes import die_with, end_program

IGNORED_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)
"""By a run's ranks, agents and keeper: the process that started them decides when they end."""


@contextmanager
def keeper(scratch: Path | None = None) -> Iterator[int]:
    """Yield a process group that the run's processes join, with all that they start and leave running.

    When the block ends, everything in the group is killed; when this process is killed, `scratch` is removed too.
    """
    parent = os.getpid()
    group = os.fork()
    if group == 0:
        _keep(parent, scratch)
    with suppress(PermissionError):  # it may have done so itself
        os.setpgid(group, group)
    try:
        yield group
    finally:
        with suppress(ProcessLookupError):
            os.killpg(group, signal.SIGKILL)
        os.waitpid(group, 0)


def _keep(parent: int, scratch: Path | None) -> None:
    """Wait for the supervisor's end, of which the kernel sends a signal; then remove its folder and its group."""
    try:
        os.setpgid(0, 0)
        for number in IGNORED_SIGNALS:
            signal.signal(number, signal.SIG_IGN)
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR1})
        die_with(parent, signal.SIGUSR1)
        while os.getppid() == parent:
            signal.sigwait({signal.SIGUSR1})
        if scratch is not None:
            end_program(str(scratch))
            shutil.rmtree(scratch, ignore_errors=True)
            shutil.rmtree(scratch, ignore_errors=True)  # a process that was still writing has ended by now
        os.killpg(0, signal.SIGKILL)
    finally:
        os._exit(1)
