"""The processes of a run on one machine: started by fork, watched, ended; the first to fail says why."""

from __future__ import annotations

import ctypes
import gc
import multiprocessing
import os
import signal
import sys
import time
import traceback
from collections.abc import Sequence
from dataclasses import dataclass
from multiprocessing.connection import wait as wait_for
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any, NoReturn

from scalestudy.errors import Skipped, UserError
from scalestudy.launch import binding
from scalestudy.launch.heartbeat import INTERVAL_S, Heartbeats, why_silent
from scalestudy.launch.reaper import DEAF_TO
from scalestudy.training import rendezvous
from scalestudy.training.job import Job

PR_SET_PDEATHSIG = 1
TAIL_LINES = 20
USER_ERROR, LOST_PARTNER, SKIPPED = 2, 3, 4
# What gloo, NCCL and their stores say when the process at the other end has gone.
PARTNER_IS_GONE = ("closed by peer", "reset by peer", "broken pipe", "remote process exited", "socket timeout",
                   "connection was likely closed", "failed to recv", "connection refused")  # fmt: skip
CAUSES = ("skipped", "user", "killed", "failed", "silent", "node", "partner")
"""Kinds of failure, those that explain the others first."""


@dataclass(frozen=True)
class Failure:
    """Why a process ended, as its machine saw it."""

    kind: str
    """One of CAUSES."""
    what: str
    """A sentence without its full stop: who, what, where."""
    log: str = ""
    """File of its output."""
    tail: tuple[str, ...] = ()
    """The last lines of that."""

    def __str__(self) -> str:
        if not self.tail:
            return self.what
        count = "last line" if len(self.tail) == 1 else f"last {len(self.tail)} lines"
        return "\n".join([self.what, f"    {count} of {self.log}:", *(f"    | {line}" for line in self.tail)])


class RankFailed(Exception):
    """A process of the run failed; the message names it, its machine, and its last lines."""


def cause(failures: Sequence[Failure]) -> Failure:
    """The failure that explains the others: those that only lost their partner fail next."""
    return min(failures, key=lambda failure: CAUSES.index(failure.kind))


def raise_cause(failures: Sequence[Failure], job: Job) -> NoReturn:
    """End the run's supervision with what explains its failure."""
    first = cause(failures)
    if first.kind == "skipped":
        raise Skipped(first.what)
    if first.kind == "user":
        raise UserError(first.what, job.run)
    raise RankFailed(str(first))


