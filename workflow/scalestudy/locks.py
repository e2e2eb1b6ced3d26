"""Measured runs run alone on a host: they hold its lock; what may not disturb them waits for it."""

from __future__ import annotations

import fcntl
import os
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


def _file() -> Path:
    return Path(tempfile.gettempdir()) / f"scalestudy-{os.getuid()}.lock"


@contextmanager
def measured_run() -> Iterator[None]:
    """Held by a run that is measured: one at a time on this host, and nothing else of ours beside it."""
    with _held(fcntl.LOCK_EX):
        yield


@contextmanager
def beside_measured_runs() -> Iterator[None]:
    """Held by work that takes the machine's time: it waits until no measured run is on this host."""
    with _held(fcntl.LOCK_SH):
        yield


@contextmanager
def exclusive(file: Path) -> Iterator[None]:
    """Held by one process at a time; the others wait. `file` is made and stays."""
    file.parent.mkdir(parents=True, exist_ok=True)
    with open(file, "ab") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


@contextmanager
def _held(kind: int) -> Iterator[None]:
    # The lock ends with the process that holds it, however that ends.
    with open(_file(), "ab") as lock:
        try:
            fcntl.flock(lock, kind | fcntl.LOCK_NB)
        except BlockingIOError:
            print("waiting for the measured run on this host to end", file=sys.stderr, flush=True)
            fcntl.flock(lock, kind)
        yield
