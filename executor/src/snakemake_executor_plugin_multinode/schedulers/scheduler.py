"""The interface of every batch system, and its vocabulary.

`submit_command` is pure: the plan prints it. Everything that talks to a scheduler goes through `run`, so that recorded
answers can be replayed.
"""

from __future__ import annotations

import os
import pwd
import re
import shlex
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Any, ClassVar, TypeVar

from snakemake_executor_plugin_multinode.schedulers.command import CommandAnswer, NoAnswer
from snakemake_executor_plugin_multinode.site import ANY, SchedulerSettings, checked_word, nearest


@dataclass(frozen=True)
class Request:
    """One submission. Memory is per node in MiB, the run time is that of this one job in minutes."""

    name: str
    script: Path
    log: Path
    nodes: int
    ranks_per_node: int
    gpus_per_node: int
    cpus_per_rank: int
    mem_mb: int | None
    runtime_min: int | None
    queue: str | None
    gpus_held_per_node: int = 0
    """GPUs of a node that nobody else can use meanwhile, where the job has the node to itself; less than what it asks
    for counts as that."""
    avoid: tuple[str, ...] = ()
    """Nodes that failed under this job before; asked to be left out where the system can."""
    account: str | None = None
    """What is charged for this job, in place of the site's account."""
    qos: str | None = None
    constraint: str | None = None
    """A property that the nodes must have, in the scheduler's words."""
    gpu_model: str | None = None
    extra: tuple[str, ...] = ()
    """Further words of the submit line, after those of the site."""
    hosts: tuple[str, ...] = ()
    """The nodes that the job has to get, as many as `nodes`; none: any."""

    @property
    def gpus_held(self) -> int:
        """GPUs that the job asks for or keeps idle, over all nodes."""
        return self.nodes * max(self.gpus_per_node, self.gpus_held_per_node)

    @property
    def gpu_hours(self) -> float | None:
        """GPU hours that this submission may use; None where it has no limit of time."""
        gpus = self.gpus_held
        if gpus == 0:
            return 0.0
        return None if self.runtime_min is None else gpus * self.runtime_min / 60


class State(Enum):
    """A scheduler's state of a job."""

    QUEUED = "queued"
    HELD = "held"
    RUNNING = "running"
    SUSPENDED = "suspended"
    NEVER = "cannot run as things are"
    ENDED = "ended"
    UNKNOWN = "unknown"
    """A word that is in none of the tables: nothing follows from it."""
    UNANSWERED = "not answered"
    """The part of the scheduler that could tell gave no answer about this job: nothing follows for it."""


class Cause(Enum):
    """Why a job ended, as far as the scheduler tells."""

    FINISHED = "finished"
    COMMAND = "the command failed"
    SIGNAL = "killed by a signal"
    WALLTIME = "the walltime was reached"
    MEMORY = "out of memory"
    NODE = "the node or its software failed"
    PREEMPTED = "preempted"
    CANCELLED = "cancelled"
    UNKNOWN = "unknown"


@dataclass(frozen=True)
class Status:
    """One job as the scheduler sees it; `words` are the scheduler's own, for messages."""

    id: str
    state: State
    words: str
    cause: Cause = Cause.UNKNOWN
    signal: int | None = None
    """The signal that ended it, where that is all that is known."""
    nodes: tuple[str, ...] = ()


@dataclass(frozen=True)
class JobRef:
    """A job to ask about. Without an id it is looked for by its name, which is unique to one submission."""

    name: str
    id: str | None


def user_name() -> str:
    """This process's user, whatever its environment says."""
    return pwd.getpwuid(os.getuid()).pw_name


def error_text(command: str, answer: CommandAnswer) -> str:
    """A command's message after its name, which it may have put there itself."""
    return f"{command}: {answer.words.removeprefix(f'{command}: ')}"


class Refused(Exception):
    """The scheduler answered that it does not take this job; the message has its own words."""


class LimitReached(Exception):
    """The scheduler does not take this job of this user for now; the message has its own words."""


OPTIONAL = re.compile(r"\[([^\[\]]*)\]")
NAME = re.compile(r"\{([^{}]*)\}")
UNIQUE = re.compile(r"\.[0-9a-f]{12}(?![0-9a-f])")
"""What is in the name of one submission only; `records.job_name` makes it."""

