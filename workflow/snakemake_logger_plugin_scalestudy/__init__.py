"""Progress of a run of the DAG: what runs, how many of how many, how long still, one line per finished run.

A dry run keeps Snakemake's own output, and under it stands the plan: what the jobs would cost. On a terminal the last
line is live; elsewhere all lines are plain.
"""

from __future__ import annotations

import json
import logging
import os
import shlex
import statistics
import sys
import time
from dataclasses import dataclass, field
from logging import LogRecord
from pathlib import Path
from typing import Any

from snakemake_interface_logger_plugins.base import LogHandlerBase
from snakemake_interface_logger_plugins.common import LogEvent
from snakemake_interface_logger_plugins.settings import LogHandlerSettingsBase

TAIL_LINES = 20
QUIET_EVENTS = {LogEvent.JOB_STARTED, LogEvent.RESOURCES_INFO, LogEvent.SHELLCMD, LogEvent.WORKFLOW_STARTED,
                LogEvent.RULEGRAPH, LogEvent.DEBUG_DAG, LogEvent.GROUP_INFO}  # fmt: skip
OUR_LINES = ("Nothing to be done",)


@dataclass
class LogHandlerSettings(LogHandlerSettingsBase):
    """`--logger-scalestudy-…` on the command line."""

    jobs_file: Path | None = field(
        default=None,
        metadata={
            "help": "File that gets the jobs and errors of a dry run, a line of JSON each; nothing is shown then",
            "type": Path,
        },
    )


OF_A_JOB = ("jobid", "rule_name", "wildcards", "input", "output", "resources", "priority")
"""What the plan needs of a job that is announced."""


@dataclass
class Job:
    """A job that was announced."""

    rule: str
    wildcards: dict[str, str]
    output: list[str]
    log: list[str]
    study: str
    began: float


@dataclass
class Counts:
    """How many runs there are to train, and how long each has taken."""

    runs: int = 0
    done: int = 0
    failed: int = 0
    seconds: list[float] = field(default_factory=list)

    def remaining(self) -> str:
        """Time still needed by the runs to come, from the median of those measured; nothing before the first."""
        left = self.runs - self.done - self.failed
        if not self.seconds or left <= 0:
            return ""
        return f", about {duration(left * statistics.median(self.seconds))} left"