class Ranks:
    """The processes of one machine, or those of them that one agent of mpirun has."""

    def __init__(self, job: Job, ranks: Sequence[int], group: int, environment: dict[str, str] | None = None) -> None:
        self.job, self.ranks, self.group = job, list(ranks), group
        self.environment = environment or {}
        self.host = job.hosts[job.host_of(self.ranks[0])]
        self.processes: list[BaseProcess] = []
        self.failures: list[Failure] = []
        self.heartbeats = Heartbeats(len(self.ranks))
        self._left: dict[int, int] = {}
        self._asked = time.monotonic()

    def start(self) -> None:
        """Fork them all. They are in the janitor's process group, and end with this process."""
        context = multiprocessing.get_context("fork")
        self.job.log.mkdir(parents=True, exist_ok=True)
        # A collection in a rank would copy the pages that it shares with this process: a pause of half a second in a step.
        gc.freeze()
        parent = os.getpid()
        for slot, rank in enumerate(self.ranks):
            process = context.Process(target=self._run, args=(slot, rank, parent), name=self.job.title(rank))
            process.start()
            self.processes.append(process)
            self._left[process.sentinel] = slot
        self._asked = time.monotonic()

    @property
    def pids(self) -> list[int]:
        """Process ids."""
        return [process.pid or 0 for process in self.processes]

    @property
    def running(self) -> bool:
        """Whether any has not ended."""
        return bool(self._left)

    def watch(self, others: Sequence[Any] = (), timeout_s: float = INTERVAL_S) -> list[Any]:
        """Wait until something happens or an interval has passed; returns those of `others` that are ready.

        What went wrong is appended to `failures`.
        """
        ready = wait_for([*self._left, *others], timeout_s)
        for sentinel in [item for item in ready if item in self._left]:
            self._note_end(self._left.pop(sentinel))  # type: ignore[call-overload]
        self._note_silence()
        return [item for item in ready if item in others]

    def end(self) -> None:
        """End what still runs, stopped or not; nothing of worth is in a failed run's processes."""
        for process in self.processes:
            if process.is_alive():
                process.kill()
        for process in self.processes:
            process.join()
        self._left.clear()
        for rank in self.ranks:
            log = self.job.log_of(rank)
            if log.exists() and log.stat().st_size == 0:
                log.unlink()

    def _note_end(self, slot: int) -> None:
        process, rank = self.processes[slot], self.ranks[slot]
        process.join()
        if process.exitcode in (USER_ERROR, SKIPPED):
            kind = "user" if process.exitcode == USER_ERROR else "skipped"
            self.failures.append(Failure(kind, self._user_error(rank)))
        elif process.exitcode:
            kind = "killed" if process.exitcode < 0 else "partner" if process.exitcode == LOST_PARTNER else "failed"
            self._note(kind, rank, ending(process.exitcode))

    def _note_silence(self) -> None:
        now = time.monotonic()
        elapsed_s, self._asked = now - self._asked, now
        limit_s = self.job.spec.heartbeat_timeout_s
        for sentinel, slot in list(self._left.items()):
            if self.heartbeats.silent_s(slot, elapsed_s) > limit_s:
                del self._left[sentinel]
                why = why_silent(self.processes[slot].pid or 0)
                said = f"gave no sign of life for {limit_s:g} s" + (f" ({why})" if why else "")
                what = said + "; `heartbeat_timeout_s` says how long it may"
                self._note("silent", self.ranks[slot], what)

    def _note(self, kind: str, rank: int, what: str) -> None:
        log = self.job.log_of(rank)
        who = f"{self.host}: {self.job.title(rank)} {what}"
        self.failures.append(Failure(kind, who, str(log), tuple(last_lines(log))))

    def _user_error(self, rank: int) -> str:
        return (self.job.folder / f"error.{rank}").read_text(encoding="utf-8")

    # In the started process

    def _run(self, slot: int, rank: int, parent: int) -> None:
        """What a process does: it dies with its parent, and says what went wrong with it."""
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:
            os._exit(1)
        os.setpgid(0, self.group)
        for number in DEAF_TO:
            signal.signal(number, signal.SIG_IGN)  # who started it decides when it ends
        _write_to(self.job.log_of(rank))
        if self.job.network:
            self.job.network[self.job.node_of(rank)].enter()  # while this process has one thread
        self.heartbeats.start(slot)
        job, neighbours = self.job, self.job.on_host(self.job.host_of(rank))
        local_rank = neighbours.index(rank)
        devices = sum(other < job.spec.ranks for other in neighbours) if job.resolved.device == "cuda" else 0
        os.environ.update(self.environment)
        os.environ.update(rendezvous.environment(job, rank, local_rank, len(neighbours)))
        os._exit(self._train(rank, (local_rank, len(neighbours), job.resolved.threads_per_rank, devices)))

    def _train(self, rank: int, place: tuple[int, int, int, int]) -> int:
        try:
            binding.bind(self.job.spec.launch.binding, *place)
            from scalestudy.training.loop import main

            main(self.job, rank)
            rendezvous.leave_mpi()
            status = 0
        except (Skipped, UserError) as error:
            (self.job.folder / f"error.{rank}").write_text(str(error), encoding="utf-8")
            status = SKIPPED if isinstance(error, Skipped) else USER_ERROR
        except BaseException as error:
            traceback.print_exc()
            gone = isinstance(error, RuntimeError) and any(words in str(error).lower() for words in PARTNER_IS_GONE)
            status = LOST_PARTNER if gone else 1
        # Threads of libraries are not waited for: everything of worth has been written.
        sys.stdout.flush()
        sys.stderr.flush()
        return status


def _write_to(log: Path) -> None:
    """Send this process's output to a file, line by line: what a process that is killed has said is there."""
    sys.stdout.flush()
    sys.stderr.flush()
    descriptor = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND, 0o666)
    os.dup2(descriptor, 1)
    os.dup2(descriptor, 2)
    os.close(descriptor)
    sys.stdout = open(1, "w", buffering=1, encoding="utf-8", errors="backslashreplace", closefd=False)  # noqa: SIM115
    sys.stderr = open(2, "w", buffering=1, encoding="utf-8", errors="backslashreplace", closefd=False)  # noqa: SIM115


def last_lines(log: Path, count: int = TAIL_LINES) -> list[str]:
    """The last lines of a file, without reading all of it; none where there is no file."""
    try:
        with open(log, "rb") as stream:
            stream.seek(max(0, log.stat().st_size - 64 * 1024))
            return stream.read().decode(errors="replace").splitlines()[-count:]
    except OSError:
        return []


def ending(code: int) -> str:
    """How a process ended, in words, from multiprocessing's exit code."""
    if code < 0:
        return f"was killed by signal {-code} ({signal.Signals(-code).name}), cause unknown"
    if code == LOST_PARTNER:
        return "lost the connection to another process"
    return f"failed (exit status {code})"
