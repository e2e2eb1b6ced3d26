"""Real processes, found by the files that they have open."""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TypeVar

import psutil
import pytest

FILE_STAND_IN = Path(__file__).resolve().parents[1] / "stand_ins/file.c"
Answer = TypeVar("Answer")


def with_files_below(folder: Path) -> list[psutil.Process]:
    """Every process, not quite gone, that has a file below `folder` open."""
    found = []
    for process in _listed("/proc"):
        if process.isdigit() and any(target.startswith(f"{folder}/") for target in _open_files(process)):
            with suppress(psutil.NoSuchProcess):
                found.append(psutil.Process(int(process)))
    return found


def ranks_of(out: Path) -> list[psutil.Process]:
    """The ranks of the run in `out`, each of which writes its log there."""
    return with_files_below(out / "log")


def wait_until(question: Callable[[], Answer], seconds: float, poll_s: float = 0.05) -> Answer:
    """The first true answer, or the last one."""
    deadline = time.monotonic() + seconds
    while not (answer := question()) and time.monotonic() < deadline:
        time.sleep(poll_s)
    return answer


def _open_files(process: str) -> list[str]:
    # Threads share them. Of a killed process the first thread ends at once, the last one when its memory is given back.
    folders = [f"/proc/{process}/fd"]
    if not _listed(folders[0]):
        folders = [f"/proc/{process}/task/{thread}/fd" for thread in _listed(f"/proc/{process}/task")]
    found = []
    for folder in folders:
        for link in _listed(folder):
            with suppress(OSError):  # closed since the folder was read
                found.append(os.readlink(f"{folder}/{link}"))  # noqa: PTH115 # tests wait for it, many times a second
    return found


def _listed(folder: str) -> list[str]:
    """What is in a folder of /proc; nothing where the process has ended, or is another user's."""
    try:
        return os.listdir(folder)  # noqa: PTH208
    except OSError:
        return []


def file_stand_in(folder: Path) -> Path:
    """The library of tests/stand_ins/file.c, compiled into a folder; skips the test without a compiler."""
    if shutil.which("cc") is None:
        pytest.skip("there is no `cc` here (envs/debian-packages.txt)")
    library = folder / "file_stand_in.so"
    command = ["cc", "-shared", "-fPIC", "-O1", "-Wall", "-Werror", "-o", str(library), str(FILE_STAND_IN), "-ldl"]
    subprocess.run(command, check=True)
    return library


def stand_in(library: Path, action: str, files: str, calls: str, mark: Path) -> dict[str, str]:
    """Environment in which the library acts.

    `action` as file.c lists them; `files` a pattern of whole paths; `calls` r, w or both; `mark` is made at its first act.
    """
    acts = {"STANDIN_ACTION": action, "STANDIN_FILES": files, "STANDIN_CALLS": calls, "STANDIN_MARK": str(mark)}
    return {"LD_PRELOAD": str(library), **acts}
