"""Files by which the ranks of a run and the process that started them inform each other about a stop."""

from __future__ import annotations

from pathlib import Path

from scalestudy.files import write_json
from scalestudy.spec.layout import STATE_FILE

EXIT_STOPPED = 75
"""EX_TEMPFAIL of sysexits.h: the same command resumes the run."""
REQUEST = "stop"
"""In a job's scratch folder: a request to the ranks to stop; the file holds the name of a signal."""
DRIVER_IS_GONE = "driver"
"""Such a request that comes from no signal: the driver that started the run is gone."""
AGREED = "agreed"
"""There too: the ranks have agreed to stop."""
STOPPED = "stopped.json"
"""There too: after which step they have stopped, and why."""


def write_state(run_folder: Path, state: str, progress: int, cause: str) -> None:
    """Write state.json into the run's folder, which an executor reads."""
    write_json(run_folder / STATE_FILE, {"state": state, "progress": progress, "cause": cause})