class LogHandler(LogHandlerBase):
    """The progress display."""

    def __post_init__(self) -> None:
        self.jobs: dict[int, Job] = {}
        self.counts = Counts()
        self.live = sys.stderr.isatty() and os.environ.get("TERM") != "dumb"
        self.shown = ""
        self.project: Any = None
        """What the Snakefile of this project has read, given by it; None in other workflows."""
        self.announced: list[dict[str, Any]] = []
        self.jobs_file: Path | None = getattr(self.settings, "jobs_file", None)
        if self.jobs_file is None and Path(sys.argv[0]).name == "snakemake":
            refuse_targets_after_config(sys.argv[1:])

    @property
    def writes_to_stream(self) -> bool:
        """In place of Snakemake's own lines, but for a dry run of a user's."""
        return self.jobs_file is not None or not self.common_settings.dryrun

    @property
    def writes_to_file(self) -> bool:
        """No."""
        return False

    @property
    def has_filter(self) -> bool:
        """All records come here."""
        return True

    @property
    def has_formatter(self) -> bool:
        """Records are not formatted."""
        return True

    @property
    def needs_rulegraph(self) -> bool:
        """No."""
        return False

    def emit(self, record: LogRecord) -> None:
        """One event of Snakemake."""
        try:
            if self.common_settings.dryrun:
                self.keep(record)
            else:
                self.handle_event(getattr(record, "event", None), record)
        except Exception:  # a display that fails must not end a run
            self.handleError(record)

    def keep(self, record: LogRecord) -> None:
        """A dry run announces a job, or says what is wrong."""
        if getattr(record, "event", None) == LogEvent.JOB_INFO:
            self.announced.append(plain_job(record.__dict__))
            self.write(self.announced[-1])
        elif record.levelno >= logging.ERROR:
            self.write({"error": record.getMessage()})

    def write(self, line: dict[str, Any]) -> None:
        """Add a line to the file that was requested."""
        if self.jobs_file is not None:
            with open(self.jobs_file, "a", encoding="utf-8") as stream:
                stream.write(json.dumps(line) + "\n")

    def show_plan(self) -> None:
        """The plan, under what Snakemake says about a dry run."""
        jobs, self.announced = self.announced, []
        quiet = self.common_settings.quiet or ()
        if not jobs or self.project is None or any("all" in str(what).lower() for what in quiet):
            return
        text = plan_text(self.project, jobs)
        print(f"\n{text}", file=sys.stdout if self.common_settings.stdout else sys.stderr, flush=True)

    def handle_event(self, event: Any, record: LogRecord) -> None:
        """What each kind of event shows."""
        if event == LogEvent.RUN_INFO:
            self.counts.runs = int(record.stats.get("train", 0))  # type: ignore[attr-defined]
            self.say(self.plan(record.stats))  # type: ignore[attr-defined]
        elif event == LogEvent.JOB_INFO:
            self.begin(record)
        elif event == LogEvent.JOB_FINISHED:
            self.finish(int(record.job_id))  # type: ignore[attr-defined]
        elif event == LogEvent.JOB_ERROR:
            self.fail(record)
        elif event == LogEvent.PROGRESS or event in QUIET_EVENTS:
            return
        elif getattr(record, "scalestudy", False):  # the executor of that name: submissions, chains, adoptions
            self.say(record.getMessage())
        elif event == LogEvent.ERROR and getattr(record, "exception", "") == "RuleException":
            return  # the failed job has been shown
        elif record.levelno >= logging.WARNING or event == LogEvent.ERROR:
            text = record.getMessage()
            if "At least one job did not complete" not in text:
                self.say(text)
        elif record.msg and str(record.msg).startswith(OUR_LINES):
            self.say("Nothing to be done: everything that was asked for is there.")

    def plan(self, stats: dict[str, int]) -> str:
        """What is to be done, counted."""
        words = {"train": "run", "dataset": "dataset", "figure": "figure", "table": "table", "report": "report"}
        parts = [
            f"{stats[rule]} {word}{'s' if stats[rule] != 1 else ''}" for rule, word in words.items() if stats.get(rule)
        ]
        return "To do: " + (", ".join(parts) or f"{stats.get('total', 0)} small jobs")

    def begin(self, record: LogRecord) -> None:
        """A job starts."""
        data = record.__dict__
        study = str(data["resources"].get("study", ""))
        job = Job(
            data["rule_name"],
            dict(data["wildcards"] or {}),
            list(data["output"]),
            list(data["log"]),
            study,
            time.monotonic(),
        )
        self.jobs[int(data["jobid"])] = job
        if job.rule == "train":
            self.keep_plan(job.wildcards)
            number = self.counts.done + self.counts.failed + 1
            self.status(f"run {number} of {self.counts.runs}{self.counts.remaining()}: {job.wildcards['run']}")
        elif job.rule == "dataset":
            self.status(f"preparing {job.wildcards['dataset']}")

    def keep_plan(self, wildcards: dict[str, str]) -> None:
        """Remember what is expected of a run, so that `scalestudy plan --actual` can compare it later."""
        if self.project is not None:
            from scalestudy.cluster.actual import note_plan

            machine, run = wildcards["machine"], wildcards["run"]
            asked, estimate = self.project.resources.planner(machine).of(self.project.runs.run(machine, run))
            note_plan(machine, run, asked, estimate)

    def finish(self, jobid: int) -> None:
        """A job ended well."""
        job = self.jobs.pop(jobid, None)
        if job is None:
            return
        if job.rule == "train":
            self.counts.done += 1
            self.counts.seconds.append(time.monotonic() - job.began)
            self.say(
                f"[{self.counts.done + self.counts.failed}/{self.counts.runs}] {result_line(job)}{self.counts.remaining()}"
            )
        elif job.rule in ("figure", "table", "report"):
            self.say(
                f"{job.rule}: {next((path for path in job.output if path.endswith(('.svg', '.md', '.html'))), job.output[0])}"
            )
        elif job.rule == "dataset":
            self.say(f"data: {job.wildcards['dataset']}: {last_lines(job.log, 1)}")

    def fail(self, record: LogRecord) -> None:
        """A job failed: the end of its log, and where it lies."""
        data = record.__dict__
        job = self.jobs.pop(int(data["jobid"]), None)
        if job is not None and job.rule == "train":
            self.counts.failed += 1
        what = "" if job is None else job.wildcards.get("run") or job.wildcards.get("dataset") or ""
        self.say(f"FAILED {data['rule_name']} {what}".rstrip())
        if data.get("rule_msg"):
            self.say(f"    {data['rule_msg']}".partition("For further error details")[0].rstrip())
        logs = [path for path in list(data["log"]) if Path(path).exists()]
        if logs:
            self.say("\n".join("    " + line for line in last_lines(logs, TAIL_LINES).splitlines()))
            self.say(f"    whole log: {logs[0]}")

    def say(self, text: str) -> None:
        """A line that stays."""
        self.clear()
        sys.stderr.write(text + "\n")
        if self.shown:
            sys.stderr.write(self.shown)
        sys.stderr.flush()

    def status(self, text: str) -> None:
        """On a terminal, the line at the bottom; elsewhere nothing, since the line of the finished job follows."""
        if self.live:
            self.clear()
            width = max(20, os.get_terminal_size(sys.stderr.fileno()).columns - 1)
            self.shown = text[:width]
            sys.stderr.write(self.shown)
            sys.stderr.flush()

    def clear(self) -> None:
        """Take the live line away."""
        if self.live and self.shown:
            sys.stderr.write("\r\033[K")

    def close(self) -> None:
        """The end: no live line stays."""
        self.clear()
        self.shown = ""
        if self.common_settings.dryrun and self.jobs_file is None:
            self.show_plan()
        super().close()


