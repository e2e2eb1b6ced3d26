"""Slurm: sbatch, squeue, scontrol, scancel; sacct where the site has it."""

from __future__ import annotations

import os
import pwd
import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import pairwise

from snakemake_executor_plugin_multinode.clock import Clock
from snakemake_executor_plugin_multinode.schedulers.command import NOT_FOUND, CommandAnswer, NoAnswer, run_command
from snakemake_executor_plugin_multinode.schedulers.deletion import not_deleted
from snakemake_executor_plugin_multinode.schedulers.scheduler import (
    Cause,
    JobRef,
    LimitReached,
    Refused,
    Request,
    Run,
    Scheduler,
    State,
    Status,
    checked_name,
    checked_path,
    found_for,
)
from snakemake_executor_plugin_multinode.site import SchedulerSettings, checked_word

# Job states of Slurm: squeue(1), "JOB STATE CODES", and job_state_string() in src/common/slurm_protocol_defs.c (22.05).
STATES: dict[str, tuple[State, Cause]] = {
    "PENDING": (State.QUEUED, Cause.UNKNOWN),
    "CONFIGURING": (State.QUEUED, Cause.UNKNOWN),
    "REQUEUED": (State.QUEUED, Cause.UNKNOWN),
    "REQUEUE_FED": (State.QUEUED, Cause.UNKNOWN),
    "REQUEUE_HOLD": (State.HELD, Cause.UNKNOWN),
    "SPECIAL_EXIT": (State.HELD, Cause.UNKNOWN),
    "RESV_DEL_HOLD": (State.HELD, Cause.UNKNOWN),
    "RUNNING": (State.RUNNING, Cause.UNKNOWN),
    "COMPLETING": (State.RUNNING, Cause.UNKNOWN),
    "STAGE_OUT": (State.RUNNING, Cause.UNKNOWN),
    "SIGNALING": (State.RUNNING, Cause.UNKNOWN),
    "RESIZING": (State.RUNNING, Cause.UNKNOWN),
    "SUSPENDED": (State.SUSPENDED, Cause.UNKNOWN),
    "STOPPED": (State.SUSPENDED, Cause.UNKNOWN),
    "COMPLETED": (State.ENDED, Cause.FINISHED),
    "FAILED": (State.ENDED, Cause.COMMAND),
    "TIMEOUT": (State.ENDED, Cause.WALLTIME),
    "DEADLINE": (State.ENDED, Cause.WALLTIME),
    "OUT_OF_MEMORY": (State.ENDED, Cause.MEMORY),
    "NODE_FAIL": (State.ENDED, Cause.NODE),
    "BOOT_FAIL": (State.ENDED, Cause.NODE),
    "LAUNCH_FAILED": (State.ENDED, Cause.NODE),
    "RECONFIG_FAIL": (State.ENDED, Cause.NODE),
    "PREEMPTED": (State.ENDED, Cause.PREEMPTED),
    "CANCELLED": (State.ENDED, Cause.CANCELLED),
    "REVOKED": (State.UNKNOWN, Cause.UNKNOWN),  # another cluster of a federation runs it
}

# Reasons of a pending job that no waiting ends: squeue(1), "JOB REASON CODES". PartitionConfig is what 22.05 says
# first for a job beyond its partition's limits; seconds later it says which limit.
NEVER = {
    "AccountNotAllowed", "BadConstraints", "DependencyNeverSatisfied", "InvalidAccount", "InvalidQOS",
    "PartitionConfig", "PartitionNodeLimit", "PartitionTimeLimit", "QOSNotAllowed", "QOSTimeLimit",
    "QOSMaxNodePerJobLimit", "QOSMaxWallDurationPerJobLimit", "QOSMaxGRESPerJob", "AssocMaxNodePerJobLimit",
    "AssocMaxWallDurationPerJobLimit", "AssocMaxGRESPerJob",
}  # fmt: skip
HELD = {"JobHeldUser", "JobHeldAdmin", "JobHoldMaxRequeue", "launch_failed_requeued_held"}

