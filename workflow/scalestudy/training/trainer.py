"""One process of a run: a rank that trains, or a parameter server. `Trainer.run` is the table of contents."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import closing
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
import torch.distributed as dist

from scalestudy.data.load.loader import Loader, on_device
from scalestudy.files import write_json
from scalestudy.measure.timers import StepTimer
from scalestudy.training import control_files
from scalestudy.training.agreement import Agreed, Agreement
from scalestudy.training.checkpointer import Checkpointer
from scalestudy.training.evaluator import Evaluator
from scalestudy.training.faults import Faults
from scalestudy.training.first_steps import FirstSteps
from scalestudy.training.job import Job
from scalestudy.training.recorder import Recorder
from scalestudy.training.replica import Replica
from scalestudy.training.schedule import Schedule
from scalestudy.training.training_data import TrainingData
from scalestudy.training.world import barrier, join, oom_as_skip

if TYPE_CHECKING:
    from scalestudy.training.tracing import Spans


class Trainer:
    """Trains a replica on its data, from the checkpoint that the job names to the end that its spec names."""

    def __init__(self, replica: Replica) -> None:
        job, world, data = replica.job, replica.world, replica.data
        self.job, self.spec, self.world, self.data, self.replica = job, job.spec, world, data, replica
        self.schedule = Schedule(job.spec, data.steps_per_epoch)
        self.faults = Faults(job.spec, world.rank, job.run_folder)
        self.recorder = Recorder(job, world, self.schedule)
        self.recorder.describe(replica)
        self.first_steps = FirstSteps(replica, self.recorder.report)
        self.agreement = Agreement(job, world, self.spec.strategy.synchronous, replica.state_bytes)
        self.evaluator = Evaluator(replica, self.recorder)
        self.checkpointer = Checkpointer(replica, self.recorder, self.agreement)

    def run(self) -> None:
        """Everything that a rank does."""
        self.checkpointer.resume(self.faults)
        self.prepare_cache()
        self.measure_loader()
        if cause := self.train():  # the run stopped on purpose; servers end with it
            self.replica.strategy.finish()
            if self.world.rank == 0:
                stopped = {"step": self.recorder.report.steps_done, "cause": cause}
                write_json(self.job.folder / control_files.STOPPED, stopped)
            return
        if self.world.rank == 0:
            # The result is near: a request to stop is met by finishing.
            (self.job.folder / control_files.AGREED).touch()
        report = self.recorder.report
        if report.steps_done and self.world.ranks > 1 and not self.spec.measure.whole_program:
            from scalestudy.training.exposed import pairs_of_steps

            step_s = report.loop_s / report.steps_done
            report.exchange_pairs = pairs_of_steps(self.replica, step_s, report.loop_s)
        self.evaluator.at_end()
        self.checkpointer.time_a_checkpoint()
        self.trace()
        self.replica.strategy.finish()
        with self.replica.strategy.full_parameters():
            self.recorder.check(self.replica)
            if self.spec.keep == "weights" and self.world.rank == 0:
                self.replica.save_weights(self.job.folder / "weights.safetensors")
        self.recorder.write()

    def train(self) -> str:
        """All steps, with evaluations and checkpoints between them; ends where the spec says.

        Returns why the run stopped on purpose before that, with its checkpoint written; "" where it did not.
        """
        recorder, replica = self.recorder, self.replica
        done, cause = recorder.report.steps_done, ""
        if replica.times_forward:
            replica.strategy.forward_ended = partial(recorder.timer.mark, "forward")
        barrier(self.world)
        recorder.begin()
        self.agreement.begin(done)
        with closing(self.data.loader(done, self.schedule.planned_steps)) as loader:
            stream = self.batches(loader)
            self.agreement.paused(self.evaluator.after(done))  # the run may have stopped just before
            for step in range(done, self.schedule.planned_steps):
                self.first_steps.before()
                self.faults.before_step(step)
                replica.strategy.set_learning_rate(self.schedule.learning_rate(step))
                loss, samples = self.train_step(step, stream, recorder.timer)
                self.first_steps.after(self.schedule.learning_rate(step))
                recorder.step(loss, samples, loader.delivered.popleft())
                over, cause = self.between_steps(step + 1, loader)
                if over:
                    break
            recorder.account(loader, self.faults)
            recorder.sample_host()
        replica.strategy.forward_ended = None  # what comes after the last step is no part of it
        return cause

    def train_step(
        self, step: int, stream: Iterator[tuple[torch.Tensor, torch.Tensor]], timer: StepTimer | Spans
    ) -> tuple[torch.Tensor, int]:
        """One step on the next batch of `stream`; its loss and samples. The marks bear the names of the metrics."""
        replica = self.replica
        timer.begin()
        wait_begin = time.perf_counter()
        x, y = next(stream)
        timer.mark("data")
        if replica.emulator is not None:
            replica.emulator.waited(time.perf_counter() - wait_begin)
        with replica.memory_limit:
            x, y = replica.inputs(x), y.to(self.world.device, non_blocking=True)
            timer.mark("convert")
            loss = replica.forward_backward(x, y)
            self.faults.in_step(step)
            timer.mark("backward")
            replica.strategy.exchange()
            timer.mark("exchange")
            replica.update()
        timer.end()
        return loss, len(y)

    def between_steps(self, done: int, loader: Loader) -> tuple[bool, str]:
        """Do the work due after so many steps; returns whether that was the last step, and why where that was not planned."""
        self.recorder.begin_window(done)
        evaluation, last = self.evaluator.due(done), done == self.schedule.planned_steps
        saving = self.agreement.checkpoint_due(done) and not last
        # Ranks at their own pace meet only where all come.
        meeting = evaluation or (not self.spec.strategy.synchronous and (saving or last))
        evaluations = self.recorder.report.evaluations if evaluation else []
        next_s = max((made.evaluation_s for made in evaluations), default=0.0)
        answer = self.agreement.after(done, meeting, self.recorder.window_over, next_s) or Agreed(done)
        if answer.window_over:
            return True, ""
        if answer.stop and (evaluation or not last):
            if self.world.rank == 0:
                (self.job.folder / control_files.AGREED).touch()
            self.recorder.account(loader, self.faults)
            self.checkpointer.save(done, answer.stop, stop=True)
            return True, answer.stop
        self.agreement.paused(self.evaluator.after(done))
        if saving:
            self.recorder.account(loader, self.faults)
            self.checkpointer.save(done, f"every {self.spec.checkpoint.every_steps} steps")
        return False, ""

    def prepare_cache(self) -> None:
        """Bring the page cache of every node into the state that the spec names."""
        if (share := self.data.prepare_cache()) is not None:
            self.recorder.report.resident_share = share
        barrier(self.world)

    def batches(self, loader: Loader) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        """What the loader delivers, on a GPU copied ahead of its use."""
        return on_device(loader, self.world.device) if self.spec.loader.pin_memory else iter(loader)

    def trace(self) -> None:
        """Trace the steps that the spec asks for, on the batches after the last one that was trained on."""
        if not self.spec.measure.trace_steps:
            return
        from scalestudy.training import tracing

        first, replica, spans = self.recorder.report.steps_done, self.replica, tracing.Spans()
        # Batches are made ahead of the last step too, as in the middle of a training.
        ahead = self.spec.loader.workers * self.spec.loader.prefetch
        last = first + tracing.settling_steps(self.spec) + self.spec.measure.trace_steps + ahead
        replica.strategy.set_learning_rate(0.0)
        if replica.times_forward:
            replica.strategy.forward_ended = partial(spans.mark, "forward")
        with replica.undisturbed(), closing(self.data.loader(first, last)) as loader:
            stream = self.batches(loader)
            tracing.trace(self.job, self.world, lambda number: self.train_step(first + number, stream, spans))

    def measure_loader(self) -> None:
        """Time the loader alone, before the first step."""
        count, report = self.spec.measure.loader_batches, self.recorder.report
        if count and not report.steps_done:
            rate = self.data.measure_loader(count, self.replica.inputs)
            report.loader_samples_per_s = rate
            if rate is None:
                report.warnings.append(
                    f"the loader alone was not timed: the training has fewer batches than {count} per worker and those "
                    "that fill the loader's queue: lower `measure.loader_batches`, or raise `train.epochs`"
                )
            self.prepare_cache()  # what was just read is no longer cold

    def serve(self) -> None:
        """Everything that a parameter server does."""
        self.checkpointer.resume(self.faults)
        report, strategy = self.recorder.report, self.replica.strategy
        before = report.steps_done
        report.steps_done += strategy.serve(lambda step: self.schedule.learning_rate(before + step))
        self.recorder.write()
        if events := strategy.records:
            columns: dict[str, Any] = {name: np.array(values) for name, values in events.items()}
            np.savez(self.job.folder / f"events.{self.world.rank}.npz", **columns)


def main(job: Job, rank: int) -> None:
    """Run one process of a run to its end."""
    with oom_as_skip(job):
        world = join(job, rank)
        with closing(TrainingData.open(job, rank)) as data:
            trainer = Trainer(Replica(job, world, data))
            if world.is_server:
                trainer.serve()
            else:
                trainer.run()
    if dist.is_initialized():
        dist.destroy_process_group()
