"""Where lines go: on a terminal above one live display, elsewhere plainly, with a line now and then while nothing ends."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable
from typing import Any

from snakemake_logger_plugin_scalestudy.progress import (
    Progress,
    counted,
    heading,
    running_line,
    time_left,
)

QUIET_S = 60.0
"""Longest silence of a plain display."""
MOST_RUNNING = 5
"""Running jobs that a display names."""


def running_lines(progress: Progress, now: float) -> list[str]:
    """The jobs that run, the longest first."""
    running = sorted(progress.of("running"), key=lambda task: task.began)
    rest = len(running) - MOST_RUNNING
    lines = [running_line(progress, task, now) for task in running[:MOST_RUNNING]]
    return lines + ([f"and {rest} more"] if rest > 0 else [])


class Plain:
    """Lines on standard error."""

    def __init__(self, progress: Progress, clock: Callable[[], float] = time.time) -> None:
        self.progress, self.clock, self.said = progress, clock, clock()
        self.ended = threading.Event()
        self.thread: threading.Thread | None = None

    def say(self, text: str) -> None:
        """A line."""
        self.said = self.clock()
        sys.stderr.write(text + "\n")
        sys.stderr.flush()

    def shown(self, running: bool) -> None:
        """Jobs began or ended; a first one starts the watch for silence."""
        if running and self.thread is None:
            self.thread = threading.Thread(target=self._watch, daemon=True)
            self.thread.start()

    def close(self) -> None:
        """Nothing more will be said."""
        self.ended.set()

    def tick(self) -> None:
        """After a long silence, what is running."""
        now = self.clock()
        if now - self.said >= QUIET_S and (lines := running_lines(self.progress, now)):
            self.say(" · ".join(filter(None, [f"… {lines[0]}", counted(self.progress), time_left(self.progress, now)])))

    def _watch(self) -> None:
        while not self.ended.wait(QUIET_S / 12):
            self.tick()


class Live:
    """Lines above a bar with counts, rate and time left, and the jobs that run."""

    def __init__(self, progress: Progress, console: Any = None, clock: Callable[[], float] = time.time) -> None:
        from rich.console import Console

        self.progress, self.clock = progress, clock
        self.console = console or Console(stderr=True, highlight=False, markup=False)
        self.live: Any = None

    def say(self, text: str) -> None:
        """A line that stays, above the display."""
        self.console.print(text, soft_wrap=True)

    def shown(self, running: bool) -> None:
        """Show the display while anything runs: other programs write to the terminal when nothing does."""
        from rich.live import Live as RichLive

        if running and self.live is None:
            self.live = RichLive(
                console=self.console, get_renderable=self.render, refresh_per_second=1, transient=True,
                redirect_stdout=False, redirect_stderr=False,
            )  # fmt: skip
            self.live.start(refresh=True)
        elif not running:
            self.close()

    def close(self) -> None:
        """Take the display away."""
        if self.live is not None:
            self.live.stop()
            self.live = None

    def render(self) -> Any:
        """Bar, counts, rate, time left; below them what runs."""
        return rendered(self.progress, self.clock())


def rendered(progress: Progress, now: float) -> Any:
    """A bar with counts, rate and time left, and below it what runs, for a terminal."""
    from rich.console import Group
    from rich.progress_bar import ProgressBar
    from rich.table import Table
    from rich.text import Text

    head = Table.grid(padding=(0, 1))
    head.add_row(ProgressBar(total=1.0, completed=progress.share(now), width=24), Text(heading(progress, now)))
    lines = [Text("  " + line, overflow="ellipsis", no_wrap=True) for line in running_lines(progress, now)]
    return Group(head, *lines)


def display_for(progress: Progress, terminal: bool) -> Plain | Live:
    """The display for standard error."""
    return Live(progress) if terminal else Plain(progress)
