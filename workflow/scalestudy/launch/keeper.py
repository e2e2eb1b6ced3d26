"""The keeper: a process beside a run's supervisor that beats in its place, and cleans up after it, also after SIGKILL."""

from __future__ import annotations

import os
import select
import shutil
import signal
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil

from scalestudy.processes import Lifeline
from scalestudy.program.observe import end_processes

IGNORED_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)
"""By a run's ranks, agents and keeper: the process that started them decides when they end."""
BEAT_S = 10.0
"""How often the keeper touches the lock of its run, for hosts that do not see the lock itself, or its process."""


class Keeper:
    """The supervisor's end of it."""

    def __init__(self, group: int, lifeline: Lifeline) -> None:
        self.group, self._lifeline = group, lifeline
        """Process group that the run's processes join, with all that they start and leave running."""

    @contextmanager
    def scratch(self, folder: Path) -> Iterator[int]:
        """Yield the process group. The keeper removes `folder` if this process is killed; with the block, the group ends."""
        self._lifeline.tell(str(folder))
        try:
            yield self.group
        finally:
            self.end_group()
            self._lifeline.tell("")

    def end_group(self) -> None:
        """Kill all of the group but the keeper."""
        killed = {self.group}
        while members := {process for process in psutil.pids() if self._has(process)} - killed:
            for process in members:
                with suppress(ProcessLookupError):
                    os.kill(process, signal.SIGKILL)
            killed |= members  # a member may have forked another one meanwhile

    def _has(self, process: int) -> bool:
        try:
            return os.getpgid(process) == self.group
        except ProcessLookupError:
            return False


@contextmanager
def keeper(lock: Path | None = None) -> Iterator[Keeper]:
    """Held by a run's supervisor; the keeper touches `lock`. When the block ends, everything in the group is ended."""
    lifeline = Lifeline()
    group = os.fork()
    if group == 0:
        _keep(lifeline, lock)
    lifeline.hold()
    with suppress(PermissionError):  # it may have done so itself
        os.setpgid(group, group)
    try:
        yield Keeper(group, lifeline)
    finally:
        with suppress(ProcessLookupError):
            os.killpg(group, signal.SIGKILL)
        os.waitpid(group, 0)
        lifeline.release()


def _keep(lifeline: Lifeline, lock: Path | None) -> None:
    try:
        os.setpgid(0, 0)
        for number in IGNORED_SIGNALS:
            signal.signal(number, signal.SIG_IGN)
        if folder := _folder_at_the_end(lifeline.watch(), lock):
            end_processes(folder)
            shutil.rmtree(folder, ignore_errors=True)
            shutil.rmtree(folder, ignore_errors=True)  # a process that was still writing has ended by now
        os.killpg(0, signal.SIGKILL)
    finally:
        os._exit(1)


def _folder_at_the_end(orders: int, lock: Path | None) -> str:
    """Beat until the supervisor has ended; the folder that it had then."""
    text = b"\n"
    while True:
        if not select.select([orders], [], [], BEAT_S)[0]:
            if lock is not None:
                with suppress(OSError):
                    os.utime(lock)
        elif order := os.read(orders, select.PIPE_BUF):
            text += order
        else:
            return os.fsdecode(text.split(b"\n")[-2])
