"""OpenPBS and PBS Professional: qsub, qstat, qselect, qdel."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from snakemake_executor_plugin_multinode.schedulers.command import CommandAnswer, NoAnswer
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
    whole,
)

# Job states: JOB_STATE_LTR_* in src/include/job.h (23.06.06), and pbs_job_attributes(7B), "job_state".
STATES: dict[str, State] = {
    **dict.fromkeys("QWTM", State.QUEUED),  # W: waits for its time or for files; T, M: moves to another queue or server
    "H": State.HELD,
    **dict.fromkeys("RBE", State.RUNNING),  # B: an array that has begun; E: exiting, output is being brought back
    **dict.fromkeys("SU", State.SUSPENDED),  # U: by use of the workstation
    **dict.fromkeys("FX", State.ENDED),  # X: a subjob
}

# Exit_status below 0: JOB_EXEC_* in src/include/job.h (23.06.06); -29 and -27 also seen.
EXIT: dict[int, Cause] = {
    **dict.fromkeys(range(-7, 0), Cause.NODE),  # could not be started; the daemon of the node was started again
    -10: Cause.NODE,  # no such user there
    **dict.fromkeys((-11, -12, -14, -15, -16, -18), Cause.PREEMPTED),  # to be run again; checkpointed and killed
    -13: Cause.NODE,
    **dict.fromkeys((-17, -19), Cause.CANCELLED),  # a hook of the site deleted it
    **dict.fromkeys((-20, -21, -22, -23, -30), Cause.NODE),
    **dict.fromkeys((-24, -25), Cause.COMMAND),  # more CPU time per second than asked for
    **dict.fromkeys((-26, -27), Cause.MEMORY),
    **dict.fromkeys((-28, -29), Cause.WALLTIME),
}
SUBSTATE_TERMINATED, SUBSTATE_FINISHED, SUBSTATE_FAILED = 91, 92, 93  # JOB_SUBSTATE_* in job.h
FORMAT = ["-f", "-F", "dsv", "-D", "\x1f"]
SIGNAL_BASE = 256  # Exit_status of a job that died of signal N is 256+N
SHELL_BASE = 128  # a shell's exit status after a signal to its command
UNKNOWN_ID = 153  # PBSE_UNKJOBID 15001, as an exit status

NO_HISTORY = "job history"
NEVER = "Can Never Run"
CHUNKS = re.compile(r"select=\d+((?::[^+,]*)?)")


class Pbs(Scheduler):
    """OpenPBS and PBS Professional; written against OpenPBS 23.06.06."""

    kind = "pbs"
    commands = ("qsub", "qstat", "qselect", "qdel")  # Slurm has wrappers of the others, which drop most of a request
    copies_output = True
    default_request = (
        "-l select={nodes}:ncpus={cpus_per_node}:mpiprocs={ranks_per_node}[:ngpus={gpus_per_node}][:mem={mem_mb}mb]"
        " -l place=scatter [-l walltime={walltime}]"
    )

    reserved = ("-N", "-o", "-J", "-r", "-S", "-I")
    away = (
        "Connection refused",
        "cannot connect to server",
        "could not connect",
        "Connection timed out",
        "No Permission.\nqstat: cannot connect",
        "server is shutting down",
        "Server shutting down",
        "Premature end of message",
        "End of File",
        "Server could not connect to MOM",
        "Internal Error",
        "System error",
        "busy",
    )
    job_id = re.compile(r"^\d+\.\S+$", re.MULTILINE)
    # Limits in qsub's words, as OpenPBS's own tests of limits have them.
    full = re.compile(r"would exceed .*limit|Maximum number of jobs already in (queue|complex)", re.IGNORECASE)

    # What qdel says of a job that is gone, or is going.
    deleted = re.compile(
        r"Unknown Job|has finished|Request invalid for state of job|already being deleted", re.IGNORECASE
    )

    def submit_command(self, request: Request) -> list[str]:
        """`qsub -N NAME …`; `-r n`: resuming is decided by us, with the cause known."""
        return [
            "qsub", "-N", request.name, "-S", "/bin/bash", "-r", "n", "-j", "oe",
            "-o", checked_path(request.log, ":,", "PBS", ascii_only=True),  # 23.06.06 answers `illegal -o value` to others
            *_on_hosts(self.request_words(request), request.hosts),
            *self.place_words(request, "-q"),
            *self.settings.options,
            *self.extra_words(request),
            checked_path(request.script, "", "PBS"),
        ]  # fmt: skip

    def statuses(self, jobs: Sequence[JobRef]) -> dict[str, Status]:
        """qstat with all ids; jobs without an id are looked for by name."""
        found = [JobRef(job.name, job.id or self._find(job.name)) for job in jobs]
        with_id = [job for job in found if job.id]
        return self._known(with_id) if with_id else {}

    def _known(self, jobs: Sequence[JobRef]) -> dict[str, Status]:
        answer = self._with_ended("qstat", [*FORMAT, *(job.id or "" for job in jobs)])
        rows = [fields for line in answer.out.splitlines() if (fields := _fields(line)) is not None]
        unknown_alone = answer.code == UNKNOWN_ID and "Unknown Job" in answer.err
        if (answer.code != 0 and not unknown_alone and not _gone(answer)) or (answer.out.strip() and not rows):
            raise NoAnswer(error_text("qstat", answer))
        theirs = rows_of_jobs(jobs, [(fields["id"], fields["Job_Name"], fields) for fields in rows])
        return {name: _status(fields) for name, fields in theirs.items()}

    def _find(self, name: str) -> str | None:
        """The id of a job of that name, living or ended; names are unique to a submission."""
        answer = self._with_ended("qselect", ["-N", name])
        job_ids = self.job_id.findall(answer.out)
        if answer.code != 0 or (answer.out.strip() and not job_ids):
            raise NoAnswer(error_text("qselect", answer))
        return job_ids[-1] if job_ids else None

    def _with_ended(self, command: str, words: list[str]) -> CommandAnswer:
        """Ask about jobs that are over too, where this PBS keeps a record of them."""
        answer = self.run([command, "-x", *words], self.query_s)
        if answer.code != 0 and NO_HISTORY in answer.err:
            answer = self.run([command, *words], self.query_s)
        return answer

    def deletions(self, jobs: Sequence[JobRef]) -> Iterable[tuple[list[str], Sequence[JobRef]]]:
        """`qdel` for one job after the other; one without an id is looked for.

        Not with all ids in one call: an id at the end of the list that PBS has forgotten ends the server
        (https://github.com/openpbs/openpbs/pull/2716; seen on 23.06.06).
        """
        for job in jobs:
            if job_id := job.id or self._find(job.name):
                yield ["qdel", job_id], [job]


def _on_hosts(words: Sequence[str], hosts: Sequence[str]) -> list[str]:
    """The resource request with a chunk for each host: pbs_resources(7), `select=1:ncpus=4:host=n01+1:ncpus=4:host=n02`.

    ValueError, with a sentence, for a request that has no chunks of equal nodes.
    """
    if not hosts:
        return list(words)
    matches = [CHUNKS.fullmatch(word) for word in words]
    if sum(match is not None for match in matches) != 1:
        raise ValueError(
            f"a job on nodes by name needs a request with one chunk, `-l select={{nodes}}:…`, not {' '.join(words)!r}"
        )
    chunks = ["+".join(f"1{match[1]}:host={host}" for host in hosts) if match else "" for match in matches]
    return [f"select={chunk}" if chunk else word for word, chunk in zip(words, chunks, strict=True)]


def _gone(answer: CommandAnswer) -> bool:
    """Only the ids asked for were wrong: unknown, or (without history) ended."""
    lines = [line for line in answer.err.splitlines() if line.strip()]
    return bool(lines) and all("Unknown Job" in line or "has finished" in line for line in lines)


def _fields(line: str) -> dict[str, str] | None:
    """One line of `qstat -f -F dsv`: `Job Id: ID<sep>name=value<sep>…`."""
    first, *rest = line.split("\x1f")
    head = re.match(r"Job Id: ?(\S+)", first)
    if head is None:
        return None
    fields = {"id": head[1]}
    for part in rest:
        name, _, value = part.partition("=")
        fields.setdefault(name.strip(), value.strip())
    return fields if "Job_Name" in fields and "job_state" in fields else None


def _status(fields: dict[str, str]) -> Status:
    state = STATES.get(fields["job_state"], State.UNKNOWN)
    comment = fields.get("comment", "")
    words = " ".join(word for word in (fields["job_state"], comment) if word)
    nodes = tuple(dict.fromkeys(re.findall(r"(?:^|\+)\(?([^/+(]+)/", fields.get("exec_host", ""))))
    if state is State.QUEUED and NEVER in comment:
        state = State.NEVER
    if state is not State.ENDED:
        return Status(fields["id"], state, words, nodes=nodes)
    cause, number, record = _how(fields)
    return Status(fields["id"], state, f"{record}{': ' + comment if comment else ''}", cause, number, nodes)


def _how(fields: dict[str, str]) -> tuple[Cause, int | None, str]:
    """Return the end of a finished job: cause, signal, and PBS's record."""
    substate = whole(fields.get("substate", str(SUBSTATE_FINISHED)))
    text = fields.get("Exit_status")
    if text is None:
        return Cause.CANCELLED, None, f"deleted before it ran (substate {substate})"
    status = whole(text)
    if status is None or substate is None:
        return Cause.UNKNOWN, None, f"Exit_status {text[:40]}, substate {fields.get('substate', '')[:40]}"
    record = f"Exit_status {status}, substate {substate}"
    if substate == SUBSTATE_TERMINATED:
        return Cause.CANCELLED, None, record
    number = next((status - base for base in (SIGNAL_BASE, SHELL_BASE) if base < status < base + 65), None)
    if number is not None:
        return Cause.SIGNAL, number, record
    if status == 0:
        return (Cause.FINISHED if substate == SUBSTATE_FINISHED else Cause.UNKNOWN), None, record
    return EXIT.get(status, Cause.COMMAND if status > 0 else Cause.UNKNOWN), None, record
