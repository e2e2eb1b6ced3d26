"""How far the work in this folder is, read from the folder alone: no driver has to be running."""

from __future__ import annotations

import json
import socket
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click

from scalestudy import processes
from scalestudy.errors import UserError
from scalestudy.files import read_json
from snakemake_logger_plugin_scalestudy.display import rendered, running_lines
from snakemake_logger_plugin_scalestudy.progress import FILE, Progress, heading, stopped

EVERY_S = 2.0
"""Seconds between two looks of `--watch`."""


@click.command(name="status")
@click.option("--watch", is_flag=True, help="Update until the driver has ended.")
@click.option("--json", "as_json", is_flag=True, help="As JSON.")
def command(watch: bool, as_json: bool) -> None:
    """Show the progress of the work in this folder, the time left, and the command that resumes it.

    Example: scalestudy status --watch
    """
    show_status(watch, as_json)


def show_status(watch: bool, as_json: bool) -> None:
    """Print how far the last call of Snakemake in this folder is; `watch` until it has ended."""
    if as_json:
        click.echo(json.dumps(plain(read_progress(time.time()), time.time()), indent=1))
    elif watch:
        _watch()
    else:
        for line in lines(read_progress(time.time()), time.time()):
            click.echo(line)


def read_progress(now: float) -> Progress:
    """What the driver wrote, with what has finished since, if it was killed. Raises UserError where there is nothing."""
    remedy = "start the work first: snakemake all --profile profiles/local"
    if not Path(FILE).is_file():
        raise UserError("nothing has been started in this folder", FILE, remedy)
    try:
        progress = Progress.of_plain(read_json(Path(FILE)))
    except (ValueError, KeyError, TypeError, AttributeError, UserError):
        raise UserError("cannot be read as the progress of a workflow", FILE, remedy) from None
    gone = driver_is_gone(progress)
    for task in progress.of("waiting", "running", "failed"):
        result = Path(task.output)
        if result.exists() and result.stat().st_mtime >= progress.began:
            progress.end(task.output, result.stat().st_mtime)
        elif gone and task.state == "running":
            task.state = "waiting"
    return progress


def driver_is_gone(progress: Progress) -> bool:
    """Whether nothing waits for the jobs any more; of a driver on another host only its own word is known."""
    if not progress.process:
        return True
    return progress.host == socket.gethostname() and processes.is_gone(progress.process)


def lines(progress: Progress, now: float) -> Iterator[str]:
    """The answer first; then what runs, the studies, the driver."""
    yield heading(progress, now)
    yield from (f"  {line}" for line in running_lines(progress, now))
    for study, counts in _by_study(progress).items():
        failed = f", {counts['failed']} failed" if counts["failed"] else ""
        yield f"  {study:20} {counts['done']} of {counts.total()} runs done{failed}"
    yield _driver(progress)


def plain(progress: Progress, now: float) -> dict[str, Any]:
    """The same as plain data; times in seconds."""
    left = progress.left_s(now)
    return {
        "runs": {state: progress.runs[state] for state in ("waiting", "running", "done", "failed")},
        "runs_per_hour": progress.runs_per_h(now),
        "left_s": None if left is None else list(left),
        "running": [{"name": task.name, "output": task.output, "since": task.began} for task in progress.of("running")],
        "studies": {study: dict(counts) for study, counts in _by_study(progress).items()},
        "driver": None if driver_is_gone(progress) else {"host": progress.host, "process": progress.process},
        "resume": progress.command if progress.unfinished else None,
    }


def _by_study(progress: Progress) -> dict[str, Counter[str]]:
    found: dict[str, Counter[str]] = {}
    for task in progress.tasks.values():
        if task.rule == "train":
            found.setdefault(task.study, Counter())[task.state] += 1
    return found


def _driver(progress: Progress) -> str:
    if not driver_is_gone(progress):
        return f"The driver is process {progress.process.partition(':')[0]} on {progress.host}."
    if not progress.unfinished:
        return "Everything is done; no driver is running."
    return f"No driver is running. {stopped(progress)}"


def _watch() -> None:
    from rich.console import Console
    from rich.live import Live

    console = Console(highlight=False, markup=False)
    with Live(rendered(read_progress(time.time()), time.time()), console=console, auto_refresh=False) as live:
        while True:
            progress = read_progress(time.time())
            live.update(rendered(progress, time.time()), refresh=True)
            if driver_is_gone(progress):
                break
            time.sleep(EVERY_S)
    click.echo(_driver(progress))
