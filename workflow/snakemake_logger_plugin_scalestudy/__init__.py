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
from logging import LogRecord
from pathlib import Path
from typing import Any

from snakemake_interface_logger_plugins.base import LogHandlerBase
from snakemake_interface_logger_plugins.common import LogEvent

from snakemake_logger_plugin_scalestudy.progress import Progress, Task, current, heading, stopped

RULES = {"train": "run", "dataset": "dataset", "figure": "figure", "table": "table", "report": "report"}
"""Rules whose jobs are shown, and the noun for each."""
TAIL_LINES = 20
QUIET_S, LOOK_S = 60.0, 5.0
"""Longest silence, after which the running jobs are named, and the interval at which it is looked for."""
LISTING = ("printshellcmds", "verbose", "debug_dag")
"""Options with which a dry run lists every job."""
OTHER_MODES = {"--lint", "--report", "--unlock", "--summary", "-S", "--detailed-summary", "-D", "--delete-all-output",
               "--delete-temp-output", "--dag", "--rulegraph", "--filegraph", "--d3dag", "--list-rules", "--list", "-l",
               "--list-target-rules", "--lt", "--list-changes", "--lc", "--list-conda-envs", "--conda-create-envs-only",
               "--cleanup-metadata", "--cm", "--archive", "--containerize", "--generate-unit-tests"}  # fmt: skip
"""Options of calls that run no job: Snakemake's own output stands."""
OF_SNAKEMAKE = ("At least one job did not complete", "--keep-incomplete mode is set", "Cannot restore results/")
"""Warnings about failed jobs that repeat, with less, the lines about them."""


