"""Slurm: sbatch, squeue, scontrol, scancel; sacct where the site has it."""

from __future__ import annotations

import os
import pwd
import re
from collections.abc import Sequence
from datetime import datetime

from snakemake_executor_plugin_scalestudy.schedulers import (
    Cause,
    Job,
    NoAnswer,
    Refused,
    Request,
    Scheduler,
    State,
    Status,
    checked_name,
    checked_path,
)
from snakemake_executor_plugin_scalestudy.schedulers.command import Answer
from snakemake_executor_plugin_scalestudy.schedulers.settings import checked_word

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
    "REVOKED": (State.ENDED, Cause.CANCELLED),
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
)
UNKNOWN_ID = "Invalid job id specified"
ROW = re.compile(
    r"^(?P<id>\d+)\|(?P<state>[A-Z_]+)\|(?P<reason>[^|]*)\|(?P<nodes>[^|]*)\|(?P<start>[^|]*)\|(?P<name>\S+)$",
    re.MULTILINE,
)
# scontrol: "Exited with exit code N" is ExitCode=N:0, a signal ExitCode=0:N.
EXIT_CODE = re.compile(r"\bExitCode=(\d+):(\d+)")
REASON = re.compile(r"\bReason=(\S+)")


class Slurm(Scheduler):
    """Slurm; written against 22.05."""

    kind = "slurm"
    commands = ("sbatch", "squeue", "scontrol", "scancel")
    remembers_deleted = True
    default_request = (
        "-N {nodes} --ntasks-per-node={ranks_per_node} --cpus-per-task={cpus_per_rank}"
        " [--gpus-per-node={gpus_per_node}] [--mem={mem_mb}M] [-t {runtime_min}]"
    )

    def submit_command(self, request: Request) -> list[str]:
        """`sbatch --parsable -J NAME …`. A requeue is forbidden: going on is decided by us, with the cause known."""
        queue = request.queue or self.settings.queue
        log = checked_path(request.log, "\\", "Slurm").replace("%", "%%")  # sbatch(1), "filename pattern"
        return [
            "sbatch", "--parsable", "--no-requeue", "-J", checked_name(request.name),
            *self.request_words(request),
            *(["-p", checked_word(queue, "the queue")] if queue else []),
            *(["-A", self.settings.account] if self.settings.account else []),
            *(["--exclude=" + ",".join(request.avoid)] if request.avoid else []),
            "-o", log,
            *self.settings.options,
            checked_path(request.script, "", "Slurm"),
        ]  # fmt: skip

    def submit(self, request: Request) -> str:
        """The id that `--parsable` prints, without the cluster's name."""
        answer = self.run(self.submit_command(request), self.submit_s)
        lines = answer.out.split()
        if answer.code == 0 and lines and re.fullmatch(r"\d+(;\S+)?", lines[-1]):
            return lines[-1].partition(";")[0]
        if answer.code == 0 or any(words in answer.err for words in AWAY):
            raise NoAnswer(f"sbatch: {answer.words}")
        raise Refused(f"sbatch: {answer.words}")

    def statuses(self, jobs: Sequence[Job]) -> dict[str, Status]:
        """One squeue of all jobs of this user: it also finds by name, and no unknown id can spoil it."""
        user = pwd.getpwuid(os.getuid()).pw_name
        answer = self.run(["squeue", "-h", "-t", "all", "-u", user, "-o", "%i|%T|%r|%N|%S|%j"], self.query_s)
        if answer.code != 0:
            raise NoAnswer(f"squeue: {answer.words}")
        rows = {row["name"]: row for row in ROW.finditer(answer.out)}
        if answer.out.strip() and not rows:
            raise NoAnswer(f"squeue printed no table: {answer.words}")
        found = {job.name: self._status(rows[job.name]) for job in jobs if job.name in rows}
        missing = [job for job in jobs if job.name not in found]
        return found | (self._accounted(missing) if missing else {})

    def _status(self, row: re.Match[str]) -> Status:
        word, reason = row["state"], row["reason"].strip()
        state, cause = STATES.get(word, (State.UNKNOWN, Cause.UNKNOWN))
        words = word if reason in ("", "None") else f"{word} {reason}"
        nodes = tuple(name for name in (row["nodes"],) if name)
        if state is State.QUEUED:
            base = reason.strip("()").partition(",")[0]
            state = State.NEVER if base in NEVER else State.HELD if base in HELD else state
        if state is State.ENDED and cause is Cause.COMMAND:
            return self._failed(row["id"], words, reason, nodes)
        return Status(row["id"], state, words, cause, nodes=nodes, started_s=_seconds(row["start"]))

    def _failed(self, job_id: str, words: str, reason: str, nodes: tuple[str, ...]) -> Status:
        """FAILED: by exit status, by a signal, or because it could not be launched."""
        if reason in ("JobLaunchFailure", "RaisedSignal:53(Real-time_signal_19)", "RaisedSignal:53"):
            return Status(job_id, State.ENDED, words, Cause.NODE, nodes=nodes)
        try:
            shown = self.run(["scontrol", "-o", "show", "job", job_id], self.query_s)
        except NoAnswer:
            shown = Answer(1, "", "")
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

    def _accounted(self, jobs: Sequence[Job]) -> dict[str, Status]:
        """What only the accounting still knows; without accounting, nothing."""
        names = ",".join(job.name for job in jobs)
        try:
            answer = self.run(
                ["sacct", "-X", "-n", "-P", "-S", "now-14days", "--name", names, "-o", "jobid,state,exitcode,jobname"],
                self.query_s,
            )
        except NoAnswer:
            return {}
        if answer.code != 0:
            return {}
        found = {}
        for line in answer.out.splitlines():
            job_id, _, rest = line.partition("|")
            word, _, rest = rest.partition("|")
            code, _, name = rest.partition("|")
            state, cause = STATES.get(word.partition(" ")[0], (State.UNKNOWN, Cause.UNKNOWN))
            if not job_id.isdigit() or not name:
                continue
            status = Status(job_id, state, word, cause)
            if cause is Cause.COMMAND:
                status = self._by_code(job_id, word, re.fullmatch(r"(\d+):(\d+)", code))
            found[name] = status
        return found

    def cancel(self, jobs: Sequence[Job]) -> None:
        """`scancel` with all ids in one call; a job whose id never came back is named."""
        user = pwd.getpwuid(os.getuid()).pw_name
        ids = [job.id for job in jobs if job.id]
        calls = [["scancel", *ids]] if ids else []
        calls += [["scancel", "-u", user, "-n", job.name] for job in jobs if not job.id]
        for call in calls:
            answer = self.run(call, self.submit_s)
            if answer.code != 0 and UNKNOWN_ID not in answer.err:
                raise NoAnswer(f"scancel: {answer.words}")


def _seconds(text: str) -> float | None:
    """A time of squeue in Unix seconds: it prints local time, `N/A` where there is none."""
    try:
        return datetime.fromisoformat(text).timestamp()
    except ValueError:
        return None