# What sbatch prints when the controller is away or busy, in contrast to a refusal: slurm_errno.c (22.05).
AWAY = (
    "Unable to contact slurm controller",
    "Socket timed out",
    "Connection refused",
    "Connection reset",
    "Zero Bytes were transmitted or received",
    "Slurm backup controller in standby mode",
    "Slurm temporarily unable to accept job",
    "temporarily unavailable",
    "Protocol authentication error",
    "Unexpected message received",
    "Unexpected missing socket error",
    "Communication connection failure",
    "Communication shutdown failure",
    "Message send failure",
    "Message receive failure",
    "Header lengths are longer than data received",
    "Insane message length",
    "Controller is in standby mode",
)
# Limits on how many jobs a user may have: squeue(1), "JOB REASON CODES"; sbatch prints the reason before its refusal.
FULL = re.compile(r"\b(Assoc|QOS)(Max|Grp)Submit\w*")
# What scancel says of a job that is gone, or is going.
DELETED = re.compile(r"Invalid job id specified|already completing or completed")
ALL = "all"
"""Names every cluster, for `-M`."""
NO_ACCOUNTING = "accounting storage is disabled"
REMEMBERED_S = 60
"""A controller that remembers an ended job so long has told of it before it is forgotten."""
MIN_JOB_AGE = re.compile(r"^MinJobAge\s*=\s*([0-9]{1,9})", re.MULTILINE)
FORMAT = "%i|%T|%r|%N|%S|%j"
# scontrol: "Exited with exit code N" is ExitCode=N:0, a signal ExitCode=0:N.
EXIT_CODE = re.compile(r"\bExitCode=([0-9]{1,9}):([0-9]{1,9})")
REASON = re.compile(r"\bReason=(\S+)")