class LogHandler(LogHandlerBase):
    """Turns Snakemake's events into lines."""

    def __post_init__(self) -> None:
        settings = self.common_settings
        self.project: Any = None
        self.workflow: Any = None
        self.progress = Progress(command=resume_command())
        self.jobs: dict[int, Task] = {}
        """Those that have begun, by Snakemake's number."""
        self.summaries: dict[int, tuple[str, str]] = {}
        """Machine and study of each summary that is being made."""
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
            self.say(record.getMessage().replace("    (check individual jobs above for details)\n", ""))

    def show(self, record: LogRecord) -> None:
        """Show one event; job events that need no line pass in silence."""
        facts, event = record.__dict__, getattr(record, "event", None)
        if event == LogEvent.RUN_INFO:
            self.start(facts["stats"])
        elif event == LogEvent.JOB_INFO:
            self.begin(facts)
        elif event == LogEvent.JOB_FINISHED:
            self.finish(int(facts["job_id"]))
        elif event == LogEvent.JOB_ERROR:
            self.fail(facts)
        elif "multinode_waits" in facts:
            self.hear(*facts["multinode_waits"])
        elif event == LogEvent.ERROR and facts.get("exception") == "RuleException":
            return  # the failed job has been shown
        elif "multinode" in facts or record.levelno >= logging.WARNING or event == LogEvent.ERROR:
            if "multinode" in facts or not record.getMessage().startswith(OF_SNAKEMAKE):
                self.say(record.getMessage())
        elif is_nothing(record):
            self.say("Nothing to be done: all requested files exist.")

    def start(self, stats: dict[str, int]) -> None:
        """All jobs are known."""
        for job in self.workflow.dag.needrun_jobs() if self.workflow is not None else ():
            if (kind := self.kind(job.rule.name)) in RULES and job.output:
                self.task(kind, dict(job.wildcards_dict), str(job.output[0]))
        known = Counter({self.kind(name): count for name, count in stats.items() if name != "total"})
        counts = [f"{known[rule]} {noun}{'s' * (known[rule] != 1)}" for rule, noun in RULES.items() if known[rule]]
        self.say("To do: " + (", ".join(counts) or f"{stats.get('total', 0)} small jobs"))
        threading.Thread(target=self.watch, daemon=True).start()

    def kind(self, name: str) -> str:
        """The name that a rule has in this workflow, whatever a module that uses it calls it."""
        if self.workflow is None or not self.workflow.is_rule(name):
            return name
        from scalestudy.dag.driver import kind_of

        return kind_of(self.workflow.get_rule(name))

    def task(self, rule: str, wildcards: dict[str, str], output: str) -> Task:
        """The task of a job, made where it is new; a run is named in its study's words: keys that vary, with their values."""
        if output not in self.progress.tasks:
            name = " ".join([rule, *wildcards.values()])
            if rule == "train" and self.project is not None:
                name = self.run_in_words(wildcards["machine"], wildcards["run"])
            self.progress.tasks[output] = Task(output, rule, name)
        return self.progress.tasks[output]

    def run_in_words(self, machine: str, run: str) -> str:
        """A run by its study and what varies in it."""
        from scalestudy.analysis.workload import varied_columns
        from scalestudy.spec.labels import run_text

        name = self.project.study_name(machine, run)
        for study in (study for study in self.project.chosen if study.name == name):
            if name not in self.varied:
                self.varied[name] = varied_columns(study)
            return f"{name}: {run_text(study, self.varied[name], self.project.run(machine, run).columns)}"
        return run

    def begin(self, facts: Mapping[str, Any]) -> None:
        """A job starts or is submitted."""
        rule, wildcards = self.kind(facts["rule_name"]), dict(facts["wildcards"] or {})
        outputs = [str(path).removesuffix(" (update)") for path in facts["output"]]
        if rule == "summarise":
            self.summaries[int(facts["jobid"])] = wildcards["machine"], wildcards["study"]
        if rule not in RULES or not outputs:
            return
        task = self.jobs[int(facts["jobid"])] = self.task(rule, wildcards, outputs[0])
        task.outputs, task.logs = outputs, [str(path) for path in facts["log"]]
        task.before = written(task.logs)
        self.progress.begin(task, time.time())

    def hear(self, jobid: int, reason: str) -> None:
        """The executor reports that a job waits in its queue, and why, or that it runs."""
        task = self.jobs.get(jobid)
        if task is not None and (reason or task.state != "running"):
            self.progress.begin(task, time.time(), reason)

    def finish(self, jobid: int) -> None:
        """A job succeeded. A study's question is answered as soon as its runs are summarised."""
        if jobid in self.summaries and self.project is not None:
            from scalestudy.report.answers import answer_of

            machine, name = self.summaries.pop(jobid)
            for study in (study for study in self.project.chosen if study.name == name):
                for sentence in answer_of(study, machine).sentences:
                    self.say(f"=> {study.title}: {sentence}")
        if (task := self.jobs.pop(jobid, None)) is None:
            return
        task.state = "done"
        if task.rule == "train" and self.project is not None:  # another workflow's rule of that name has other outputs
            runs = self.progress.runs
            self.say(f"[{runs['done'] + runs['failed']}/{runs.total()}] {task.name}: {outcome(task.output)}")
        elif task.rule == "dataset":
            self.say(f"{task.name}: {last_lines(task.logs, 1)}")
        else:
            shown = next((path for path in task.outputs if path.endswith((".svg", ".md", ".html"))), task.output)
            self.say(f"{task.rule}: {shown}")

    def fail(self, facts: Mapping[str, Any]) -> None:
        """A job failed: the reason, and the last lines of the log that this attempt wrote."""
        task, logs = self.jobs.pop(int(facts["jobid"]), None), written(map(str, facts["log"]))
        what = facts["rule_name"] if task is None else f"{task.rule} {Path(task.output).parent.name}"
        self.say(f"FAILED {what}")
        if facts.get("rule_msg"):
            self.say(f"    {facts['rule_msg']}".partition("For further error details")[0].rstrip())
        if task is not None:
            task.state = "failed"
            # A job that ended before its command began has left the log of an earlier attempt as it was.
            logs = {path: at_ns for path, at_ns in logs.items() if task.before.get(path) != at_ns}
        for log in list(logs)[:1]:
            self.say("\n".join("    " + line for line in last_lines([log], TAIL_LINES).splitlines()))
            self.say(f"    whole log: {log}")

    def watch(self) -> None:
        """Until the end, break long silences."""
        while not self.ended.wait(LOOK_S):
            with self.changes, suppress(OSError):
                self.tick(time.time())

    def tick(self, now: float) -> None:
        """After a long silence, name the running jobs, and what those wait for that wait for other work on this host."""
        if now - self.said_at < QUIET_S:
            return
        for task in self.progress.of("running"):
            task.reason = "".join(last_lines(task.logs, 1).partition("waiting for")[1:])
        if lines := list(current(self.progress, now)):
            self.say(f"… {heading(self.progress)} · {'; '.join(lines)}")

    def close(self) -> None:
        """Print the command that resumes what is left."""
        self.ended.set()
        with self.changes:
            if self.progress.of("waiting", "running", "failed"):
                self.say(stopped(self.progress))
            self.progress.tasks.clear()
        super().close()


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

    found = next((log for log in logs if Path(log).is_file()), None)
    return "" if found is None else "\n".join(tail(found).splitlines()[-count:])


def written(logs: Iterable[str]) -> dict[str, int]:
    """By file, its time of writing in nanoseconds; missing files are left out."""
    return {path: Path(path).stat().st_mtime_ns for path in logs if Path(path).exists()}