def refuse_targets_after_config(words: list[str]) -> None:
    """`--config scale=paper all` makes `all` a value of `--config`, which Snakemake answers with a traceback.

    Snakemake reads those values before the Snakefile, but after it has made this display.
    """
    targets: list[str] = []
    others: list[str] = []
    of_config = False
    for word in words:
        if word.startswith("-"):
            of_config = word in ("--config", "-C")
        (targets if of_config and "=" not in word and not word.startswith("-") else others).append(word)
    if targets:
        taken = ", ".join(f"`{word}`" for word in targets)
        command = shlex.join(["snakemake", *targets, *others])
        sys.stderr.write(
            f"scalestudy: --config takes every word that follows it, also {taken}\n    name targets first: {command}\n"
        )
        sys.exit(2)


def plain_job(data: dict[str, Any]) -> dict[str, Any]:
    """What an event says of a job, as JSON has it."""
    found = {name: data[name] for name in OF_A_JOB}
    found["wildcards"], found["resources"] = dict(data["wildcards"] or {}), dict(data["resources"])
    plain: dict[str, Any] = json.loads(json.dumps(found, default=str))
    return plain


def plan_text(project: Any, jobs: list[dict[str, Any]]) -> str:
    """What the jobs of a dry run would cost. A plan never ends a dry run."""
    from scalestudy.cluster.plan import make_plan, read_seen
    from scalestudy.cluster.show import UNDER_A_DRY_RUN, table

    try:
        return table(make_plan(project, read_seen(jobs), project.resources.jobs_at_once), UNDER_A_DRY_RUN)
    except Exception as error:
        return f"No plan: {type(error).__name__}: {error}"


def result_line(job: Job) -> str:
    """`gpu_scaling: small_cnn, digits, allreduce ×2, repeat 1: 1,240 samples/s`, or why the run counts for nothing."""
    identity = job.wildcards["run"]
    try:
        result = json.loads(Path(job.output[0]).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return identity
    model, data, strategy, *_, ranks, repeat = identity.rpartition("-")[0].split(".")
    who = f"{job.study}: {model}, {data}, {strategy} ×{ranks[1:]}, repeat {int(repeat[1:]) + 1}"
    metrics = result["metrics"]
    if result["status"] != "valid" or metrics.get("throughput_samples_per_s") is None:
        return f"{who}: {result['status']}: {result['reason']}"
    accuracy = metrics.get("accuracy")
    return f"{who}: {metrics['throughput_samples_per_s']:,.0f} samples/s" + (
        f", accuracy {accuracy:.3f}" if accuracy is not None else ""
    )


def last_lines(logs: list[str], count: int) -> str:
    """The end of the first log that exists."""
    for log in logs:
        try:
            lines = Path(log).read_text(encoding="utf-8", errors="replace").splitlines()
        except OSError:
            continue
        return "\n".join(lines[-count:])
    return ""


def duration(seconds: float) -> str:
    """`40 s`, `7 min`, `3.5 h`."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"
