"""The processes of a run on one machine: started by fork, watched, ended; the first to fail says why."""

from __future__ import annotations

import gc
import mmap
import multiprocessing
import os
import signal
import sys
import threading
import time
import traceback
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from multiprocessing.connection import wait as wait_for
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import TYPE_CHECKING, Any

from scalestudy.errors import REMEDIES, Skipped, UserError, of_system
from scalestudy.extensions import of_own_file
from scalestudy.hardware import bus_ids
from scalestudy.launch.failures import (
    DONE,
    LOST_PARTNER,
    SETTLE_S,
    SKIPPED,
    USER_ERROR,
    Failure,
    ending,
    failure_with_log,
    raise_cause,
)
from scalestudy.launch.keeper import IGNORED_SIGNALS
from scalestudy.launch.preload import preload
from scalestudy.measure.allocator import keep_freed_memory
from scalestudy.measure.system import UNMEASURED, Sampler
from scalestudy.processes import die_with, end_program
from scalestudy.training import rendezvous
from scalestudy.training.job import Job

if TYPE_CHECKING:
    from scalestudy.emulation.network import EmulatedNode

INTERVAL_S = 1.0
# What gloo, NCCL and their stores say when the process at the other end has gone.
PARTNER_IS_GONE = ("closed by peer", "reset by peer", "broken pipe", "remote process exited", "socket timeout",
                   "connection was likely closed", "failed to recv", "connection refused")  # fmt: skip


def run_here(job: Job, group: int, network: Sequence[EmulatedNode] = ()) -> list[dict[str, float]]:
    """Run all processes to their end, in the process group `group`; returns samples of their use.

    Raises RankFailed, UserError or Skipped, with every process ended.
    """
    if job.spec.program is None:
        preload()
    else:
        job = replace(job, store=("127.0.0.1", rendezvous.free_port()))
    ranks = Ranks(job, range(job.processes), group, network=network)
    try:
        ranks.start()
        while ranks.running and not ranks.failures:
            ranks.watch()
        deadline = time.monotonic() + SETTLE_S  # for those that fail in the wake of the first
        while ranks.running and time.monotonic() < deadline:
            ranks.watch(timeout_s=SETTLE_S / 5)
        samples = ranks.samples()
    finally:
        ranks.end()
    if ranks.failures:
        raise_cause(ranks.failures, job)
    return [{"node": 0, **row} for row in samples]


class Heartbeats:
    """A counter per process, in memory that it shares with the process that started it: it counts up once a second.

    The counting thread is one of Python's: it runs while the main thread waits, sleeps, or computes in a library that
    has released the interpreter's lock, as torch does. So a slow step beats, a stopped process does not.
    """

    def __init__(self, count: int) -> None:
        self._counts = memoryview(mmap.mmap(-1, 8 * count)).cast("Q")
        self._seen, self._silent_s = [0] * count, [0.0] * count

    def start(self, slot: int) -> None:
        """Begin to beat; called by the process itself."""

        def beat() -> None:
            while True:
                self._counts[slot] += 1
                time.sleep(INTERVAL_S)

        threading.Thread(target=beat, name="heartbeat", daemon=True).start()

    def silent_s(self, slot: int, elapsed_s: float) -> float:
        """Seconds that the process has been silent, `elapsed_s` after the last call.

        A gap between two calls counts as two intervals at most: a job that is suspended as a whole and
        resumed has lost no process.
        """
        if (count := self._counts[slot]) != self._seen[slot]:
            self._seen[slot], self._silent_s[slot] = count, 0.0
        else:
            self._silent_s[slot] += min(elapsed_s, 2 * INTERVAL_S)
        return self._silent_s[slot]


