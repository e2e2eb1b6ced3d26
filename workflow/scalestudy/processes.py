"""Processes: their identity, the driver of a run, and how they end."""

from __future__ import annotations

import ctypes
import json
import os
import signal
from contextlib import suppress
from pathlib import Path

import psutil

DRIVER = "SCALESTUDY_DRIVER"
"""Variable with the identity of the driver: the Snakemake process on this machine that started a run and waits for it."""
PR_SET_PDEATHSIG = 1
REQUEST = "SCALESTUDY_EXPLAIN"
"""Environment variable of a program that is observed; program/inject/scalestudy_hooks/ describes the keys of its JSON."""
GRACE_S = 3.0
"""From SIGTERM to SIGKILL."""


def identity(process: int) -> str | None:
    """`id:start`, the start in the kernel's own count, as process ids come again; None where it has ended."""
    try:
        status = Path(f"/proc/{process}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    fields = status.rpartition(")")[2].split()  # from the state on: proc(5)
    return None if not fields or fields[0] in "ZX" else f"{process}:{fields[19]}"


def is_gone(process: str) -> bool:
    """Whether the process of an identity has ended; the empty identity has not."""
    return process != "" and identity(int(process.partition(":")[0])) != process


def announce_driver() -> None:
    """Name this process as the driver of all processes that it starts."""
    os.environ[DRIVER] = identity(os.getpid()) or ""


def driver() -> str:
    """Identity of this process's driver; empty for a process that a person, or a job's script, has started."""
    return os.environ.get(DRIVER, "")


def die_with(parent: int, number: int = signal.SIGKILL) -> None:
    """Have the kernel send this process a signal when its parent ends; called in a new process. Linux only.

    `parent` is the parent as it knew itself: where that has ended already, so does this process.
    """
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, number)
    if os.getppid() != parent:
        os._exit(1)


def end_program(out: str) -> None:
    """End the processes of a program whose records go to `out`, by their environment: launchers start sessions of their own."""
    processes = [process for process in psutil.process_iter() if _is_of(process, out)]
    for number in (signal.SIGTERM, signal.SIGKILL):
        for process in processes:
            with suppress(psutil.Error):
                process.send_signal(number)
        _, processes = psutil.wait_procs(processes, GRACE_S)


def _is_of(process: psutil.Process, out: str) -> bool:
    try:
        request = process.environ().get(REQUEST)
        return request is not None and Path(json.loads(request)["out"]).is_relative_to(out)
    except (psutil.Error, OSError, ValueError):
        return False
