"""State of a run, in the file that its resource `chain_state` names: all that this executor reads of it."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class RunState:
    """`running` (with what it has saved so far), `checkpointed` (it stopped there on purpose), `failed` or `finished`."""

    state: str = ""
    progress: float | None = None
    cause: str = ""
    fresh: bool = False
    """Written by the attempt that has just ended, not by one before it."""


def read_run_state(file: Path | None, stamp_before: list[int] | None) -> RunState:
    """Read the file; empty where it cannot be read. `stamp_before` is its `file_stamp` before the attempt."""
    stamp = file_stamp(file)
    if file is None or stamp is None:
        return RunState()
    try:
        data = json.loads(file.read_text(encoding="utf-8"))
        progress = data.get("progress")
        is_number = isinstance(progress, int | float) and not isinstance(progress, bool)
        known = float(progress) if is_number else None
        return RunState(str(data.get("state", "")), known, str(data.get("cause") or ""), stamp != stamp_before)
    except (OSError, ValueError, AttributeError, RecursionError, OverflowError):
        return RunState()


def file_stamp(file: Path | None) -> list[int] | None:
    """Time and size of a file, to tell whether it has changed; None if it is not there."""
    try:
        stat = file.stat() if file is not None else None
    except OSError:
        return None
    return [stat.st_mtime_ns, stat.st_size] if stat is not None else None