class Ranks:
    """The processes of one machine, or those of them that one agent of mpirun has."""

    def __init__(
        self,
        job: Job,
        ranks: Sequence[int],
        group: int,
        environment: dict[str, str] | None = None,
        network: Sequence[EmulatedNode] = (),
    ) -> None:
        self.job, self.ranks, self.group = job, list(ranks), group
        self.environment, self.network = environment or {}, network
        self.host = job.host_of(self.ranks[0])
        self.processes: list[BaseProcess] = []
        self.failures: list[Failure] = []
        self.heartbeats = Heartbeats(len(self.ranks))
        self.sampler: Sampler | None = None
        self._running: dict[int, int] = {}
        self._looked_s = time.monotonic()

    def start(self) -> None:
        """Fork them all, and begin to sample. They are in the keeper's process group, and end with this process."""
        context = multiprocessing.get_context("fork")
        self.job.log.mkdir(parents=True, exist_ok=True)
        for rank in self.ranks:
            self.job.log_of(rank).write_bytes(b"")  # here, where an error reaches the user
        # A collection in a rank would copy the pages that it shares with this process: a pause of half a second in a step.
        gc.freeze()
        for slot, rank in enumerate(self.ranks):
            process = context.Process(target=self._run, args=(slot, rank, os.getpid()), name=self.job.title(rank))
            process.start()
            self.processes.append(process)
            self._running[process.sentinel] = slot
        self._looked_s = time.monotonic()
        # Where each rank has an agent of its own, that of the first one looks at the machine's devices.
        devices = self.devices() if self.ranks[0] == self.job.on_host(self.host)[0] else ()
        pids = [process.pid or 0 for process in self.processes]
        sampler = Sampler(pids, self.group, devices, self.job.spec.program is not None, self.job.relays)
        sampler.start()
        self.sampler = sampler

    def devices(self) -> list[str | None]:
        """PCI addresses of the accelerators that the run uses on this machine; None where one is not known."""
        ranks = self._ranks_with_device()
        return bus_ids(min(ranks, self.job.resolved.devices) if self.job.shares_devices else ranks)

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

    def samples(self) -> list[dict[str, float]]:
        """The samples of their use, to this moment; notes in the job's folder what could not be measured."""
        assert self.sampler is not None, "they were started"
        self.sampler.stop()
        if self.sampler.unmeasured:
            (self.job.folder / f"{UNMEASURED}{self.ranks[0]}").write_text(self.sampler.unmeasured, encoding="utf-8")
        return self.sampler.rows

    def end(self) -> None:
        """End all processes that still run, stopped or not; a failed run's processes hold nothing of value."""
        for process in self.processes:
            process.kill()
        for process in self.processes:
            process.join()
        self._running.clear()
        if self.sampler is not None:
            self.sampler.stop()
        if self.job.spec.program is not None:
            end_program(str(self.job.folder))
        for log in map(self.job.log_of, self.ranks):
            if log.exists() and log.stat().st_size == 0:
                log.unlink()

    def _ranks_with_device(self) -> int:
        """How many processes of this machine compute on an accelerator: parameter servers do not."""
        ranks = [rank for rank in self.job.on_host(self.host) if rank < self.job.spec.ranks]
        return len(ranks) if self.job.resolved.device == "cuda" else 0

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
            self._note("killed" if code < 0 else "partner" if code == LOST_PARTNER else "failed", rank, ending(code))

    def _note_silence(self) -> None:
        now = time.monotonic()
        elapsed_s, self._looked_s = now - self._looked_s, now
        limit_s = self.job.spec.heartbeat_timeout_s
        for sentinel, slot in list(self._running.items()):
            if self.heartbeats.silent_s(slot, elapsed_s) > limit_s:
                del self._running[sentinel]
                what = f"sent no heartbeat for {limit_s:g} s: it is stopped, or waits for a device"
                self._note("silent", self.ranks[slot], f"{what}; set `heartbeat_timeout_s` to allow longer silence")

    def _note(self, kind: str, rank: int, what: str) -> None:
        who = f"{self.job.hosts[self.host]}: {self.job.title(rank)} {what}"
        self.failures.append(failure_with_log(kind, who, self.job.log_of(rank)))

    # In the started process

    def _run(self, slot: int, rank: int, parent: int) -> None:
        """Body of a process: it dies with its parent, and leaves a message about its failure."""
        die_with(parent)
        os.setpgid(0, self.group)
        for number in IGNORED_SIGNALS:
            signal.signal(number, signal.SIG_IGN)  # the process that started it decides when it ends
        _write_to(self.job.log_of(rank))
        if self.network:
            self.network[self.job.node_of(rank)].enter()  # while this process has one thread
        self.heartbeats.start(slot)
        os.environ.update(self.environment)
        os.environ.update(rendezvous.environment(self.job, rank))
        keep_freed_memory()
        os._exit(self._train(rank))

    def _train(self, rank: int) -> int:
        status = DONE
        try:
            if self.job.spec.launch.binding != "none":
                from scalestudy.launch.binding import bind

                bind(self.job, rank, self._ranks_with_device())
            if self.job.spec.program is not None:
                from scalestudy.program.trainer import main as run_program

                # The exit status of the user's command; one that has a meaning here becomes 1.
                code = run_program(self.job, rank)
                return DONE if code == 0 else code if code not in (LOST_PARTNER, SKIPPED, DONE) else 1
            from scalestudy.training.trainer import main

            main(self.job, rank)
            rendezvous.leave_mpi()
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

    def _refused(self, error: BaseException, rank: int) -> int:
        """Return the exit status after an error; with a message where the system, or the user's own file, caused it."""
        told = of_system(error)
        if told is None or (isinstance(error, OSError) and error.errno not in REMEDIES):
            told = of_own_file(error, self.job.extensions, f"its stack is in {self.job.log_of(rank)}")
        if told is not None:
            with suppress(OSError):
                (self.job.folder / f"error.{rank}").write_text(f"{self.job.title(rank)}: {told}", encoding="utf-8")
                return USER_ERROR
        return 1


def _write_to(log: Path) -> None:
    """Send this process's output to a file, line by line, so that the output of a process that is killed is complete."""
    sys.stdout.flush()
    sys.stderr.flush()
    descriptor = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND, 0o666)
    os.dup2(descriptor, 1)
    os.dup2(descriptor, 2)
    os.close(descriptor)
    sys.stdout = open(1, "w", buffering=1, encoding="utf-8", errors="backslashreplace", closefd=False)  # noqa: SIM115
    sys.stderr = open(2, "w", buffering=1, encoding="utf-8", errors="backslashreplace", closefd=False)  # noqa: SIM115
