"""Grid Engine: qsub, qstat, qacct, qdel."""

from __future__ import annotations

import random
import re
import time
from collections.abc import Iterable, Sequence
from dataclasses import replace
from xml.etree import ElementTree

from snakemake_executor_plugin_multinode.schedulers.command import NoAnswer
from snakemake_executor_plugin_multinode.schedulers.scheduler import (
    Cause,
    JobRef,
    Request,
    Scheduler,
    State,
    Status,
    checked_path,
    error_text,
    rows_of_jobs,
    user_name,
    whole,
)

# Job states are sets of letters: sge_status(5) of 8.1.9, "Job state". The first of these in the set decides.
LETTERS: dict[str, State] = {
    "E": State.NEVER,  # Eqw, Ehqw: an error keeps it from starting; it waits for a person
    "h": State.HELD,  # hqw, hRwq; `hr` is a running job with a hold on its next start, see _state
    **dict.fromkeys("sST", State.SUSPENDED),  # by a user, by its queue, by a threshold of its queue
    **dict.fromkeys("rt", State.RUNNING),  # t: being transferred to its node
    **dict.fromkeys("qwR", State.QUEUED),  # R: to be run again
    "z": State.RUNNING,  # ended; the accounting says how, soon
}

# The `failed` field of the accounting: sge_status(5) of 8.1.9, '"Failed" states'; execution_states.c has the numbers.
FAILED: dict[int, Cause] = {
    **dict.fromkeys((1, *range(3, 17)), Cause.NODE),  # before the job: spool, prolog, PE; after it: PE, epilog
    17: Cause.SIGNAL,
    **dict.fromkeys(range(18, 22), Cause.NODE),  # the shepherd or the daemon died, the node was restarted
    **dict.fromkeys((24, 25), Cause.PREEMPTED),  # migrated, rescheduled
    **dict.fromkeys(range(26, 39), Cause.NODE),  # output file, shell, folder, passwords, groups
    30: Cause.COMMAND,
    37: Cause.WALLTIME,
    100: Cause.SIGNAL,  # "assumedly after job": died of a signal
}

ACCOUNT_S = 10.0
"""Seconds that one round may spend in the accounting, which may have gigabytes to search for each job: the jobs that are
not reached are asked about in the next round, and all others have their answers meanwhile."""


