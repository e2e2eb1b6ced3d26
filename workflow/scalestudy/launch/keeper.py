"""The keeper: a process beside a run's supervisor that holds its lock, and cleans up after it, also after SIGKILL."""

from __future__ import annotations

import os
import select
import shutil
import signal
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from scalestudy.measure.system import group_members
from scalestudy.processes import die_with
from scalestudy.program.observe import end_processes

IGNORED_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)
"""By a run's ranks, agents and keeper: the process that started them decides when they end."""


class Keeper:
    """The supervisor's end of it."""

    def __init__(self, group: int, orders: int) -> None:
        self.group, self._orders = group, orders
        """Process group that the run's processes join, with all that they start and leave running."""

    @contextmanager
    def scratch(self, folder: Path) -> Iterator[int]:
        """Yield the process group. The keeper removes `folder` if this process is killed; with the block, the group ends."""
        os.write(self._orders, os.fsencode(f"{folder}\n"))
        try:
            yield self.group
        finally:
            self.end_group()
            os.write(self._orders, b"\n")

    def end_group(self) -> None:
        """Kill all of the group but the keeper."""
        killed = {self.group}
        while members := {*group_members(self.group)} - killed:
            for process in members:
                with suppress(ProcessLookupError):
                    os.kill(process, signal.SIGKILL)
            killed |= members  # a member may have forked another one meanwhile


@contextmanager
def keeper() -> Iterator[Keeper]:
    """Held by a run's supervisor. When the block ends, everything in the group is ended."""
    reading, writing = os.pipe()
    os.write(writing, b"\n")
    parent = os.getpid()
    group = os.fork()
    if group == 0:
        _keep(parent, reading)
    os.close(reading)
    with suppress(PermissionError):  # it may have done so itself
        os.setpgid(group, group)
    try:
        yield Keeper(group, writing)
    finally:
        with suppress(ProcessLookupError):
            os.killpg(group, signal.SIGKILL)
        os.waitpid(group, 0)
        os.close(writing)


def _keep(parent: int, orders: int) -> None:
    """Wait for the supervisor's end, of which the kernel sends a signal; then remove its folder and its group."""
    try:
        os.setpgid(0, 0)
        for number in IGNORED_SIGNALS:
            signal.signal(number, signal.SIG_IGN)
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR1})
        die_with(parent, signal.SIGUSR1)
        while os.getppid() == parent:
            signal.sigwait({signal.SIGUSR1})
        if folder := os.fsdecode(os.read(orders, select.PIPE_BUF * 16).split(b"\n")[-2]):
            end_processes(folder)
            shutil.rmtree(folder, ignore_errors=True)
            shutil.rmtree(folder, ignore_errors=True)  # a process that was still writing has ended by now
        os.killpg(0, signal.SIGKILL)
    finally:
        os._exit(1)
