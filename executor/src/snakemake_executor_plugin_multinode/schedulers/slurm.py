"""Slurm: sbatch, squeue, scontrol, scancel; sacct where the site has it."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import pairwise

from snakemake_executor_plugin_multinode.schedulers.command import NOT_FOUND, NoAnswer
from snakemake_executor_plugin_multinode.schedulers.scheduler import (
    Cause,
    JobRef,
    Request,
    Run,
    Scheduler,
    State,
    Status,
    checked_path,
    error_text,
    rows_of_jobs,
    user_name,
)
from snakemake_executor_plugin_multinode.site import SchedulerSettings

# Job states of Slurm: squeue(1), "JOB STATE CODES", and job_state_string() in src/common/slurm_protocol_defs.c (22.05).
STATES: dict[str, State] = {
    **dict.fromkeys(("PENDING", "CONFIGURING", "REQUEUED", "REQUEUE_FED"), State.QUEUED),
    **dict.fromkeys(("REQUEUE_HOLD", "SPECIAL_EXIT", "RESV_DEL_HOLD"), State.HELD),
    **dict.fromkeys(("RUNNING", "COMPLETING", "STAGE_OUT", "SIGNALING", "RESIZING"), State.RUNNING),
    **dict.fromkeys(("SUSPENDED", "STOPPED"), State.SUSPENDED),
    "REVOKED": State.UNKNOWN,  # another cluster of a federation runs it
}
CAUSES: dict[str, Cause] = {
    "COMPLETED": Cause.FINISHED,
    "FAILED": Cause.COMMAND,
    **dict.fromkeys(("TIMEOUT", "DEADLINE"), Cause.WALLTIME),
    "OUT_OF_MEMORY": Cause.MEMORY,
    **dict.fromkeys(("NODE_FAIL", "BOOT_FAIL", "LAUNCH_FAILED", "RECONFIG_FAIL"), Cause.NODE),
    "PREEMPTED": Cause.PREEMPTED,
    "CANCELLED": Cause.CANCELLED,
}
"""Of the states in which a job has ended."""

# Reasons of a pending job that no waiting ends: squeue(1), "JOB REASON CODES". PartitionConfig is what 22.05 says
# first for a job beyond its partition's limits; seconds later it says which limit.
NEVER = {
    "AccountNotAllowed", "BadConstraints", "DependencyNeverSatisfied", "InvalidAccount", "InvalidQOS",
    "PartitionConfig", "PartitionNodeLimit", "PartitionTimeLimit", "QOSNotAllowed", "QOSTimeLimit",
    "QOSMaxNodePerJobLimit", "QOSMaxWallDurationPerJobLimit", "QOSMaxGRESPerJob", "AssocMaxNodePerJobLimit",
    "AssocMaxWallDurationPerJobLimit", "AssocMaxGRESPerJob",
}  # fmt: skip
HELD = {"JobHeldUser", "JobHeldAdmin", "JobHoldMaxRequeue", "launch_failed_requeued_held"}

REMEMBERED_S = 60
"""A controller that remembers an ended job so long has told of it before it is forgotten."""
NO_ACCOUNTING = "accounting storage is disabled"
FORMAT = "%i|%T|%r|%N|%j"
RAISED_SIGNAL = re.compile(r"RaisedSignal:([0-9]{1,9})")
NOT_LAUNCHED = 53
"""The "signal" of a job whose output or work folder could not be opened on its node."""


class Slurm(Scheduler):
    """Slurm; written against 22.05."""

    kind = "slurm"
    commands = ("sbatch", "squeue", "scontrol", "scancel")
    default_request = (
        "-N {nodes} --ntasks-per-node={ranks_per_node} --cpus-per-task={cpus_per_rank}"
        " [--gpus-per-node={gpus_of_model}] [--mem={mem_mb}M] [-t {runtime_min}]"
    )
    reserved = (
        "-J", "--job-name", "-o", "--output", "-a", "--array", "--wrap", "--requeue", "-W", "--wait", "--test-only",
        "-M", "--clusters", "--cluster",
    )  # fmt: skip
    # What sbatch prints when the controller is away or busy: slurm_errno.c (22.05).
    away = (
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
    job_id = re.compile(r"^(\d+)(?:;\S+)?$", re.MULTILINE)  # `28`, or `28;name` where it names a cluster
    # Limits on how many jobs a user may have: squeue(1), "JOB REASON CODES"; sbatch prints the reason before its refusal.
    full = re.compile(r"\b(Assoc|QOS)(Max|Grp)Submit\w*")

    # What scancel says of a job that is gone, or is going.
    deleted = re.compile(r"Invalid job id specified|already completing or completed")

    def __init__(self, settings: SchedulerSettings, run: Run) -> None:
        super().__init__(settings, run)
        cluster = _cluster([*settings.options, *(settings.request or "").split()], os.environ)
        self.on = ["-M", cluster] if cluster else []

    @property
    def keeps_history(self) -> bool:
        """As long as `MinJobAge` says, and for ever with accounting."""
        try:
            shown = self.run(["scontrol", *self.on, "show", "config"], self.query_s).out
        except NoAnswer:
            return False
        age = re.search(r"^MinJobAge\s*=\s*([0-9]{1,9})", shown, re.MULTILINE)
        return "accounting_storage/slurmdbd" in shown or (age is not None and int(age[1]) >= REMEMBERED_S)

    def submit_command(self, request: Request) -> list[str]:
        """`sbatch --parsable -J NAME …`. A requeue is forbidden: resuming is decided by us, with the cause known."""
        log = checked_path(request.log, "\\", "Slurm").replace("%", "%%")  # sbatch(1), "filename pattern"
        return [
            "sbatch", "--parsable", "--no-requeue", "-J", request.name,
            *self.request_words(request),
            *self.place_words(request, "-p"),
            *([f"--qos={request.qos}"] if request.qos else []),
            *([f"--constraint={request.constraint}"] if request.constraint else []),
            *(["--nodelist=" + ",".join(request.hosts)] if request.hosts else []),
            *(["--exclude=" + ",".join(request.avoid)] if request.avoid else []),
            "-o", log,
            *self.settings.options,
            *self.extra_words(request),
            checked_path(request.script, "", "Slurm"),
        ]  # fmt: skip

    def statuses(self, jobs: Sequence[JobRef]) -> dict[str, Status]:
        """One squeue of all jobs of this user: it also finds by name, and no unknown id can spoil it."""
        statuses = {name: self._explained(status) for name, status in rows_of_jobs(jobs, self._table()).items()}
        return statuses | self._accounted([job for job in jobs if job.name not in statuses])

    def _table(self) -> list[tuple[str, str, Status]]:
        command = ["squeue", *self.on, "-h", "-t", "all", "-u", user_name(), "-o", FORMAT]
        answer = self.run(command, self.query_s)
        if answer.code != 0:
            raise NoAnswer(error_text("squeue", answer))
        lines = [line for line in answer.out.splitlines() if line.strip() and not line.startswith("CLUSTER:")]
        cells = [line.split("|", 4) for line in lines]
        rows = [row for row in cells if len(row) == 5 and row[0][:1].isdigit()]
        if lines and not rows:
            raise NoAnswer(f"squeue printed no table: {answer.words}")
        # A job of a federation has a row of each of its clusters: that of the one which runs it comes last.
        rows.sort(key=lambda row: row[1] != "REVOKED")
        return [(job, name, _status(job, word, reason, node)) for job, word, reason, node, name in rows]

    def _explained(self, status: Status) -> Status:
        """A failed job by the signal that ended it, which not every squeue names."""
        with suppress(NoAnswer):
            if status.cause is Cause.COMMAND:
                shown = self.run(["scontrol", *self.on, "-o", "show", "job", status.id], self.query_s).out
                if code := re.search(r"\bExitCode=[0-9]{1,9}:([0-9]{1,9})", shown):
                    by_signal = _status(status.id, "FAILED", number=int(code[1]))
                    return replace(by_signal, words=status.words, nodes=status.nodes)
        return status

    def _accounted(self, jobs: Sequence[JobRef]) -> dict[str, Status]:
        """Query the accounting for jobs gone from the queue; empty without accounting."""
        ids, names = [job.id for job in jobs if job.id], [job.name for job in jobs if not job.id]
        rows: list[tuple[str, str, Status]] = []
        try:
            rows += self._account(["-j", ",".join(ids)]) if ids else []
            rows += self._account(["--name", ",".join(names)]) if names else []
        except NoAnswer as error:
            if NOT_FOUND in str(error):
                return {}
            return {job.name: Status(job.id or "", State.UNANSWERED, str(error)) for job in jobs}
        return rows_of_jobs(jobs, rows)

    def _account(self, words: list[str]) -> list[tuple[str, str, Status]]:
        columns = ["-X", "-n", "-P", "-S", "now-14days", "-o", "jobid,state,exitcode,jobname"]
        answer = self.run(["sacct", *self.on, *columns, *words], self.query_s)
        if answer.code != 0 and NO_ACCOUNTING in answer.err + answer.out:
            return []
        if answer.code != 0:
            raise NoAnswer(error_text("sacct", answer))
        rows = []
        for cells in (line.split("|", 3) for line in answer.out.splitlines()):
            if len(cells) == 4 and cells[0].isdigit() and cells[3]:
                job_id, word, code, name = cells
                number = re.fullmatch(r"[0-9]{1,9}:([0-9]{1,9})", code)
                status = _status(job_id, word.partition(" ")[0], number=int(number[1]) if number else 0)
                if status.state in (State.ENDED, State.UNKNOWN):  # the living are in the queue, or lost with its state
                    rows.append((job_id, name, replace(status, words=word)))
        return rows

    def deletions(self, jobs: Sequence[JobRef]) -> Iterable[tuple[list[str], Sequence[JobRef]]]:
        """`scancel` once for all ids, and by name for each job without one."""
        numbered = [job for job in jobs if job.id]
        if numbered:
            yield ["scancel", *self.on, *(str(job.id) for job in numbered)], numbered
        for job in (job for job in jobs if not job.id):
            yield ["scancel", *self.on, "-u", user_name(), "-n", job.name], [job]


def _status(job_id: str, word: str, reason: str = "", node: str = "", number: int = 0) -> Status:
    """One job, by its row in a table of squeue, or of sacct with the signal that ended it."""
    state = State.ENDED if word in CAUSES else STATES.get(word, State.UNKNOWN)
    cause, reason = CAUSES.get(word, Cause.UNKNOWN), reason.strip()
    if state is State.QUEUED:
        base = reason.strip("()").partition(",")[0].replace(" ", "_")
        state = State.NEVER if base in NEVER else State.HELD if base in HELD else state
    if raised := RAISED_SIGNAL.match(reason):
        number = int(raised[1])
    if cause is Cause.COMMAND and (number == NOT_LAUNCHED or reason == "JobLaunchFailure"):
        cause = Cause.NODE
    elif cause is Cause.COMMAND and number:
        cause = Cause.SIGNAL
    words = word if reason in ("", "None") else f"{word} {reason}"
    return Status(job_id, state, words, cause, number if cause is Cause.SIGNAL else None, (node,) if node else ())


def _cluster(options: Sequence[str], environment: Mapping[str, str]) -> str:
    """Return the cluster of `-M` or `--clusters` in a submit line, or else of the variables that sbatch reads; mostly none.

    ValueError for several: an id would be that of a job in each of them, and a deletion would hit them all.
    """
    named = environment.get("SBATCH_CLUSTERS") or environment.get("SLURM_CLUSTERS") or ""
    for word, following in pairwise([*options, ""]):
        if word in ("-M", "--clusters", "--cluster"):
            named = following
        elif match := re.fullmatch(r"(?:--clusters?=|-M)(.+)", word):
            named = match[1]
    if named == "all" or "," in named:
        raise ValueError(f"jobs cannot be followed in several clusters of Slurm ({named}): name one by `-M`")
    return named