class Slurm(Scheduler):
    """Slurm; written against 22.05."""

    kind = "slurm"
    commands = ("sbatch", "squeue", "scontrol", "scancel")
    default_request = (
        "-N {nodes} --ntasks-per-node={ranks_per_node} --cpus-per-task={cpus_per_rank}"
        " [--gpus-per-node={gpus_of_model}] [--mem={mem_mb}M] [-t {runtime_min}]"
    )
    reserved = (
        "-J",
        "--job-name",
        "-o",
        "--output",
        "-a",
        "--array",
        "--wrap",
        "--requeue",
        "-W",
        "--wait",
        "--test-only",
        "-M",
        "--clusters",
        "--cluster",
    )

    def __init__(self, settings: SchedulerSettings, run: Run = run_command, clock: Clock | None = None) -> None:
        super().__init__(settings, run, clock)
        self._keeps_history: bool | None = None
        self._sent_to = _clusters([*settings.options, *(settings.request or "").split()], os.environ)
        """Where the site sends jobs, if not to the cluster of this host; `all` until their names are asked for."""

    @property
    def clusters(self) -> tuple[str, ...]:
        """The names of the clusters that may have a job, if not that of this host alone. NoAnswer where they are not known.

        `all` is no name: an id found under it would be that of a job in each cluster, and a deletion would hit them all.
        """
        if ALL in self._sent_to:
            answer = self.run(["sacctmgr", "-n", "-P", "list", "cluster", "format=cluster"], self.query_s)
            if answer.code != 0 or not answer.out.split():
                raise NoAnswer(f"sacctmgr: {answer.words}")
            self._sent_to = tuple(answer.out.split())
        return self._sent_to

    @property
    def keeps_history(self) -> bool:
        """As long as `MinJobAge` says, and for ever with accounting."""
        if self._keeps_history is None:
            try:
                shown = self.run(["scontrol", "show", "config"], self.query_s)
            except NoAnswer:
                return False
            age = MIN_JOB_AGE.search(shown.out)
            if shown.code != 0 or age is None:
                return False
            self._keeps_history = int(age[1]) >= REMEMBERED_S or "accounting_storage/slurmdbd" in shown.out
        return self._keeps_history

    def missing_history(self) -> str:
        """With a short `MinJobAge` and without accounting a job that is over is soon unknown."""
        if self.keeps_history or self._keeps_history is None:
            return ""
        return (
            f"this Slurm has no accounting and forgets jobs soon after their end (MinJobAge below {REMEMBERED_S} s): a job "
            "that vanishes from the queue counts as deleted by a user, and is not submitted again"
        )

    def submit_command(self, request: Request) -> list[str]:
        """`sbatch --parsable -J NAME …`. A requeue is forbidden: resuming is decided by us, with the cause known."""
        queue = request.queue or self.settings.queue
        log = checked_path(request.log, "\\", "Slurm").replace("%", "%%")  # sbatch(1), "filename pattern"
        return [
            "sbatch", "--parsable", "--no-requeue", "-J", checked_name(request.name),
            *self.request_words(request),
            *(["-p", checked_word(queue, "the queue")] if queue else []),
            *(["-A", account] if (account := request.account or self.settings.account) else []),
            *([f"--qos={request.qos}"] if request.qos else []),
            *([f"--constraint={request.constraint}"] if request.constraint else []),
            *(["--nodelist=" + ",".join(request.hosts)] if request.hosts else []),
            *(["--exclude=" + ",".join(request.avoid)] if request.avoid else []),
            "-o", log,
            *self.settings.options,
            *self.extra_words(request),
            checked_path(request.script, "", "Slurm"),
        ]  # fmt: skip

    def submit(self, request: Request) -> str:
        """The id that `--parsable` prints: `28`, or `28;name` where it names a cluster."""
        answer = self.run(self.submit_command(request), self.submit_s)
        lines = answer.out.split()
        if answer.code == 0 and lines and re.fullmatch(r"\d+(;\S+)?", lines[-1]):
            return lines[-1]
        if answer.code == 0 or any(words in answer.err for words in AWAY):
            raise NoAnswer(f"sbatch: {answer.words}")
        if FULL.search(answer.err):
            raise LimitReached(f"sbatch: {answer.words}")
        raise Refused(f"sbatch: {answer.words}")

    def statuses(self, jobs: Sequence[JobRef]) -> dict[str, Status]:
        """One squeue of all jobs of this user, for each cluster: it also finds by name, and no unknown id can spoil it."""
        rows: list[tuple[str, str, Row]] = []
        silent: dict[str, str] = {}
        clusters = self._clusters_of(jobs)
        for cluster in clusters:
            try:
                rows += self._table(cluster)
            except NoAnswer as error:
                silent[cluster] = str(error)
        if len(silent) == len(clusters):
            raise NoAnswer(silent[clusters[0]])
        found = {name: self._status(row) for name, row in found_for(jobs, rows).items()}
        for job in jobs:  # one that is not found may be where no answer came from
            if job.name not in found and (why := silent.get(_cluster(job)) if job.id else " ".join(silent.values())):
                found[job.name] = Status(job.id or "", State.UNANSWERED, why)
        missing = [job for job in jobs if job.name not in found]
        return found | (self._accounted(missing) if missing else {})

    def _clusters_of(self, jobs: Sequence[JobRef]) -> list[str]:
        """The names of the clusters that have these jobs; the empty one is that of this host."""
        named = {_cluster(job) for job in jobs if job.id}
        return sorted(named | {*(self.clusters or ("",))})

    def _table(self, cluster: str) -> list[tuple[str, str, Row]]:
        user = pwd.getpwuid(os.getuid()).pw_name
        answer = self.run(["squeue", *_on(cluster), "-h", "-t", "all", "-u", user, "-o", FORMAT], self.query_s)
        if answer.code != 0:
            raise NoAnswer(f"squeue: {answer.words}")
        lines = [line for line in answer.out.splitlines() if line.strip() and not line.startswith("CLUSTER:")]
        cells = [line.split("|", 5) for line in lines]
        rows = [Row(_id(row[0], cluster), *row[1:]) for row in cells if len(row) == 6 and row[0][:1].isdigit()]
        if lines and not rows:
            raise NoAnswer(f"squeue printed no table: {answer.words}")
        # A job of a federation has a row of each of its clusters: that of the one which runs it comes last.
        rows.sort(key=lambda row: row.state != "REVOKED")
        return [(row.id, row.name, row) for row in rows]

    def _status(self, row: Row) -> Status:
        reason = row.reason.strip()
        state, cause = STATES.get(row.state, (State.UNKNOWN, Cause.UNKNOWN))
        words = row.state if reason in ("", "None") else f"{row.state} {reason}"
        nodes = (row.nodes,) if row.nodes else ()
        if state is State.QUEUED:
            base = reason.strip("()").partition(",")[0].replace(" ", "_")
            state = State.NEVER if base in NEVER else State.HELD if base in HELD else state
        if state is State.ENDED and cause is Cause.COMMAND:
            return self._failed(row.id, words, reason, nodes)
        return Status(row.id, state, words, cause, nodes=nodes, started_s=_seconds(row.start))

    def _failed(self, job_id: str, words: str, reason: str, nodes: tuple[str, ...]) -> Status:
        """FAILED: by exit status, by a signal, or because it could not be launched."""
        if reason in ("JobLaunchFailure", "RaisedSignal:53(Real-time_signal_19)", "RaisedSignal:53"):
            return Status(job_id, State.ENDED, words, Cause.NODE, nodes=nodes)
        try:
            number, _, cluster = job_id.partition(";")
            shown = self.run(["scontrol", *_on(cluster), "-o", "show", "job", number], self.query_s)
        except NoAnswer:
            shown = CommandAnswer(1, "", "")
        code = EXIT_CODE.search(shown.out)
        return self._by_code(job_id, words, code, nodes)

    @staticmethod
    def _by_code(job_id: str, words: str, code: re.Match[str] | None, nodes: tuple[str, ...] = ()) -> Status:
        if code is None:
            return Status(job_id, State.ENDED, words, Cause.COMMAND, nodes=nodes)
        status, number = int(code[1]), int(code[2])
        words = f"{words} {status}:{number}"
        if number == 53 and status == 0:  # the output or work folder could not be opened on the node
            return Status(job_id, State.ENDED, words, Cause.NODE, nodes=nodes)
        if number:
            return Status(job_id, State.ENDED, words, Cause.SIGNAL, number, nodes)
        return Status(job_id, State.ENDED, words, Cause.COMMAND, nodes=nodes)

    def _accounted(self, jobs: Sequence[JobRef]) -> dict[str, Status]:
        """Query the accounting for jobs gone from the queue; empty without accounting."""
        names = [job.name for job in jobs if not job.id]
        rows = []
        for cluster in self._clusters_of(jobs):
            numbers = [_number(job) for job in jobs if job.id and _cluster(job) == cluster]
            asked = [["-j", ",".join(numbers)]] if numbers else []
            asked += [["--name", ",".join(names)]] if names else []
            for words in asked:
                try:
                    rows += self._account(cluster, words)
                except NoAnswer as error:
                    if NOT_FOUND in str(error):
                        return {}
                    return {job.name: Status(job.id or "", State.UNANSWERED, str(error)) for job in jobs}
        return found_for(jobs, rows)

    def _account(self, cluster: str, words: list[str]) -> list[tuple[str, str, Status]]:
        columns = ["-X", "-n", "-P", "-S", "now-14days", "-o", "jobid,state,exitcode,jobname"]
        answer = self.run(["sacct", *_on(cluster), *columns, *words], self.query_s)
        if answer.code != 0 and NO_ACCOUNTING in answer.err + answer.out:
            return []
        if answer.code != 0:
            raise NoAnswer(f"sacct: {answer.words}")
        rows = []
        for line in answer.out.splitlines():
            job_id, _, rest = line.partition("|")
            word, _, rest = rest.partition("|")
            code, _, name = rest.partition("|")
            if not job_id.isdigit() or not name:
                continue
            state, cause = STATES.get(word.partition(" ")[0], (State.UNKNOWN, Cause.UNKNOWN))
            job_id = _id(job_id, cluster)
            status = Status(job_id, state, word, cause)
            if cause is Cause.COMMAND:
                status = self._by_code(job_id, word, re.fullmatch(r"([0-9]{1,9}):([0-9]{1,9})", code))
            rows.append((job_id, name, status))
        return rows

    def cancel(self, jobs: Sequence[JobRef]) -> dict[str, str]:
        """`scancel` with all ids in one call for each cluster; a job without an id is named, in each cluster that
        may have it. Each call is made, whatever became of the others."""
        user = pwd.getpwuid(os.getuid()).pw_name
        calls: list[tuple[list[JobRef], list[str]]] = []
        try:
            clusters = self._clusters_of(jobs)
        except NoAnswer as error:
            return {job.name: str(error) for job in jobs}
        for cluster in clusters:
            theirs = [job for job in jobs if job.id and _cluster(job) == cluster]
            numbers = [_number(job) for job in theirs]
            calls += [(theirs, ["scancel", *_on(cluster), *numbers])] if theirs else []
            named = [job for job in jobs if not job.id]
            calls += [([job], ["scancel", *_on(cluster), "-u", user, "-n", job.name]) for job in named]
        left: dict[str, str] = {}
        for asked, call in calls:
            try:
                found = not_deleted(asked, self.run(call, self.submit_s), AWAY, DELETED)
            except NoAnswer as error:
                found = {job.name: str(error) for job in asked}
            left |= {name: f"scancel: {words.removeprefix('scancel: ')}" for name, words in found.items()}
        return left

    def delete_line(self, ids: Sequence[str]) -> str:
        """`scancel`, for each cluster."""
        jobs = [JobRef("", job_id) for job_id in ids]
        calls = {cluster: [_number(job) for job in jobs if _cluster(job) == cluster] for cluster in map(_cluster, jobs)}
        return "; ".join(shlex.join(["scancel", *_on(cluster), *numbers]) for cluster, numbers in calls.items())


