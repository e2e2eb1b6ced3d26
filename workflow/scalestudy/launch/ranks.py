"""The processes of a run on one machine: started by fork, watched, ended; the first to fail says why."""

from __future__ import annotations

import gc
import multiprocessing
import os
import signal
import sys
import time
import traceback
from collections.abc import Sequence
from contextlib import suppress
from multiprocessing.connection import wait as wait_for
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

from scalestudy.errors import REMEDIES, Skipped, UserError, of_system
from scalestudy.files import plain_file, refuse_links_in
from scalestudy.launch import binding
from scalestudy.launch.failures import DONE, LOST_PARTNER, SKIPPED, USER_ERROR, Failure, ending, failure_with_log
from scalestudy.launch.heartbeat import INTERVAL_S, Heartbeats, why_silent
from scalestudy.launch.keeper import IGNORED_SIGNALS
from scalestudy.measure.allocator import keep_freed_memory
from scalestudy.processes import die_with
from scalestudy.program.observe import end_processes
from scalestudy.program.trainer import metrics_folder
from scalestudy.training import rendezvous
from scalestudy.training.job import Job

# What gloo, NCCL and their stores say when the process at the other end has gone.
PARTNER_IS_GONE = ("closed by peer", "reset by peer", "broken pipe", "remote process exited", "socket timeout",
                   "connection was likely closed", "failed to recv", "connection refused")  # fmt: skip