Row = TypeVar("Row")
Run = Callable[[Sequence[str], float], CommandAnswer]


class Scheduler(ABC):
    """One batch system."""

    kind: ClassVar[str]
    commands: ClassVar[tuple[str, ...]]
    """What must be in PATH."""
    default_request: ClassVar[str]
    """The resource request where the site names no other; see `filled` for the notation."""
    on: Sequence[str] = ()
    """Words of each command that name the cluster to which the site sends jobs; none: that of this host."""
    query_s: ClassVar[float] = 25.0
    """Time limit of a query: a slow one is given up, and asked again."""
    submit_s: ClassVar[float] = 90.0
    """Time limit of a submission or deletion."""
    reserved: ClassVar[tuple[str, ...]] = ()
    """Options that a job's own words may not have."""
    away: ClassVar[tuple[str, ...]]
    """Words of its commands where it cannot be reached, in contrast to a refusal."""
    job_id: ClassVar[re.Pattern[str]]
    """An id, as the submit command prints it on a line of its own; warnings may stand before it."""
    full: ClassVar[re.Pattern[str]]
    """A refusal by a limit on how many jobs a user may have, or on their size."""
    deleted: ClassVar[re.Pattern[str]]
    """What its deleting command says of a job that is deleted, or gone."""
    copies_output: ClassVar[bool] = False
    """Whether a job's output is copied to its place after its script has ended: until then the place must be there."""

    def __init__(self, settings: SchedulerSettings, run: Run) -> None:
        self.settings, self.run = settings, run

    @property
    def keeps_history(self) -> bool:
        """Whether a deleted job always leaves a record for a while, so that one without was lost."""
        return False

    @abstractmethod
    def submit_command(self, request: Request) -> list[str]:
        """Compose the submit line, one word per element. ValueError, with a sentence, for a request beyond it."""

    def submit(self, request: Request) -> str:
        """Submit; the job's id.

        Refused if the scheduler says no; LimitReached if it says not now; NoAnswer if it is unclear whether it has it.
        """
        answer = self.run(self.submit_command(request), self.submit_s)
        ids = self.job_id.findall(answer.out)
        if answer.code == 0 and ids:
            return str(ids[-1])
        words = error_text(self.commands[0], answer)
        if answer.code == 0 or any(one in answer.err for one in self.away):
            raise NoAnswer(words)
        if self.full.search(answer.err + answer.out):
            raise LimitReached(words)
        raise Refused(words)

    @abstractmethod
    def statuses(self, jobs: Sequence[JobRef]) -> dict[str, Status]:
        """Query these jobs; the answers by name, without the unknown ones.

        `State.UNANSWERED` for those about which there was no answer. NoAnswer where there was none about any job.
        """

    @abstractmethod
    def deletions(self, jobs: Sequence[JobRef]) -> Iterable[tuple[list[str], Sequence[JobRef]]]:
        """Compose the commands that delete jobs that are still there, each with its jobs. NoAnswer like `statuses`."""

    def cancel(self, jobs: Sequence[JobRef]) -> dict[str, str]:
        """Ask for the deletion of jobs; by name, those that may still be there after that, and why.

        A scheduler that does not answer to one command is not sent the others.
        """
        reasons: dict[str, str] = {}
        try:
            for argv, batch in self.deletions(jobs):
                reasons |= self._delete(argv, batch)
        except NoAnswer as error:
            reasons = {job.name: str(error) for job in jobs} | reasons
        return {name: why for name, why in reasons.items() if why}

    def _delete(self, argv: Sequence[str], jobs: Sequence[JobRef]) -> dict[str, str]:
        """By name, why each job may still be there after a deleting command, in its words; empty where it is not.

        A line that does not name one of them is about all. NoAnswer where the scheduler cannot be reached.
        """
        answer = self.run(argv, self.submit_s)
        text = answer.err + answer.out
        if answer.code != 0 and any(words in text for words in self.away):
            raise NoAnswer(error_text(argv[0], answer))
        # The number of its id, else its name.
        called = {job: re.escape(re.split(r"[.;]", job.id)[0] if job.id else job.name) for job in jobs}
        lines = [line for line in text.splitlines() if line.strip()]
        reasons = dict.fromkeys(
            (job.name for job in jobs), "" if lines or answer.code == 0 else error_text(argv[0], answer)
        )
        for line in lines if answer.code != 0 else ():
            if not self.deleted.search(line):
                theirs = [job for job in jobs if re.search(rf"(?<![\w.]){called[job]}(?!\w)", line)]
                reasons |= {
                    job.name: error_text(argv[0], CommandAnswer(answer.code, "", line)) for job in theirs or jobs
                }
        return reasons

    def why_waiting(self, status: Status) -> str:
        """Why a job in the queue does not start, by the scheduler; for one job at a time. NoAnswer like `statuses`."""
        return status.words

    def request_words(self, request: Request) -> list[str]:
        """The resource request, by the site's template or the system's own."""
        return filled(self.settings.request or self.default_request, values_of(request, self.settings))

    def place_words(self, request: Request, option: str) -> list[str]:
        """The job's queue, by the option for it unless the site's template has it, and its account, or else the site's."""
        queue, account = request.queue or self.settings.queue, request.account or self.settings.account
        is_placed = "{queue}" in (self.settings.request or "")
        words = [option, checked_word(queue, "the queue")] if queue and not is_placed else []
        return [*words, "-A", account] if account else words

    def extra_words(self, request: Request) -> list[str]:
        """The job's own words. ValueError where one of them is an option that this executor sets itself."""
        for option in self.reserved:
            if any(self.is_option(word, option) for word in request.extra):
                why = "this executor sets it, or could not follow the job"
                raise ValueError(f"the resource `{self.kind}_extra` may not hold {option}: {why}")
        return list(request.extra)

    def is_option(self, word: str, option: str) -> bool:
        """Whether a word of a submit line is this option, perhaps with its value, perhaps abbreviated: getopt_long(3)."""
        if option.startswith("--"):
            name = word.partition("=")[0]
            return len(name) > len("--") and option.startswith(name)
        return word.startswith(option)


