"""Display of a workflow call: a line per finished run with `n of m`, and the end of a failed job's log.

A dry run is short: a count of jobs per rule and why they would run, above the plan (scalestudy/dag/driver.py); with
`--printshellcmds` or `--verbose`, Snakemake lists every job. Other modes (`--lint`, `--report`, `--unlock` …) keep
Snakemake's output. Imports other than `errors` stand in functions: the display is there before the Snakefile is read.
"""

from __future__ import annotations

import json
import logging
import os
import shlex
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from logging import LogRecord
from pathlib import Path
from typing import Any

from snakemake_interface_logger_plugins.base import LogHandlerBase
from snakemake_interface_logger_plugins.common import LogEvent

from scalestudy.errors import duration

RULES = {"train": "run", "dataset": "dataset", "figure": "figure", "table": "table", "report": "report"}
"""Rules whose jobs are shown, and the noun for each."""
TAIL_LINES = 20
QUIET_S, LOOK_S = 60.0, 5.0
"""Longest silence, after which the running jobs are named, and the interval at which it is looked for."""
MAX_NAMED = 5
"""Running jobs that are named."""
LISTING = ("printshellcmds", "verbose", "debug_dag")
"""Options with which a dry run lists every job."""
OTHER_MODES = {"--lint", "--report", "--unlock", "--summary", "-S", "--detailed-summary", "-D", "--delete-all-output",
               "--delete-temp-output", "--dag", "--rulegraph", "--filegraph", "--d3dag", "--list-rules", "--list", "-l",
               "--list-target-rules", "--lt", "--list-changes", "--lc", "--list-conda-envs", "--conda-create-envs-only",
               "--cleanup-metadata", "--cm", "--archive", "--containerize", "--generate-unit-tests"}  # fmt: skip
"""Options of calls that run no job: Snakemake's own output stands."""
SNAKEMAKE_WARNINGS = ("At least one job did not complete", "--keep-incomplete mode is set", "Cannot restore results/")
"""Warnings about failed jobs that repeat, with less, the lines about them."""


@dataclass
class Job:
    """A job that has begun."""

    rule: str
    name: str
    wildcards: Mapping[str, str]
    outputs: tuple[str, ...]
    logs: list[str]
    before: dict[str, int]
    """By file, when a log of an earlier attempt was written last."""
    began: float = field(default_factory=time.time)
    """Start of the job itself, after any time in a queue, seconds since 1970."""
    reason: str = ""
    """Why a submitted job waits in the queue; empty while it runs."""