class Sge(Scheduler):
    """Grid Engine; written against 8.1.9 (Son of Grid Engine)."""

    kind = "sge"
    commands = ("qsub", "qstat", "qacct", "qdel")
    # A limit of memory is left to the site's own template: Grid Engine knows address space only, and under a tight
    # `h_vmem` CUDA libraries cannot be loaded.
    default_request = "[-pe mpi {slots}] [-l gpu={gpus_per_rank}] [-l h_rt={runtime_s}]"
    reserved = ("-N", "-o", "-t", "-r", "-S", "-sync", "-j")
    away = (
        "unable to send message to qmaster",
        "unable to contact qmaster",
        "got send error",
        "got send timeout",
        "failed receiving gdi request",
        "commlib",
        "timed out",
    )
    job_id = re.compile(r"^\d+$", re.MULTILINE)  # as qsub -terse prints it; an array would be `39.1-2:1`
    # Limits on how many jobs a user may have: max_u_jobs of sge_conf(5), maxujobs of sched_conf(5); seen on 8.1.9.
    full = re.compile(r"[Oo]nly \d+ jobs are allowed")
    # What qdel says of a job that it deletes, or that is gone.
    deleted = re.compile(r"has registered the job|has deleted job|is already in deletion|does not exist")

    def submit_command(self, request: Request) -> list[str]:
        """`qsub -terse -N NAME …`; `-r n`: resuming is decided by us, with the cause known."""
        # `$` begins a variable in the path of the output, `:` ends a host name, `,` a path.
        log = checked_path(request.log, "$:,", "Grid Engine")
        return [
            "qsub", "-terse", "-N", request.name, "-S", "/bin/bash", "-r", "n", "-j", "y", "-o", log,
            *self.request_words(request),
            *self.place_words(request, "-q"),
            *_hosts(request),
            *self.settings.options,
            *self.extra_words(request),
            checked_path(request.script, "", "Grid Engine"),
        ]  # fmt: skip

    def is_option(self, word: str, option: str) -> bool:
        """Options are whole words: `-t` is another than `-tc`."""
        return word == option

    def statuses(self, jobs: Sequence[JobRef]) -> dict[str, Status]:
        """One qstat for the living, then qacct for each of those that have left it."""
        answer = self.run(["qstat", "-u", user_name(), "-r", "-xml"], self.query_s)
        if answer.code != 0:
            raise NoAnswer(error_text("qstat", answer))
        statuses = rows_of_jobs(jobs, self._living(answer.out))
        return statuses | self._accounted([job for job in jobs if job.name not in statuses])

    def why_waiting(self, status: Status) -> str:
        """The state, and the `scheduling info` of `qstat -j`, which a site may have switched off (`schedd_job_info`)."""
        answer = self.run(["qstat", "-j", status.id], self.query_s)
        _, heading, info = answer.out.partition("scheduling info:")
        lines = [" ".join(line.split()) for line in info.splitlines() if line.strip()]
        return f"{status.words}: {'; '.join(lines)}" if heading and lines else status.words

    def _accounted(self, jobs: Sequence[JobRef]) -> dict[str, Status]:
        """Query the accounting, job by job in a random order, as long as it answers and there is time."""
        end_s = time.monotonic() + ACCOUNT_S
        statuses: dict[str, Status] = {}
        waiting = random.sample(jobs, len(jobs))
        silent = "qacct takes long: the other jobs are asked about in the next round"
        while waiting and time.monotonic() < end_s:
            job = waiting.pop()
            if (status := self._ended(job)) is not None:
                statuses[job.name] = status
        return statuses | {job.name: Status("", State.UNANSWERED, silent) for job in waiting}

    def _living(self, xml: str) -> list[tuple[str, str, Status]]:
        try:
            root = ElementTree.fromstring(xml)
        except ElementTree.ParseError as error:
            raise NoAnswer(f"qstat printed no XML: {error}") from None
        if root.tag != "job_info":
            raise NoAnswer(f"qstat printed <{root.tag}> in place of <job_info>")
        rows = []
        for entry in root.iter("job_list"):
            job_id, name = entry.findtext("JB_job_number") or "", entry.findtext("full_job_name") or ""
            name = name or entry.findtext("JB_name") or ""
            letters = (entry.findtext("state") or "").strip()
            queue = entry.findtext("queue_name") or ""
            node = queue.partition("@")[2]
            if job_id.isdigit() and name:
                rows.append((job_id, name, Status(job_id, _state(letters), letters, nodes=(node,) if node else ())))
        return rows

    def _ended(self, job: JobRef) -> Status | None:
        """The record of the accounting; the last one, where a job was run more than once.

        None too where the accounting is too large to be searched in time: the job's own files tell whether it still runs.
        """
        try:
            answer = self.run(["qacct", "-j", job.id or job.name], self.query_s)
        except NoAnswer:
            return None
        records = _records(answer.out) if answer.code == 0 else []
        record = rows_of_jobs([job], [(one["jobnumber"], one.get("jobname", ""), one) for one in records]).get(job.name)
        if record is None:
            return None
        failed, code = (whole((record.get(key, "0").split() or ["0"])[0]) for key in ("failed", "exit_status"))
        words = f"failed {record.get('failed', '0')}, exit_status {record.get('exit_status', '0')}"
        cause = Cause.UNKNOWN if failed is None else FAILED.get(failed, Cause.UNKNOWN)
        if failed == 0 and code is not None:
            cause = Cause.FINISHED if code == 0 else Cause.COMMAND
        if "enforced h_" in record.get("failed", ""):  # 37 in 8.1.9, 44 in Univa's and Altair's
            cause = _limit(record)
        node = record.get("hostname", "")
        status = Status(record["jobnumber"], State.ENDED, words, cause, nodes=(node,) if node else ())
        is_signal = cause is Cause.SIGNAL and code is not None and code > 128
        return replace(status, signal=(code or 0) - 128) if is_signal else status

    def deletions(self, jobs: Sequence[JobRef]) -> Iterable[tuple[list[str], Sequence[JobRef]]]:
        """`qdel` with all ids in one call; names do as well."""
        return [(["qdel", *(job.id or job.name for job in jobs)], jobs)]


def _hosts(request: Request) -> list[str]:
    """Which hosts a job has to get, or is not to get: complex(5), "RESTRING" with logical operators."""
    if request.hosts:
        return ["-l", "hostname=" + "|".join(request.hosts)]
    return ["-l", "hostname=" + "&".join(f"!{node}" for node in request.avoid)] if request.avoid else []


def _state(letters: str) -> State:
    if "d" in letters:  # being deleted: dr, dt, ds, …
        return State.RUNNING
    if "h" in letters and set(letters) & set("rt"):
        return State.RUNNING
    return next((state for letter, state in LETTERS.items() if letter in letters), State.UNKNOWN)


def _limit(record: dict[str, str]) -> Cause:
    """Grid Engine has enforced a limit of time or of memory; the request of the job tells which it had reached."""
    time_limit = re.search(r"\bh_rt=([0-9]{1,18})", record.get("category", ""))
    wall = re.match(r"[0-9]{1,18}(\.[0-9]+)?", record.get("ru_wallclock", ""))
    if time_limit and wall:
        return Cause.WALLTIME if float(wall[0]) >= int(time_limit[1]) - 5 else Cause.MEMORY
    return Cause.WALLTIME


def _records(text: str) -> list[dict[str, str]]:
    """qacct's records: `key   value` lines below a line of `=`."""
    records: list[dict[str, str]] = []
    for line in text.splitlines():
        if line.startswith("====="):
            records.append({})
        elif records and line.strip():
            key, _, value = line.strip().partition(" ")
            records[-1][key] = value.strip()
    return [record for record in records if record.get("jobnumber", "").isdigit()]
