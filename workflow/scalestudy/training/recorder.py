"""Records of one rank: the times of its steps, its losses, and its report."""

from __future__ import annotations

import os
import time
from collections import Counter
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist

from scalestudy.data.decode import kernel
from scalestudy.data.io_accounting import uncounted_file_system
from scalestudy.data.load.loader import Delivered, Loader
from scalestudy.data.load.sampler import MODULUS, sample_checksum
from scalestudy.data.pagecache import read_bytes
from scalestudy.extensions import imported_from
from scalestudy.files import write_json
from scalestudy.measure.instrument import of_rank
from scalestudy.measure.placement import placement
from scalestudy.measure.system import rows_of_rank
from scalestudy.measure.timers import StepTimer
from scalestudy.spec.ids import own_code, own_file
from scalestudy.strategies.base import World
from scalestudy.training.faults import Faults
from scalestudy.training.job import Job
from scalestudy.training.replica import Replica
from scalestudy.training.report import CheckpointCost, KernelUsage, Report
from scalestudy.training.schedule import Schedule
from scalestudy.training.world import device_bus_id, device_name, uses_tf32

PROCESS_FIELDS = ("affinity", "device_name", "tf32", "host", "backend", "overlapped", "parameters", "placement", "interface",
                   "stage", "forward_apart", "window_clock", "window_usage", "window_usage_steps", "host_rows", "uncounted_reads", "own_code", "imported")  # fmt: skip
"""Of a report: what an attempt at a run does not take over from the one before."""

MAX_NOT_TALLIED = 1 << 16
"""Samples of which one number is made at a time; it takes a few milliseconds at most."""
MAX_LOSSES = 1000
"""Losses that are kept one by one; on a GPU each takes a block of memory."""