class LogHandler(LogHandlerBase):
    """Turns Snakemake's events into lines."""

    def __post_init__(self) -> None:
        settings = self.common_settings
        self.project: Any = None
        self.workflow: Any = None
        self.to_do: Counter[str] = Counter()
        """Jobs of each rule that is shown."""
        self.jobs: dict[int, Job] = {}
        """Those that have begun and not ended, by Snakemake's number."""
        self.done: dict[tuple[str, ...], str] = {}
        self.failed: dict[tuple[str, ...], str] = {}
        """By outputs, the rules of those that are shown and have ended."""
        self.varied: dict[str, list[str]] = {}
        self.is_run = not OTHER_MODES & {word.partition("=")[0] for word in sys.argv[1:]}
        self.is_short = settings.dryrun and not any(getattr(settings, name) for name in LISTING)
        """Whether this is a dry run that does not list every job."""
        self.is_silent = any("all" in str(kind).lower() for kind in settings.quiet or ())
        self.is_announced = self.is_counted = False
        self.changes, self.ended = threading.RLock(), threading.Event()
        self.said_at = 0.0

    def reads(self, project: Any, workflow: Any) -> None:
        """Take the project that the Snakefile has read, and Snakemake's workflow, whose jobs are counted."""
        self.project, self.workflow = project, workflow

    @property
    def writes_to_stream(self) -> bool:
        """Whether this display replaces Snakemake's own lines."""
        return self.is_run and (not self.common_settings.dryrun or self.is_short)

    writes_to_file = needs_rulegraph = property(lambda self: False)
    has_filter = has_formatter = property(lambda self: True)

    def emit(self, record: LogRecord) -> None:
        """Handle one event of Snakemake; a display that fails must not end a run."""
        try:
            if self.common_settings.dryrun:
                self.shorten(record)
            elif self.is_run:
                with self.changes:
                    self.show(record)
        except Exception:
            self.handleError(record)

    def say(self, text: str) -> None:
        """Print where Snakemake prints, and nothing where it would not; a reader that has gone (`| head`) is no error."""
        if self.is_silent and not self.common_settings.dryrun:
            return
        self.said_at, stream = time.time(), sys.stdout if self.common_settings.stdout else sys.stderr
        try:
            print(text, file=stream, flush=True)
        except BrokenPipeError:
            os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())

    def shorten(self, record: LogRecord) -> None:
        """Of a dry run show warnings, errors, one count of jobs, and the reasons that follow the jobs."""
        event = getattr(record, "event", None)
        self.is_announced = self.is_announced or event == LogEvent.JOB_INFO
        is_count = event == LogEvent.RUN_INFO and not self.is_counted
        is_reason = event is None and record.levelno == logging.INFO and self.is_announced
        is_reason = is_reason and "missing provenance" not in str(record.msg)  # no trigger of ours needs it
        is_news = record.levelno >= logging.WARNING or is_count or is_reason or is_nothing(record)
        if self.is_run and self.is_short and is_news and (record.levelno >= logging.ERROR or not self.is_silent):
            self.is_counted = self.is_counted or is_count
            self.say(text_of(record))

    def show(self, record: LogRecord) -> None:
        """Show one event; job events that need no line pass in silence."""
        facts, event = record.__dict__, getattr(record, "event", None)
        if event == LogEvent.RUN_INFO:
            self.start(facts["stats"])
        elif event == LogEvent.JOB_INFO:
            self.jobs[int(facts["jobid"])] = self.job_of(facts)
        elif event == LogEvent.JOB_FINISHED:
            self.finish(int(facts["job_id"]))
        elif event == LogEvent.JOB_ERROR:
            self.fail(facts)
        elif "multinode_waits" in facts:
            self.hear(*facts["multinode_waits"])
        elif event == LogEvent.ERROR and facts.get("exception") == "RuleException":
            return  # the failed job has been shown
        elif "multinode" in facts or record.levelno >= logging.WARNING or event == LogEvent.ERROR:
            if "multinode" in facts or not record.getMessage().startswith(SNAKEMAKE_WARNINGS):
                self.say(text_of(record))
        elif is_nothing(record):
            self.say("Nothing to be done: all requested files exist.")

    def start(self, stats: dict[str, int]) -> None:
        """All jobs are known."""
        job_counts = Counter({self.kind(name): count for name, count in stats.items() if name != "total"})
        self.to_do = Counter({rule: job_counts[rule] for rule in RULES if job_counts[rule]})
        counts = [f"{count} {RULES[rule]}{'s' * (count != 1)}" for rule, count in self.to_do.items()]
        self.say("To do: " + (", ".join(counts) or f"{stats.get('total', 0)} small jobs"))
        threading.Thread(target=self.watch, daemon=True).start()

    def kind(self, name: str) -> str:
        """The name that a rule has in this workflow, whatever a module that uses it calls it."""
        if self.workflow is None or not self.workflow.is_rule(name):
            return name
        from scalestudy.dag.driver import kind_of

        return kind_of(self.workflow.get_rule(name))

    def run_in_words(self, machine: str, run: str) -> str:
        """A run in its study's words: the keys that vary, with their values."""
        from scalestudy.analysis.workload import varied_columns
        from scalestudy.spec.labels import run_text

        name = self.project.indexed(machine, run).study
        study = next((study for study in self.project.chosen if study.name == name), None)
        if study is None:
            return run
        if name not in self.varied:
            self.varied[name] = varied_columns(study)
        return f"{name}: {run_text(study, self.varied[name], self.project.run(machine, run).columns)}"

    def job_of(self, facts: Mapping[str, Any]) -> Job:
        """The job that an event is about, which starts now or is submitted."""
        rule, wildcards = self.kind(facts["rule_name"]), dict(facts["wildcards"] or {})
        outputs = tuple(str(path).removesuffix(" (update)") for path in facts["output"])
        name = " ".join([rule, *wildcards.values()])
        if rule == "train" and self.project is not None:
            name = self.run_in_words(wildcards["machine"], wildcards["run"])
        logs = [str(path) for path in facts["log"]]
        return Job(rule, name, wildcards, outputs, logs, written(logs))

    def hear(self, jobid: int, reason: str) -> None:
        """The executor reports that a job waits in its queue, and why, or that it runs."""
        job = self.jobs.get(jobid)
        if job is not None and (reason or job.reason):
            job.began, job.reason = time.time(), reason

    def finish(self, jobid: int) -> None:
        """A job succeeded. A study's question is answered as soon as its runs are summarised."""
        job = self.jobs.pop(jobid, None)
        if job is None:
            return
        if job.rule == "summarise" and self.project is not None:
            from scalestudy.report.answers import answer_of

            for study in (study for study in self.project.chosen if study.name == job.wildcards["study"]):
                for sentence in answer_of(study, job.wildcards["machine"]).sentences:
                    self.say(f"=> {study.title}: {sentence}")
        if job.rule not in RULES or not job.outputs:
            return
        self.done[job.outputs] = job.rule
        self.failed.pop(job.outputs, None)
        if job.rule == "train" and self.project is not None:  # another workflow's rule of that name has other outputs
            ended = [*self.done.values(), *self.failed.values()].count("train")
            self.say(f"[{ended}/{self.to_do['train']}] {job.name}: {outcome(job.outputs[0])}")
        elif job.rule == "dataset":
            self.say(f"{job.name}: {last_lines(job.logs, 1)}")
        else:
            shown = next((path for path in job.outputs if path.endswith((".svg", ".md", ".html"))), job.outputs[0])
            self.say(f"{job.rule}: {shown}")

    def fail(self, facts: Mapping[str, Any]) -> None:
        """A job failed: the reason, and the last lines of the log that this attempt wrote."""
        job, logs = self.jobs.pop(int(facts["jobid"])), written(map(str, facts["log"]))
        if job.rule in RULES:
            self.failed[job.outputs] = job.rule
        self.say(" ".join(["FAILED", job.rule, *(Path(output).parent.name for output in job.outputs[:1])]))
        if facts.get("rule_msg"):
            self.say(f"    {facts['rule_msg']}".partition("For further error details")[0].rstrip())
        # A job that ended before its command began has left the log of an earlier attempt as it was.
        for log in [log for log, at_ns in logs.items() if job.before.get(log) != at_ns][:1]:
            self.say("\n".join("    " + line for line in last_lines([log], TAIL_LINES).splitlines()))
            self.say(f"    whole log: {log}")

    def watch(self) -> None:
        """Until the end, break long silences."""
        while not self.ended.wait(LOOK_S):
            with self.changes, suppress(OSError):
                self.tick(time.time())

    def tick(self, now: float) -> None:
        """After a long silence, name the running jobs, and what those wait for that wait."""
        jobs = [job for job in self.jobs.values() if job.rule in RULES]
        if now - self.said_at < QUIET_S or not jobs:
            return
        lines = []
        for job in jobs[:MAX_NAMED]:
            # A job that runs may wait for other work on its host.
            reason = job.reason or "".join(last_lines(job.logs, 1).partition("waiting for")[1:])
            lines.append(f"{job.name}: {f'waits ({reason})' if reason else duration(now - job.began)}")
        lines += [f"and {len(jobs) - MAX_NAMED} more"] if len(jobs) > MAX_NAMED else []
        failed = f", {len(self.failed)} failed" if self.failed else ""
        self.say(f"… {len(self.done)} of {self.to_do.total()} jobs done{failed} · {'; '.join(lines)}")

    def close(self) -> None:
        """Print the command that resumes what is left."""
        self.ended.set()
        total, done, failed = self.to_do.total(), len(self.done), len(self.failed)
        left = {"failed": failed, "not done": total - done - failed}
        if parts := [f"{count} {state}" for state, count in left.items() if count > 0]:
            jobs = "1 job" if total == 1 else f"{total} jobs"
            self.say(f"Of {jobs}, {' and '.join(parts)}. To resume: {resume_command()}")
        self.to_do, self.failed = Counter(), {}  # it is closed again at the end of the process
        super().close()