def values_of(request: Request, settings: SchedulerSettings) -> dict[str, Any]:
    """Return the fields of a template. None and 0 leave optional parts out."""
    ranks = request.nodes * request.ranks_per_node
    cpus_per_node = request.ranks_per_node * request.cpus_per_rank
    # Of Grid Engine: a core or, where there are GPUs, which it counts per slot, a rank. One slot needs no environment.
    slots = ranks if request.gpus_per_node else ranks * request.cpus_per_rank
    model = f"{request.gpu_model}:" if request.gpu_model else ""
    minutes = request.runtime_min
    return {
        "name": request.name,
        "queue": request.queue or settings.queue,
        "account": request.account or settings.account,
        "qos": request.qos,
        "constraint": request.constraint,
        "environment": _environment(request, settings),
        "nodes": request.nodes,
        "ranks": ranks,
        "ranks_per_node": request.ranks_per_node,
        "slots": slots if slots > 1 else None,
        "cpus": ranks * request.cpus_per_rank,
        "cpus_per_node": cpus_per_node,
        "cpus_per_rank": request.cpus_per_rank,
        "gpus": request.nodes * request.gpus_per_node,
        "gpus_per_node": request.gpus_per_node,
        "gpus_per_rank": _share(request.gpus_per_node, request.ranks_per_node),
        "gpu_model": request.gpu_model,
        "gpus_of_model": f"{model}{request.gpus_per_node}" if request.gpus_per_node else None,
        "mem_mb": request.mem_mb,
        "mem_mb_per_rank": None if request.mem_mb is None else -(-request.mem_mb // request.ranks_per_node),
        "mem_mb_per_cpu": None if request.mem_mb is None else -(-request.mem_mb // cpus_per_node),
        "runtime_min": minutes,
        "runtime_s": None if minutes is None else minutes * 60,
        "walltime": None if minutes is None else f"{minutes // 60:02d}:{minutes % 60:02d}:00",
    }


def filled(template: str, values: Mapping[str, Any]) -> list[str]:
    """The words of a request by a template: `-l select={nodes}[:ngpus={gpus_per_node}] [-l walltime={walltime}]`.

    A name in braces stands for its value. A part in square brackets is left out where a value in it is unknown or 0.
    The text is split into words before values are put in, so that a value is never more than a part of one word.
    ValueError, with a sentence, for a name that does not exist or has no value.
    """

    def value(name: str) -> Any:
        if name not in values:
            raise ValueError(
                f"the request {template!r} names `{name}`, which does not exist; {nearest(name, list(values))}"
            )
        if isinstance(values[name], ValueError):
            raise ValueError(f"the request {template!r}: {values[name]}")
        return values[name]

    def put(name: re.Match[str]) -> str:
        if value(name[1]) is None:
            raise ValueError(
                f"the request {template!r} needs {{{name[1]}}}, which this job does not have; "
                "set it, or put that part in square brackets"
            )
        return str(value(name[1]))

    def keep(part: re.Match[str]) -> str:
        return part[1] if all(value(name) for name in NAME.findall(part[1])) else ""

    text = OPTIONAL.sub(keep, template)
    if any(bracket in text for bracket in "[]"):
        raise ValueError(f"the request {template!r} has square brackets that do not match")
    try:
        words = shlex.split(text)
    except ValueError as error:
        raise ValueError(f"the request {template!r} is not closed: {error}") from None
    return [NAME.sub(put, word) for word in words]


def rows_of_jobs(jobs: Sequence[JobRef], rows: Iterable[tuple[str, str, Row]]) -> dict[str, Row]:
    """By the jobs' names, the rows of a scheduler's table that are theirs. A row: its id, its name, and the rest.

    A hook of the site may have renamed a job, so a known id counts too; but not where the row has the name of another
    submission: a scheduler that has forgotten a job may have given its id away.
    """
    by_name: dict[str, Row] = {}
    by_id: dict[str, Row] = {}
    for job_id, name, row in rows:
        if UNIQUE.search(name) is None:
            by_id[job_id] = row
        by_name[_unique(name)] = row
    rows_by_job = {job.name: by_name.get(_unique(job.name), by_id.get(job.id or "")) for job in jobs}
    return {name: row for name, row in rows_by_job.items() if row is not None}


def _unique(name: str) -> str:
    """The part of a name that one submission alone has; all of a name that is not ours."""
    unique = UNIQUE.search(name)
    return unique[0] if unique is not None else name


def _share(total: int, parts: int) -> int | ValueError:
    """A whole share, or the error to raise if a template asks for it."""
    if total % parts == 0:
        return total // parts
    return ValueError(
        f"{total} GPUs per node cannot be asked for in equal whole shares by {parts} ranks per node; "
        "write a `request` that uses {gpus_per_node} or {gpus}"
    )


def _environment(request: Request, settings: SchedulerSettings) -> str | ValueError | None:
    """The parallel environment for so many ranks on a node, or the error to raise if a template asks for it; one slot needs
    none.
    """
    environments = settings.environments
    name = environments.get(str(request.ranks_per_node), environments.get(ANY))
    if name is not None or request.nodes * request.ranks_per_node == 1:
        return name
    listing = ", ".join(f"{key}: {name}" for key, name in environments.items()) or "none"
    return ValueError(
        f"no parallel environment is known that deals {request.ranks_per_node} slots to a host; add it to "
        f"`scheduler.environments` of the site (there: {listing}), or one for `any` number"
    )


def whole(text: str) -> int | None:
    """A whole number as schedulers print it; None for anything else, such as digits without end."""
    return int(text) if re.fullmatch(r"-?[0-9]{1,18}", text) else None


def checked_path(path: Path, forbidden: str, system: str, ascii_only: bool = False) -> str:
    """Return a path as text, or ValueError with the characters that `system` cannot carry."""
    text = str(path)
    wrong = sorted({c for c in text if c in forbidden or ord(c) < 32 or ord(c) == 127 or (ascii_only and ord(c) > 127)})
    if wrong:
        raise ValueError(
            f"{system} cannot take the path {text!r}: it holds {', '.join(map(repr, wrong))}; move the folder"
        )
    return text