@dataclass(frozen=True)
class Row:
    """A line of squeue."""

    id: str
    state: str
    reason: str
    nodes: str
    start: str
    name: str


def _on(cluster: str) -> list[str]:
    return ["-M", cluster] if cluster else []


def _cluster(job: JobRef) -> str:
    """The cluster that an id names, as in `28;big`; empty for that of this host, or without an id."""
    return (job.id or "").partition(";")[2]


def _number(job: JobRef) -> str:
    return (job.id or "").partition(";")[0]


def _id(number: str, cluster: str) -> str:
    return f"{number};{cluster}" if cluster else number


def _clusters(options: Sequence[str], environment: Mapping[str, str]) -> tuple[str, ...]:
    """Return the clusters of `-M` or `--clusters` in a submit line, or else of the variables that sbatch reads."""
    named: list[str] = []
    for word, following in pairwise([*options, ""]):
        if word in ("-M", "--clusters", "--cluster"):
            named += following.split(",")
        elif found := re.fullmatch(r"(?:--clusters?=|-M)(.+)", word):
            named += found[1].split(",")
    if not named:
        named = (environment.get("SBATCH_CLUSTERS") or environment.get("SLURM_CLUSTERS") or "").split(",")
    return (ALL,) if ALL in named else tuple(filter(None, named))


def _seconds(text: str) -> float | None:
    """A time of squeue in Unix seconds: it prints local time, `N/A` where there is none."""
    try:
        return datetime.fromisoformat(text).timestamp()
    except (ValueError, OverflowError, OSError):
        return None