class Recorder:
    """Times, losses and report of one rank, of all attempts at its run."""

    def __init__(self, job: Job, world: World, schedule: Schedule) -> None:
        self.job, self.schedule = job, schedule
        self.timer = StepTimer(world.device)
        self.losses: list[torch.Tensor] = []
        """Of the steps of this attempt, on the device."""
        self.report = Report(
            world.rank,
            seen=0,
            affinity=sorted(os.sched_getaffinity(0)),
            device_name=device_name(world.device),
            tf32=uses_tf32(world.device),
            host=of_rank(),
            backend=dist.get_backend() if dist.is_initialized() else "none",
            decoders=[kernel.state()],
            placement=placement(device_bus_id(world.device)),
            interface=os.environ.get("GLOO_SOCKET_IFNAME"),
        )
        self.window_end: float | None = None
        """When `measure.minutes` are over, on the clock of `perf_counter`; None before the window begins."""
        self._not_tallied: list[Delivered] = []
        self._earlier_losses = np.zeros(0)
        self._loop_began = 0.0
        self._counted_from = 0
        """The step that the window begins with in this attempt."""
        self._window_began: float | None = None
        """When the host had queued the last step before the window; on a CPU also when that step had ended."""
        self._steps_before_window = 0
        self._usage_before: KernelUsage | None = None
        of_host = job.on_host(job.host_of(world.rank))
        self._sampled_processes = len(of_host) if of_host[0] == world.rank else 0
        """Processes of this host, which its first rank samples."""
        self._read_before: int | None = None
        """What the kernel had counted when the steps began, less what earlier attempts read."""
        self._window_read_before: int | None = None
        self._slow_decodes_before = 0

    def describe(self, replica: Replica) -> None:
        """Record the model, and the place of its data."""
        report, data = self.report, replica.data
        report.parameters, report.setup_s = replica.parameters, replica.setup_s
        report.overlapped, report.forward_apart = replica.strategy.overlapped, replica.times_forward
        report.stage = data.staging
        report.node_steps = None if data.share is None else data.share.steps
        report.own_code = own_code(self.job.spec, self.job.extensions)
        named = [own_file(target, Path()).name for target in report.own_code]
        imported = imported_from(self.job.extensions) if named else {}
        report.imported = {name: digest for name, digest in sorted(imported.items()) if name not in named}
        report.warnings += data.unusual()
        file = data.one_file()
        report.uncounted_reads = None if file is None else uncounted_file_system(file)

    def begin(self) -> None:
        """The steps begin, or resume: so do the clocks."""
        now, report = time.perf_counter(), self.report
        self._loop_began = now - report.loop_s
        if (counted_bytes := read_bytes()) is not None:
            self._read_before = counted_bytes - (report.read_bytes or 0)
        self._slow_decodes_before = report.faults.get("slow_decode", 0)
        self.window_end = None if report.window_left_s is None else now + report.window_left_s
        self._counted_from = report.steps_done + self.job.spec.measure.warmup_steps
        self.sample_host()

    def begin_window(self, done: int) -> None:
        """Start the clocks of the window, and that of `measure.minutes`, once the warm-up is over."""
        minutes, warmup_steps = self.job.spec.measure.minutes, max(1, self.job.spec.measure.warmup_steps)
        if done == self._counted_from - 1:
            self.sample_host()  # others wait for this rank in a step that does not count
        if self._window_began is None and done >= self._counted_from:
            self._window_began = time.perf_counter()
            self._steps_before_window = self.timer.steps
            self._usage_before = KernelUsage.now()
            if (counted_bytes := read_bytes()) is not None:
                self._window_read_before = counted_bytes - (self.report.window_read_bytes or 0)
        if minutes is not None and self.window_end is None and done >= warmup_steps:
            self.window_end = time.perf_counter() + 60 * minutes

    def sample_host(self) -> None:
        """Sample the use of this host's processes, on the one rank that does so."""
        if self._sampled_processes:
            self.report.host_rows += rows_of_rank(self._sampled_processes, self.job.relays)

    def window_over(self) -> bool:
        """Whether the window's minutes have passed."""
        return self.window_end is not None and time.perf_counter() >= self.window_end

    @property
    def loop_s(self) -> float:
        """Seconds since the first step, without the time from a stop to the resumption."""
        return time.perf_counter() - self._loop_began

    def step(self, loss: torch.Tensor, samples: int, delivered: Delivered | None = None) -> None:
        """One more step is done, with the samples that the loader delivered."""
        self.losses.append(loss)
        if len(self.losses) >= MAX_LOSSES:
            self.losses = [torch.cat([kept.reshape(-1) for kept in self.losses])]
        if delivered is not None:
            self._not_tallied.append(delivered)
            if samples * len(self._not_tallied) >= MAX_NOT_TALLIED:
                self._tally()
        self.report.samples_seen += samples
        self.report.steps_done += 1

    def _tally(self) -> None:
        """Add the samples of the last steps up: of many steps at once, because it takes time between two of them."""
        waiting, self._not_tallied = self._not_tallied, []
        for epoch in {epoch for epoch, _ in waiting}:
            samples = np.concatenate([indices for of, indices in waiting if of == epoch])
            self.report.seen = ((self.report.seen or 0) + sample_checksum(epoch, samples)) % MODULUS

    def account(self, loader: Loader, faults: Faults) -> None:
        """Bring the report up to the step that was just done; on a GPU it is waited for."""
        since_last_mark_s = self.timer.wait()
        report, now = self.report, time.perf_counter()
        self._tally()
        report.loop_s = now - self._loop_began
        report.window_left_s = None if self.window_end is None else self.window_end - now
        began = self._window_began
        if began is not None and self.timer.on_gpu and self.timer.steps > self._steps_before_window:
            # The host queues steps ahead: the device began the window as long ago as its own clock says.
            marks = self.timer.seconds()
            began = now - since_last_mark_s - float(marks[-1, -1] - marks[self._steps_before_window, 0])
        report.window_clock = None if began is None else (began, now)
        if self._usage_before is not None:
            report.window_usage = KernelUsage.now().since(self._usage_before)
            report.window_usage_steps = self.timer.steps - self._steps_before_window
        report.epochs_done = report.steps_done / self.schedule.steps_per_epoch
        report.window = self.schedule.window(report.steps_done)
        before, after = self._read_before, read_bytes()
        report.read_bytes = None if before is None or after is None else after - before
        if self._window_read_before is not None and after is not None:
            report.window_read_bytes = after - self._window_read_before
        slow_decodes = self._slow_decodes_before + loader.slow_decode
        report.faults = {**faults.fired, "killed_rank": faults.killed_before, "slow_decode": slow_decodes}

    def restore(self, earlier: Report, tensors: dict[str, torch.Tensor], cost: CheckpointCost | None) -> Counter[str]:
        """Take over this rank's records and its checkpoint's cost; returns how often each fault fired."""
        if (before := earlier.stage) is not None and (now := self.report.stage) is not None:
            both_s, both_bytes = before.seconds + now.seconds, before.copied_bytes + now.copied_bytes
            self.report.stage = replace(now, seconds=both_s, copied_bytes=both_bytes)
        self.timer.earlier, self._earlier_losses = tensors["marks"].numpy(), tensors["losses"].numpy()
        here, self.report = self.report, earlier
        for name in PROCESS_FIELDS:
            setattr(earlier, name, getattr(here, name))
        earlier.decoders = list(dict.fromkeys([*earlier.decoders, *here.decoders]))
        done = earlier.steps_done
        earlier.pauses.append(done)
        earlier.left_out.append((done, done + self.job.spec.measure.warmup_steps))
        if cost is not None:
            earlier.checkpoints.append(cost)
            earlier.loop_s += 0.0 if cost.stop else cost.seconds
        return Counter({name: count for name, count in earlier.faults.items() if name != "slow_decode"})

    def all_losses(self) -> np.ndarray:
        """float64 [steps], of all attempts."""
        since = [loss.reshape(-1).double().cpu().numpy() for loss in self.losses]
        return np.concatenate([self._earlier_losses, *since])

    def check(self, replica: Replica) -> None:
        """Evidence for the sanity checks: the parameters' digest, whether loss and parameters are finite, the strategy, threads."""
        report = self.report
        report.strategy = replica.strategy.measured()
        report.sample_at_peak_s = replica.sample_at_peak_s() if report.rank == 0 else None
        report.threads = torch.get_num_threads()
        parameters, losses = list(replica.model.parameters()), torch.from_numpy(self.all_losses())
        report.computed_on = sorted({tensor.device.type for tensor in (*parameters, *self.losses[-1:])})
        report.finite = all(bool(torch.isfinite(tensor).all()) for tensor in (*parameters, losses))
        report.parameter_digest = replica.digest()

    def write(self) -> None:
        """Report and step times, for the process that started this one."""
        rank = self.report.rank
        np.savez(self.job.folder / f"steps.{rank}.npz", marks=self.timer.seconds(), loss=self.all_losses())
        write_json(self.job.folder / f"report.{rank}.json", self.report.to_dict())
