"""How far a run of the workflow is: its jobs, what is expected of each, and what that makes of the time to come.

Pure: the time is handed in, in seconds since 1970. The driver keeps it in `.scalestudy/progress.json`, where
`scalestudy status` reads it, whether or not the driver still lives.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from snakemake_logger_plugin_scalestudy.forecast import UNKNOWN_RUN, Expected, Forecast, Left, Span

FILE = ".scalestudy/progress.json"
FORMAT = 1
RATE_OF = 20
"""Finished runs that the rate is taken over."""

State = Literal["waiting", "running", "done", "failed"]
TEXT, NUMBER = str, (int, float)
OF_ALL: dict[str, Any] = {"at_once": (int, type(None)), "command": TEXT, "began": NUMBER, "host": TEXT, "process": TEXT}
OF_TASK: dict[str, Any] = {**dict.fromkeys(("output", "rule", "name", "study", "configuration", "state"), TEXT),
                           "began": NUMBER, "ended": NUMBER, "expected": dict}  # fmt: skip
OF_TIME: dict[str, Any] = {"low_s": NUMBER, "high_s": NUMBER, "source": TEXT}
"""What the file holds of everything, of a job, and of what is expected of it."""


@dataclass
class Task:
    """One job of the workflow, known by its first output."""

    output: str
    rule: str
    name: str
    study: str
    expected: Expected
    configuration: str = ""
    """The same for the repeats of a run."""
    state: State = "waiting"
    began: float = 0.0
    ended: float = 0.0

    @property
    def took_s(self) -> float:
        """Seconds from its start to its end."""
        return self.ended - self.began


@dataclass
class Progress:
    """All jobs of one call of the workflow."""

    tasks: dict[str, Task] = field(default_factory=dict)
    at_once: int | None = None
    """How many runs the driver lets run at the same time; None: as many as there are."""
    command: str = ""
    """What resumes it."""
    began: float = 0.0
    host: str = ""
    process: str = ""
    """The driver, as `scalestudy.processes.identity` has it; empty once it has ended."""

    def add(self, tasks: Iterable[Task]) -> None:
        """Jobs that are to be done."""
        self.tasks |= {task.output: task for task in tasks}

    def begin(self, output: str, now: float) -> None:
        """A job starts."""
        task = self.tasks[output]
        task.state, task.began = "running", now

    def end(self, output: str, now: float, state: State = "done") -> None:
        """A job ended."""
        task = self.tasks[output]
        task.began, task.ended, task.state = task.began or now, now, state
        if state == "done" and task.configuration:
            for other in self.of("waiting"):
                if other.configuration == task.configuration:
                    other.expected = Expected.again(task.took_s)

    def of(self, *states: State, rule: str | None = None) -> list[Task]:
        """The jobs in one of these states."""
        return [task for task in self.tasks.values() if task.state in states and rule in (None, task.rule)]

    @property
    def runs(self) -> Counter[State]:
        """The number of runs in each state."""
        return Counter(task.state for task in self.tasks.values() if task.rule == "train")

    @property
    def unfinished(self) -> bool:
        """Whether anything is left to do, or failed."""
        return any(task.state != "done" for task in self.tasks.values())

    def forecast(self) -> Forecast:
        """Expectations, corrected by what has finished."""
        return Forecast((task.expected, task.took_s) for task in self.of("done"))

    def left_s(self, now: float) -> Span | None:
        """Least and most seconds until everything is done; None while too little is known."""
        jobs = [Left(task.expected) for task in self.of("waiting")]
        jobs += [Left(task.expected, now - task.began) for task in self.of("running")]
        running = len(self.of("running", rule="train"))
        return self.forecast().left(jobs, self.at_once or max(1, running))

    def share(self, now: float) -> float:
        """How much is done, from 0 to 1: of the time, or of the runs while the time is not known."""
        if (left := self.left_s(now)) is not None and now > self.began:
            middle = (left[0] * left[1]) ** 0.5
            return (now - self.began) / (now - self.began + middle)
        ended = sum(self.runs[state] for state in ("done", "failed"))
        return ended / max(1, self.runs.total())

    def runs_per_h(self, now: float) -> float | None:
        """Finished runs per hour, over the last ones; None before the first."""
        ended = sorted(task.ended for task in self.of("done", rule="train"))[-RATE_OF:]
        if not ended:
            return None
        first = min(task.began for task in self.of("done", rule="train") if task.ended >= ended[0])
        return 3600 * len(ended) / max(now - first, 0.001)

    # Kept in a file

    def plain(self) -> dict[str, Any]:
        """As plain data."""
        return {"format": FORMAT, **asdict(self), "tasks": [asdict(task) for task in self.tasks.values()]}

    @staticmethod
    def of_plain(plain: Mapping[str, Any]) -> Progress:
        """From plain data; raises ValueError, KeyError, TypeError or AttributeError where it is none of ours."""
        if plain["format"] != FORMAT:
            raise ValueError("another version wrote this")
        _check(plain, OF_ALL)
        for task in plain["tasks"]:
            _check(task, OF_TASK)
            _check(task["expected"], OF_TIME)
        kept = {name: plain[name] for name in ("at_once", "command", "began", "host", "process")}
        tasks = [Task(**{**task, "expected": Expected(**task["expected"])}) for task in plain["tasks"]]
        return Progress({task.output: task for task in tasks}, **kept)


def _check(part: Mapping[str, Any], kinds: Mapping[str, Any]) -> None:
    for name, kind in kinds.items():
        if name in part and not isinstance(part[name], kind):
            raise TypeError(f"`{name}` is {part[name]!r}")


# In words


def counted(progress: Progress) -> str:
    """`40 of 95 runs done, 2 failed`; of jobs where there are no runs."""
    states = progress.runs or Counter(task.state for task in progress.tasks.values())
    what = "runs" if progress.runs else "jobs"
    failed = f", {states['failed']} failed" if states["failed"] else ""
    return f"{states['done']} of {states.total()} {what} done{failed}"


def stopped(progress: Progress) -> str:
    """What is left, and the command that resumes."""
    failed, waiting = len(progress.of("failed")), len(progress.of("waiting", "running"))
    counts = [f"{failed} failed"] if failed else []
    counts += [f"{waiting} not done"] if waiting else []
    jobs = f"{len(progress.tasks)} job" + ("" if len(progress.tasks) == 1 else "s")
    return f"Of {jobs}, {' and '.join(counts)}. To resume: {progress.command}"


def rate(progress: Progress, now: float) -> str:
    """`3.1 runs/min`; empty before the first run has ended."""
    found = progress.runs_per_h(now)
    if found is None:
        return ""
    return f"{found / 60:.1f} runs/min" if found >= 60 else f"{found:.1f} runs/h"


def time_left(progress: Progress, now: float) -> str:
    """`30 to 50 min left`; empty where nothing is left, or too little is known."""
    left = progress.left_s(now) if progress.of("waiting", "running") else None
    return "" if left is None else f"{span(left)} left"


def heading(progress: Progress, now: float) -> str:
    """One line: runs, rate, time left."""
    return " · ".join(filter(None, [counted(progress), rate(progress, now), time_left(progress, now)]))


def running_line(progress: Progress, task: Task, now: float) -> str:
    """`gpu_scaling: ring, 4 ranks, repeat 1: 12 s of about 14 s`."""
    forecast, spent = progress.forecast(), now - task.began
    guessed = task.expected.source == UNKNOWN_RUN and not forecast.knows(UNKNOWN_RUN)
    of = "" if guessed else f" of about {duration(forecast.seconds(task.expected))}"
    return f"{task.name}: {duration(spent)}{of}"


def span(seconds: Span) -> str:
    """`30 to 50 min`, in the unit of the longer time; one number where both read the same."""
    low, high = seconds
    factor, unit = (1.0, "s") if high < 90 else (60.0, "min") if high < 5400 else (3600.0, "h")
    digits = 1 if unit == "h" and high < 36000 else 0
    first, last = (f"{value / factor:.{digits}f}" for value in (low, high))
    return f"about {last} {unit}" if first == last else f"{first} to {last} {unit}"


def duration(seconds: float) -> str:
    """`40 s`, `7 min`, `3.5 h`."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"
