"""A program that stops before its end and goes on in a further job: its state, and its steps so far in a checkpoint."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from scalestudy.errors import UserError
from scalestudy.files import read_json, write_json
from scalestudy.measure.instrument import code_digest
from scalestudy.program.trace import Earlier, Mark, Traces
from scalestudy.spec.layout import CHECKPOINTS, PROGRAM_STATE, STOP_FILE
from scalestudy.training.control_files import AGREED, EXIT_STOPPED, REQUEST, STOPPED
from scalestudy.training.job import Job

STATE, DEADLINE = "SCALESTUDY_STATE", "SCALESTUDY_DEADLINE"
EXPLAINED = "explained.json"
"""File in a job's scratch folder: where the time of a step goes."""
OVER = "window_over"
"""File in the folder of the metrics: the window is over, and every node ends its command."""
END_S = 20.0
"""From a program's deadline to that of its job: launchers end, and the steps are saved."""


def metrics_folder(job: Job) -> Path:
    """Return the folder of a program's metrics, which all nodes see."""
    return job.folder / "program"


def _state_file(job: Job) -> Path:
    return job.run_folder / CHECKPOINTS / PROGRAM_STATE / "state"


def _can_resume(job: Job) -> bool:
    return job.spec.program is not None and job.spec.program.resume


def variables(job: Job) -> dict[str, str]:
    """Return what a program that can resume finds in its environment."""
    if not _can_resume(job):
        return {}
    _state_file(job).parent.mkdir(parents=True, exist_ok=True)
    deadline = {} if job.deadline is None else {DEADLINE: str(job.deadline - END_S)}
    return {STATE: str(_state_file(job)), **deadline}


def is_asked(job: Job) -> bool:
    """Whether the run is asked to stop, by a signal or a file, and the program understands that."""
    return _can_resume(job) and ((job.folder / REQUEST).exists() or (job.run_folder / STOP_FILE).exists())


def has_stopped(job: Job, status: int) -> bool:
    """Whether a command that ended with this status, or one of its processes, stopped on purpose; leaves a mark of it."""
    if status == EXIT_STOPPED:
        (metrics_folder(job) / "stopped").touch()
    return _can_resume(job) and any(metrics_folder(job).glob("stopped*"))


def save_if_stopped(job: Job) -> None:
    """Where the command has stopped on purpose, write its steps so far as a checkpoint of the run, and note the stop.

    Raises UserError where the command has not written its state since the checkpoint before.
    """
    if (metrics_folder(job) / OVER).exists() or not has_stopped(job, 0):
        return
    (job.folder / AGREED).touch()
    from scalestudy.training import checkpoint

    stat = _state_file(job).stat() if _state_file(job).exists() else None
    stamp = None if stat is None else [stat.st_mtime_ns, stat.st_size]
    if stamp is None or (job.resume is not None and checkpoint.read_facts(job.resume)["state"] == stamp):
        what = f"the command ended with status {EXIT_STOPPED} and had not written its state"
        raise UserError(what, STATE, f"write it to that file before `sys.exit({EXIT_STOPPED})`")
    traces = Traces(metrics_folder(job), earlier(job))
    traces.refresh()
    marks = {trace.name: [list(vars(mark).values()) for mark in trace.marks] for trace in traces.known.values()}
    before = 0 if job.resume is None else checkpoint.read_facts(job.resume)["step"]
    # Another state is progress, also of a program that reports no steps.
    step = max([before + 1, *(trace.marks[-1].step for trace in traces.of(traces.source or ""))])
    facts = {"run": job.run, "code": code_digest(), "state": stamp}
    folder = _state_file(job).parent.parent
    report = {"marks": marks, "records": records(job)}
    checkpoint.write(folder, step, 0, {}, {}, report, facts, lambda value: [value])
    write_json(job.folder / STOPPED, {"step": step, "cause": f"because its command ended with status {EXIT_STOPPED}"})


def earlier(job: Job) -> Earlier:
    """Return the marks of the run's earlier attempts."""
    return {name: [Mark(*row) for row in rows] for name, rows in _saved(job).get("marks", {}).items()}


def records(job: Job) -> list[dict[str, Any]]:
    """Return what hooks recorded on each rank, or had recorded in the run's earlier attempts where there is nothing new."""
    new_records = [read_json(file) for file in metrics_folder(job).glob("rank.*.json")]
    return new_records or list(_saved(job).get("records", []))


def _saved(job: Job) -> dict[str, Any]:
    """What the checkpoint of the earlier attempts holds; nothing where there is none."""
    if job.resume is None:
        return {}
    from scalestudy.training import checkpoint

    return dict(checkpoint.read_facts(job.resume)["reports"][0])