def text_of(record: LogRecord) -> str:
    """A message of Snakemake; the one about a word that is no setting without its traceback, and with what to do."""
    text = record.getMessage().replace("    (check individual jobs above for details)\n", "")
    if "Invalid config definition" in text:
        message = text[text.index("Invalid config definition") :].splitlines()[0]
        remedy = "\n    --config takes all words up to the next option: write targets before it"
        return message + (remedy if "(Unparsable value" in message else "")
    return text


def is_nothing(record: LogRecord) -> bool:
    """Whether Snakemake reports that all targets exist."""
    return str(record.msg).startswith("Nothing to be done")


def resume_command() -> str:
    """This command again; a program below this folder by its path: `make` has another PATH than the user's shell."""
    program = Path(sys.argv[0]).absolute()
    program = program.relative_to(Path.cwd()) if program.is_relative_to(Path.cwd()) else Path(program.name)
    return shlex.join([str(program), *sys.argv[1:]])


def outcome(result_file: str) -> str:
    """`1,240 samples/s, accuracy 0.912`, `1.3 s in all` of a whole program, the step of an explained one, or why the run counts for nothing."""
    from scalestudy.spec.labels import speed_text

    result = json.loads(Path(result_file).read_text(encoding="utf-8"))
    if result["status"] != "valid":
        return f"{result['status']}: {result['reason']}"
    if "explained" in result:
        return str(result["explained"]["sentences"][0])
    accuracy = result["metrics"].get("accuracy")
    return speed_text(result) + (f", accuracy {accuracy:.3f}" if accuracy is not None else "")


def last_lines(logs: Iterable[str], count: int) -> str:
    """The end of the first log that exists."""
    from scalestudy.files import tail

    first_log = next((log for log in logs if Path(log).is_file()), None)
    return "" if first_log is None else "\n".join(tail(first_log).splitlines()[-count:])


def written(logs: Iterable[str]) -> dict[str, int]:
    """By file, its time of writing in nanoseconds; missing files are left out."""
    return {path: Path(path).stat().st_mtime_ns for path in logs if Path(path).exists()}
