"""Real processes, found by the files that they have open."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TypeVar

import psutil

Answer = TypeVar("Answer")


def with_files_below(folder: Path) -> list[psutil.Process]:
    """Every process, not quite gone, that has a file below `folder` open."""
    return [
        process
        for process in psutil.process_iter()
        if any(target.startswith(f"{folder}/") for target in _open_files(process.pid))
    ]


def ranks_of(out: Path) -> list[psutil.Process]:
    """The ranks of the run in `out`, each of which writes its log there."""
    return with_files_below(out / "log")


def wait_until(question: Callable[[], Answer], seconds: float) -> Answer:
    """The first true answer, or the last one."""
    deadline = time.monotonic() + seconds
    while not (answer := question()) and time.monotonic() < deadline:
        time.sleep(0.05)
    return answer


def _open_files(process: int) -> list[str]:
    # Of every thread: of a killed process the first one ends at once, the last one when its memory is given back.
    found = []
    for thread in _there(Path(f"/proc/{process}/task")):
        for link in _there(thread / "fd"):
            with suppress(OSError):  # closed since the folder was read
                found.append(str(link.readlink()))
    return found


def _there(folder: Path) -> list[Path]:
    """What is in a folder of /proc; nothing where the process has ended, or is another user's."""
    try:
        return list(folder.iterdir())
    except OSError:
        return []