class Ranks:
    """The processes of one machine, or those of them that one agent of mpirun has."""

    def __init__(self, job: Job, ranks: Sequence[int], group: int, environment: dict[str, str] | None = None) -> None:
        self.job, self.ranks, self.group = job, list(ranks), group
        self.environment = environment or {}
        self.host = job.hosts[job.host_of(self.ranks[0])]
        self.processes: list[BaseProcess] = []
        self.failures: list[Failure] = []
        self.heartbeats = Heartbeats(len(self.ranks))
        self._running: dict[int, int] = {}
        self._looked_s = time.monotonic()

    def start(self) -> None:
        """Fork them all. They are in the keeper's process group, and end with this process."""
        context = multiprocessing.get_context("fork")
        self.job.log.mkdir(parents=True, exist_ok=True)
        refuse_links_in(self.job.log)  # libraries write logs of their own there
        for rank in self.ranks:
            os.close(_emptied(self.job.log_of(rank)))  # here, where an error reaches the user
        # A collection in a rank would copy the pages that it shares with this process: a pause of half a second in a step.
        gc.freeze()
        parent = os.getpid()
        for slot, rank in enumerate(self.ranks):
            process = context.Process(target=self._run, args=(slot, rank, parent), name=self.job.title(rank))
            process.start()
            self.processes.append(process)
            self._running[process.sentinel] = slot
        self._looked_s = time.monotonic()

    @property
    def pids(self) -> list[int]:
        """Process ids."""
        return [process.pid or 0 for process in self.processes]

    @property
    def running(self) -> bool:
        """Whether any has not ended."""
        return bool(self._running)

    def watch(self, others: Sequence[Any] = (), timeout_s: float = INTERVAL_S) -> list[Any]:
        """Wait until something happens or an interval has passed; returns those of `others` that are ready.

        Failures are appended to `failures`.
        """
        ready = wait_for([*self._running, *others], timeout_s)
        for sentinel in [item for item in ready if item in self._running]:
            self._note_end(self._running.pop(sentinel))  # type: ignore[call-overload]
        self._note_silence()
        return [item for item in ready if item in others]

    def end(self) -> None:
        """End all processes that still run, stopped or not; a failed run's processes hold nothing of value."""
        for process in self.processes:
            if process.is_alive():
                process.kill()
        for process in self.processes:
            process.join()
        self._running.clear()
        if self.job.spec.program is not None:
            end_processes(str(metrics_folder(self.job)))
        for rank in self.ranks:
            log = self.job.log_of(rank)
            if log.exists() and log.stat().st_size == 0:
                log.unlink()

    def _note_end(self, slot: int) -> None:
        process, rank = self.processes[slot], self.ranks[slot]
        process.join()
        code, error = process.exitcode, self.job.folder / f"error.{rank}"
        assert code is not None, "it was joined"
        # A library may end the process with these statuses too; then there is no message of ours.
        if code in (USER_ERROR, SKIPPED) and error.exists():
            message = error.read_text(encoding="utf-8")
            self.failures.append(Failure("user" if code == USER_ERROR else "skipped", message))
        elif code != DONE:
            kind = "killed" if code < 0 else "partner" if code == LOST_PARTNER else "failed"
            self._note(kind, rank, ending(code))

    def _note_silence(self) -> None:
        now = time.monotonic()
        elapsed_s, self._looked_s = now - self._looked_s, now
        limit_s = self.job.spec.heartbeat_timeout_s
        for sentinel, slot in list(self._running.items()):
            if self.heartbeats.silent_s(slot, elapsed_s) > limit_s:
                del self._running[sentinel]
                why = why_silent(self.processes[slot].pid or 0)
                silence = f"sent no heartbeat for {limit_s:g} s" + (f" ({why})" if why else "")
                remedy = "set `heartbeat_timeout_s` to allow longer silence"
                self._note("silent", self.ranks[slot], f"{silence}; {remedy}")

    def _note(self, kind: str, rank: int, what: str) -> None:
        who = f"{self.host}: {self.job.title(rank)} {what}"
        self.failures.append(failure_with_log(kind, who, self.job.log_of(rank)))

    # In the started process

    def _run(self, slot: int, rank: int, parent: int) -> None:
        """Body of a process: it dies with its parent, and leaves a message about its failure."""
        die_with(parent)
        os.setpgid(0, self.group)
        for number in IGNORED_SIGNALS:
            signal.signal(number, signal.SIG_IGN)  # the process that started it decides when it ends
        _write_to(self.job.log_of(rank))
        if self.job.network:
            self.job.network[self.job.node_of(rank)].enter()  # while this process has one thread
        self.heartbeats.start(slot)
        job, local_ranks = self.job, self.job.on_host(self.job.host_of(rank))
        local_rank = local_ranks.index(rank)
        devices = sum(other < job.spec.ranks for other in local_ranks) if job.resolved.device == "cuda" else 0
        os.environ.update(self.environment)
        os.environ.update(rendezvous.environment(job, rank, local_rank, len(local_ranks)))
        keep_freed_memory()
        os._exit(self._train(rank, (local_rank, len(local_ranks), job.resolved.threads_per_rank, devices)))

    def _train(self, rank: int, place: tuple[int, int, int, int]) -> int:
        try:
            binding.bind(self.job.spec.launch.binding, *place)
            if self.job.spec.program is not None:
                return self._run_program(rank)
            from scalestudy.training.trainer import main

            main(self.job, rank)
            rendezvous.leave_mpi()
            status = DONE
        except (Skipped, UserError) as error:
            (self.job.folder / f"error.{rank}").write_text(str(error), encoding="utf-8")
            status = SKIPPED if isinstance(error, Skipped) else USER_ERROR
        except BaseException as error:
            traceback.print_exc()
            gone = isinstance(error, RuntimeError) and any(words in str(error).lower() for words in PARTNER_IS_GONE)
            status = LOST_PARTNER if gone else self._refused(error, rank)
        # Threads of libraries are not waited for: everything of value has been written.
        sys.stdout.flush()
        sys.stderr.flush()
        return status

    def _run_program(self, rank: int) -> int:
        """Exit status of the user's command; one that has a meaning here becomes 1."""
        from scalestudy.program.trainer import main

        status = main(self.job, rank)
        return DONE if status == 0 else status if status not in (LOST_PARTNER, SKIPPED, DONE) else 1

    def _refused(self, error: BaseException, rank: int) -> int:
        """Return the exit status after an error; with a message where a disk or a limit of the system caused it."""
        told = of_system(error)
        if told is None or (isinstance(error, OSError) and error.errno not in REMEDIES):
            return 1
        with suppress(OSError):
            (self.job.folder / f"error.{rank}").write_text(f"{self.job.title(rank)}: {told}", encoding="utf-8")
            return USER_ERROR
        return 1


def _emptied(log: Path) -> int:
    return plain_file(str(log), os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND)


def _write_to(log: Path) -> None:
    """Send this process's output to a file, line by line, so that the output of a process that is killed is complete."""
    sys.stdout.flush()
    sys.stderr.flush()
    descriptor = _emptied(log)
    os.dup2(descriptor, 1)
    os.dup2(descriptor, 2)
    os.close(descriptor)
    sys.stdout = open(1, "w", buffering=1, encoding="utf-8", errors="backslashreplace", closefd=False)  # noqa: SIM115
    sys.stderr = open(2, "w", buffering=1, encoding="utf-8", errors="backslashreplace", closefd=False)  # noqa: SIM115
