"""Progress of the work in this folder, read from the folder alone: no driver has to be running."""

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
from snakemake_logger_plugin_scalestudy.progress import FILE, Progress, current, heading, stopped


@click.command(name="status")
@click.option("--json", "as_json", is_flag=True, help="As JSON.")
def command(as_json: bool) -> None:
    """Show the progress of the work in this folder, and the command that resumes it.

    Example: scalestudy status
    """
    now = time.time()
    progress = read_progress()
    if as_json:
        click.echo(json.dumps(to_dict(progress), indent=1))
    else:
        click.echo("\n".join(lines(progress, now)))


def read_progress() -> Progress:
    """What the driver wrote, with runs that finished after it was killed. UserError where there is nothing."""
    remedy = "start the work first: snakemake all --profile profiles/local"
    if not Path(FILE).is_file():
        raise UserError("nothing has been started in this folder", FILE, remedy)
    try:
        progress = Progress.of_dict(read_json(Path(FILE)))
    except (KeyError, TypeError):
        raise UserError("cannot be read as the progress of a workflow", FILE, remedy) from None
    gone = driver_is_gone(progress)
    for task in progress.of("waiting", "running", "failed"):
        result = Path(task.output)
        if result.exists() and result.stat().st_mtime >= progress.began:
            progress.end(task, result.stat().st_mtime)
        elif gone and task.state != "failed":
            task.state, task.reason = "waiting", ""
    return progress


def driver_is_gone(progress: Progress) -> bool:
    """Whether the driver has ended; of one on another host only its own record is known."""
    if not progress.process:
        return True
    return progress.host == socket.gethostname() and processes.is_gone(progress.process)


def lines(progress: Progress, now: float) -> Iterator[str]:
    """The answer first; then what runs, the studies, the driver."""
    yield heading(progress)
    yield from (f"  {line}" for line in current(progress, now))
    for study, counts in _by_study(progress).items():
        failed = f", {counts['failed']} failed" if counts["failed"] else ""
        yield f"  {study:20} {counts['done']} of {counts.total()} runs done{failed}"
    if not driver_is_gone(progress):
        yield f"The driver is process {progress.process.partition(':')[0]} on {progress.host}."
    elif progress.of("waiting", "running", "failed"):
        yield f"No driver is running. {stopped(progress)}"
    else:
        yield "Everything is done; no driver is running."


def to_dict(progress: Progress) -> dict[str, Any]:
    """The same as plain data; times in seconds."""
    gone = driver_is_gone(progress)
    return {
        "runs": {state: progress.runs[state] for state in ("waiting", "running", "done", "failed")},
        "mean_s": progress.mean_s,
        "running": [{"name": task.name, "output": task.output, "since": task.began} for task in progress.of("running")],
        "queued": [{"name": task.name, "reason": task.reason} for task in progress.of("waiting") if task.reason],
        "studies": {study: dict(counts) for study, counts in _by_study(progress).items()},
        "driver": None if gone else {"host": progress.host, "process": progress.process},
        "resume": progress.command if progress.of("waiting", "running", "failed") else None,
    }


def _by_study(progress: Progress) -> dict[str, Counter[str]]:
    counts: dict[str, Counter[str]] = {}
    for task in progress.tasks.values():
        if task.rule == "train":
            counts.setdefault(task.study, Counter())[task.state] += 1
    return counts
