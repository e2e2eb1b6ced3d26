"""Durations of runs, one line each, for the plan."""

from __future__ import annotations

import fcntl
import json
import os
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

from scalestudy.files import canonical_json
from scalestudy.spec.layout import HISTORY_FILE


def append_history(out: Path, result: dict[str, Any]) -> None:
    """Add a run to its machine's history; a run outside `results/<machine>/runs/` has none.

    Runs on many nodes do this at the same time, and on NFS appending alone is not atomic: two would write to the same
    place. Under the file's lock the end is that which the server knows. Where it fails a warning is printed: the run is
    finished, and only the plan misses the line.
    """
    if out.parent.parent.name != "runs":
        return
    line = {key: result.get(key) for key in ("run", "status", "started", "ended", "spec")}
    for metric in ("wall_s", "throughput_samples_per_s"):
        line[metric] = result["metrics"].get(metric)
    text = canonical_json(json.loads(json.dumps(line))) + "\n"
    try:
        file = out.parent.parent.parent / HISTORY_FILE
        with open(file, "ab", buffering=0) as history:
            with suppress(OSError):  # a file system without locks
                fcntl.flock(history, fcntl.LOCK_EX)
            history.write(text.encode())
            os.fsync(history.fileno())
    except OSError as error:
        print(f"scalestudy: warning: {out.parent.name} is not in the history: {error}", file=sys.stderr, flush=True)
