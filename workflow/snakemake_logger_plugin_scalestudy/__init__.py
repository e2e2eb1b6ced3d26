"""Progress of a run of the DAG: what runs, how many of how many, how long still, one line per finished run.

A dry run is short: a count of jobs per rule, why they would run, and the plan: what they would cost. With
`--printshellcmds` or `--verbose` Snakemake's own list of all jobs stands above the plan. On a terminal the last lines are
live; elsewhere all lines are plain.
"""

from __future__ import annotations

import json
import logging
import os
import shlex
import socket
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from logging import LogRecord
from pathlib import Path
from typing import Any

from snakemake_interface_logger_plugins.base import LogHandlerBase
from snakemake_interface_logger_plugins.common import LogEvent

from snakemake_logger_plugin_scalestudy import plan
from snakemake_logger_plugin_scalestudy.display import display_for
from snakemake_logger_plugin_scalestudy.forecast import PRIORS
from snakemake_logger_plugin_scalestudy.progress import FILE, Progress, stopped, time_left

TAIL_LINES = 20
OF_SNAKEMAKE = ("At least one job did not complete", "--keep-incomplete mode is set", "Cannot restore results/")
"""Warnings about failed jobs that say less than what is shown of them."""
UPDATED = " (update)"
"""Snakemake writes it behind the names of such outputs."""
QUIET_EVENTS = {LogEvent.JOB_STARTED, LogEvent.RESOURCES_INFO, LogEvent.SHELLCMD, LogEvent.WORKFLOW_STARTED,
                LogEvent.RULEGRAPH, LogEvent.DEBUG_DAG, LogEvent.GROUP_INFO}  # fmt: skip
OUR_LINES = ("Nothing to be done",)
LONGER = ("printshellcmds", "verbose", "debug_dag")
"""Options with which a dry run shows every job."""
ABOVE = "    (check individual jobs above for details)\n"
KEEP_S = 1.0
"""The file that `scalestudy status` reads is written at most this often, and also when a run ends."""
KEEP_SHARE, KEEP_QUICK_S = 0.01, 0.1
"""Where writing it takes the processor longer than KEEP_QUICK_S, as of thousands of runs, no more than this share of the
time goes into that."""


@dataclass
class AnnouncedJob:
    """A job that was announced."""

    rule: str
    wildcards: dict[str, str]
    output: str
    shown: str
    """Of its files the one that people open."""
    log: list[str]
    before: dict[str, int]
    """By file, when a log of an earlier attempt was written last."""


