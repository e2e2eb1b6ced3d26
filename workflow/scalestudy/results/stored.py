"""Results as they are written and read back: open, parse, compare the id; and the history of runs, for the plan."""

from __future__ import annotations

import fcntl
import os
import sys
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from scalestudy.errors import UserError, visible
from scalestudy.files import canonical_json, finite, read_json, sha256_file, sha256_text, visible_texts, write_json
from scalestudy.spec.layout import HISTORY_FILE, STATE_FILE, machine_and_campaign, result_file

if TYPE_CHECKING:
    from scalestudy.spec.study import Run


def write_result(file: Path, result: dict[str, Any]) -> None:
    """Write result.json, whole or not at all."""
    write_json(file, visible_texts(finite(result)))


def read_result(machine: str, run: Run) -> dict[str, Any] | None:
    """The result of a run, None where there is none; `invalid` without metrics where the file is that of another run."""
    return checked_result(result_file(machine, run.id), run.id, machine)


def checked_result(file: Path, run: str, machine: str | None = None) -> dict[str, Any] | None:
    """As `read_result`, by the file; the machine is compared where it is given."""
    if not file.exists():
        return None
    try:
        result: dict[str, Any] = read_json(file)
        stored_run, measured_on = result["run"], result.get("machine")
    except (UserError, TypeError, KeyError, AttributeError) as error:
        wrong = str(getattr(error, "what", "it is no result"))
    else:
        if stored_run != run:
            wrong = f"it is the result of `{stored_run}`"
        elif machine and measured_on and machine_and_campaign(measured_on)[0] != machine_and_campaign(machine)[0]:
            wrong = f"it was measured on machine `{measured_on}` and lies below results/{machine}"
        else:
            return result
    option = f" --machine {machine}" if machine else ""
    reason = f"not what was measured: {wrong} (measure it again: scalestudy forget {run}{option})"
    return {"run": run, "status": "invalid", "reason": reason, "spec": {}, "metrics": {}, "kinds": {}}


def contents_digest(machine: str, runs: Iterable[str]) -> str:
    """One digest over these runs and their results: by content, for one from a backup can be older than the tables."""
    files = {run: result_file(machine, run) for run in runs}
    return sha256_text(canonical_json({run: sha256_file(file) for run, file in files.items() if file.is_file()}))


def state_of(folder: Path) -> dict[str, str]:
    """The texts of a run's state.json; empty where there is none."""
    try:
        return {key: visible(value) for key, value in read_json(folder / STATE_FILE).items() if isinstance(value, str)}
    except (OSError, UserError, AttributeError):
        return {}


def status_of(machine: str, run: str) -> str:
    """The status of a run's result, by its id alone; `no result` where it has none."""
    result = checked_result(result_file(machine, run), run, machine)
    return "no result" if result is None else str(result["status"])


def is_skipped(file: Path | str) -> bool:
    """Whether a result, or a manifest of data, is `skipped`; a damaged one, or none, is not."""
    try:
        return bool(read_json(Path(file)).get("status") == "skipped")
    except (OSError, UserError, AttributeError):
        return False


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
    text = canonical_json(finite(line)) + "\n"
    try:
        file = out.parent.parent.parent / HISTORY_FILE
        with open(file, "ab", buffering=0) as history:
            with suppress(OSError):  # a file system without locks
                fcntl.flock(history, fcntl.LOCK_EX)
            history.write(text.encode())
            os.fsync(history.fileno())
    except OSError as error:
        print(f"scalestudy: warning: {out.parent.name} is not in the history: {error}", file=sys.stderr, flush=True)
