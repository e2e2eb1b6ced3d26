"""The driver of a run: the Snakemake process on this machine that started the run and waits for it."""

from __future__ import annotations

import os
from pathlib import Path

DRIVER = "SCALESTUDY_DRIVER"
"""By this name what a driver starts on its own machine knows which process the driver is."""


def announce() -> None:
    """Tell what this process starts from now on that this process is its driver."""
    os.environ[DRIVER] = identity(os.getpid()) or ""


def conceal() -> None:
    """Jobs that this process submits have no driver on their machine, whatever environment a scheduler hands on."""
    os.environ.pop(DRIVER, None)


def known() -> str:
    """The driver of this process, as `identity` has it; empty for what a person, or a job's script, has started."""
    return os.environ.get(DRIVER, "")


def is_gone(driver: str) -> bool:
    """Whether a run has lost its driver; one that never had a driver has lost none."""
    return driver != "" and identity(int(driver.partition(":")[0])) != driver


def identity(process: int) -> str | None:
    """`id:start`, the start in the kernel's own count, as process ids come again; None where it has ended."""
    try:
        status = Path(f"/proc/{process}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    state, *others = status.rpartition(")")[2].split()
    return None if state in "ZX" else f"{process}:{others[18]}"