class LogHandler(LogHandlerBase):
    """From Snakemake's events to progress and lines."""

    def __post_init__(self) -> None:
        self.jobs: dict[int, AnnouncedJob] = {}
        self.planned = plan.Planned()
        self.progress = Progress(command=resume_command(), host=socket.gethostname())
        terminal = sys.stderr.isatty() and os.environ.get("TERM") != "dumb"
        self.display = display_for(self.progress, terminal)
        self.changes = threading.RLock()
        self.kept_at = self.keep_took_s = 0.0
        self.announced = self.counted = False
        if Path(sys.argv[0]).name == "snakemake":
            refuse_targets_after_config(sys.argv[1:])

    def reads(self, project: Any, workflow: Any) -> None:
        """The Snakefile of this project hands over what it has read, and Snakemake's workflow, whose jobs are counted."""
        self.planned.project, self.planned.workflow = project, workflow

    @property
    def writes_to_stream(self) -> bool:
        """In place of Snakemake's own lines, unless a dry run is to show every job."""
        return not self.common_settings.dryrun or self.is_short

    @property
    def is_short(self) -> bool:
        """Whether this is a dry run of a user's in which each job is not shown."""
        settings = self.common_settings
        return settings.dryrun and not any(getattr(settings, name) for name in LONGER)

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
                self.shorten(record)
            else:
                self.handle_event(getattr(record, "event", None), record)
        except Exception:  # a display that fails must not end a run
            self.handleError(record)

    def shorten(self, record: LogRecord) -> None:
        """Of what Snakemake says in a dry run, all but the jobs: their count, once, warnings and errors, and why they
        would run, which it says after them."""
        event = getattr(record, "event", None)
        self.announced = self.announced or event == LogEvent.JOB_INFO
        if not self.is_short:
            return
        is_count = event == LogEvent.RUN_INFO and not self.counted
        after = event is None and record.levelno == logging.INFO and self.announced
        if record.levelno >= logging.WARNING or is_count or after or str(record.msg).startswith(OUR_LINES):
            self.counted = self.counted or is_count
            if record.levelno >= logging.ERROR or not self.is_silent:
                self.say(record.getMessage().replace(ABOVE, ""))

    @property
    def is_silent(self) -> bool:
        """Whether `--quiet all` is given."""
        return any("all" in str(what).lower() for what in self.common_settings.quiet or ())

    def say(self, text: str) -> None:
        """Print where Snakemake prints; a reader that has gone (`| head`) is no error."""
        stream = sys.stdout if self.common_settings.stdout else sys.stderr
        try:
            print(text, file=stream, flush=True)
        except BrokenPipeError:
            os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())

    def handle_event(self, event: Any, record: LogRecord) -> None:
        """What each kind of event shows."""
        if event == LogEvent.RUN_INFO:
            self.start(record.stats)  # type: ignore[attr-defined]
        elif event == LogEvent.JOB_INFO:
            self.begin(record)
        elif event == LogEvent.JOB_FINISHED:
            self.finish(int(record.job_id))  # type: ignore[attr-defined]
        elif event == LogEvent.JOB_ERROR:
            self.fail(record)
        elif event == LogEvent.PROGRESS or event in QUIET_EVENTS:
            return
        elif hasattr(record, "multinode_ran"):  # by the same executor, before the job's end
            self.took(*record.multinode_ran)
        elif getattr(record, "multinode", False):  # the executor of that name: submissions, chains, adoptions
            self.display.say(record.getMessage())
        elif event == LogEvent.ERROR and getattr(record, "exception", "") == "RuleException":
            return  # the failed job has been shown
        elif record.levelno >= logging.WARNING or event == LogEvent.ERROR:
            text = record.getMessage()
            if not text.startswith(OF_SNAKEMAKE):
                self.display.say(text)
        elif record.msg and str(record.msg).startswith(OUR_LINES):
            self.display.say("Nothing to be done: everything that was asked for is there.")

    def start(self, stats: dict[str, int]) -> None:
        """All jobs are known."""
        from scalestudy import processes

        with self.changes:
            self.progress.began, self.progress.process = time.time(), processes.identity(os.getpid()) or ""
            self.progress.add(self.planned.tasks())
            project = self.planned.project
            self.progress.at_once = project.resources.jobs_at_once if project is not None else None
        left = time_left(self.progress, time.time())
        self.display.say(", ".join(filter(None, [to_do(stats), left.removesuffix(" left")])))
        self.keep(at_once=True)

    def begin(self, record: LogRecord) -> None:
        """A job starts."""
        data = record.__dict__
        output = [str(path).removesuffix(UPDATED) for path in data["output"]]
        if data["rule_name"] not in PRIORS or not output:
            return
        shown = next((path for path in output if path.endswith((".svg", ".md", ".html"))), output[0])
        log = [str(path) for path in data["log"]]
        job = AnnouncedJob(data["rule_name"], dict(data["wildcards"] or {}), output[0], shown, log, _written(log))
        self.jobs[int(data["jobid"])] = job
        with self.changes:
            if job.output not in self.progress.tasks:
                self.progress.add([self.planned.task(job.rule, job.wildcards, job.output)])
            self.progress.begin(job.output, time.time())
        if job.rule == "train":
            self.planned.keep_plan(job.wildcards)
        self.changed()

    def took(self, jobid: int, seconds: float) -> None:
        """A job that comes to its end ran for so long: its wait in a queue says nothing about jobs like it."""
        if jobid in self.jobs:
            with self.changes:
                self.progress.tasks[self.jobs[jobid].output].began = time.time() - seconds

    def finish(self, jobid: int) -> None:
        """A job ended well."""
        job = self.jobs.pop(jobid, None)
        if job is None:
            return
        with self.changes:
            self.progress.end(job.output, time.time())
            if job.rule == "train":
                self.planned.ask(self.progress.of("waiting"))
        task = self.progress.tasks[job.output]
        if job.rule == "train":
            runs, left = self.progress.runs, time_left(self.progress, time.time())
            place = f"[{runs['done'] + runs['failed']}/{runs.total()}]"
            self.display.say(" · ".join(filter(None, [f"{place} {task.name}: {outcome(job.output)}", left])))
        elif job.rule in ("figure", "table", "report"):
            self.display.say(f"{job.rule}: {job.shown}")
        elif job.rule == "dataset":
            self.display.say(f"data: {job.wildcards['dataset']}: {last_lines(job.log, 1)}")
        self.changed(at_once=job.rule == "train")

    def fail(self, record: LogRecord) -> None:
        """A job failed: the end of its log, and where it lies."""
        data = record.__dict__
        job = self.jobs.pop(int(data["jobid"]), None)
        what = ""
        if job is not None:
            with self.changes:
                self.progress.end(job.output, time.time(), "failed")
            what = job.wildcards.get("run") or job.wildcards.get("dataset") or ""
        self.display.say(f"FAILED {data['rule_name']} {what}".rstrip())
        if data.get("rule_msg"):
            self.display.say(f"    {data['rule_msg']}".partition("For further error details")[0].rstrip())
        # A job that ended before its command began has left the log of an earlier attempt as it was.
        before = job.before if job is not None else {}
        logs = [path for path, written in _written(list(data["log"])).items() if before.get(path) != written]
        if logs:
            self.display.say("\n".join("    " + line for line in last_lines(logs, TAIL_LINES).splitlines()))
            self.display.say(f"    whole log: {logs[0]}")
        self.changed(at_once=True)

    def changed(self, at_once: bool = False) -> None:
        """Jobs began or ended."""
        self.display.shown(bool(self.progress.of("running")))
        self.keep(at_once)

    def keep(self, at_once: bool = False) -> None:
        """Write what `scalestudy status` reads."""
        pause_s = self.keep_took_s / KEEP_SHARE if self.keep_took_s > KEEP_QUICK_S else 0.0 if at_once else KEEP_S
        if self.planned.project is None or time.monotonic() - self.kept_at < pause_s:
            return
        from scalestudy.files import write_json

        begin = time.thread_time()
        with self.changes, suppress(OSError):  # a disk that is full: what cannot do without it says so
            write_json(Path(FILE), self.progress.plain())
        self.kept_at, self.keep_took_s = time.monotonic(), time.thread_time() - begin

    def close(self) -> None:
        """The end: no live line stays, and what is left can be resumed."""
        self.display.close()
        if not self.common_settings.dryrun and self.progress.tasks:
            if self.progress.unfinished:
                self.display.say(stopped(self.progress))
            self.progress.process = ""
            self.keep_took_s = 0.0
            self.keep(at_once=True)
            self.progress.tasks.clear()
        super().close()


def to_do(stats: dict[str, int]) -> str:
    """What is to be done, counted."""
    words = {"train": "run", "dataset": "dataset", "figure": "figure", "table": "table", "report": "report"}  # fmt: skip
    counts = Counter({word: stats.get(rule, 0) for rule, word in words.items()})
    parts = [f"{count} {word}{'s' if count != 1 else ''}" for word, count in counts.items() if count]
    return "To do: " + (", ".join(parts) or f"{stats.get('total', 0)} small jobs")


def resume_command() -> str:
    """This command again; a program below this folder by its path: `make` has another PATH than the user's shell."""
    program = Path(sys.argv[0]).absolute()
    program = program.relative_to(Path.cwd()) if program.is_relative_to(Path.cwd()) else Path(program.name)
    return shlex.join([str(program), *sys.argv[1:]])


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
            f"scalestudy: --config takes every word that follows it, including {taken}\n    name targets first: {command}\n"
        )
        sys.exit(2)


def outcome(result_file: str) -> str:
    """`1,240 samples/s, accuracy 0.912`, `1.3 s in all` of a whole program, or why the run counts for nothing."""
    try:
        result = json.loads(Path(result_file).read_text(encoding="utf-8"))
        metrics, status, reason = result["metrics"], result["status"], result["reason"]
    except (OSError, ValueError, KeyError, TypeError):
        return "its result cannot be read"
    throughput, accuracy, wall_s = (metrics.get(name) for name in ("throughput_samples_per_s", "accuracy", "wall_s"))
    if status == "valid" and throughput is None and wall_s is not None:
        return f"{wall_s:.1f} s in all"
    if status != "valid" or throughput is None:
        return f"{status}: {reason}"
    return f"{throughput:,.0f} samples/s" + (f", accuracy {accuracy:.3f}" if accuracy is not None else "")


def last_lines(logs: list[str], count: int) -> str:
    """The end of the first log that exists."""
    from scalestudy.files import tail

    found = next((log for log in logs if Path(log).is_file()), None)
    return "" if found is None else "\n".join(tail(found).splitlines()[-count:])


def _written(logs: Iterable[str]) -> dict[str, int]:
    """By file, its time of writing in nanoseconds; logs that do not exist are left out."""
    return {path: Path(path).stat().st_mtime_ns for path in map(str, logs) if Path(path).exists()}
