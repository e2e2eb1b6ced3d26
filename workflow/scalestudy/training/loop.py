"""One process of a run: a rank that trains, or a parameter server. `Rank.run` is the table of contents."""

from __future__ import annotations

import hashlib
import os
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import nn

from scalestudy.data.decode import kernel
from scalestudy.data.load.dataset import Dataset, open_dataset
from scalestudy.data.load.loader import Loader, on_device
from scalestudy.data.load.normalise import normalise
from scalestudy.data.load.sampler import NodeShare, batches, steps_per_epoch
from scalestudy.data.pagecache import CacheLimit, drop, read_bytes, resident_bytes, warm
from scalestudy.emulation.accelerator import emulate
from scalestudy.emulation.faults import Faults
from scalestudy.errors import UserError
from scalestudy.files import write_json
from scalestudy.measure.instrument import code_digest
from scalestudy.measure.placement import placement
from scalestudy.measure.timers import StepTimer
from scalestudy.models import outputs
from scalestudy.models.build import build as build_model
from scalestudy.spec.layout import CHECKPOINTS
from scalestudy.strategies.base import World
from scalestudy.strategies.build import build as build_strategy
from scalestudy.training import checkpoint, notices, staging
from scalestudy.training.agreement import Agreement, say_agreed
from scalestudy.training.evaluate import evaluate, label_weights
from scalestudy.training.job import Job
from scalestudy.training.optim import make_optimiser, rate_at
from scalestudy.training.rendezvous import store as rendezvous_store

DTYPES = {"float32": torch.float32, "float64": torch.float64, "float16": torch.float16, "bfloat16": torch.bfloat16}
Batch = tuple[int, torch.Tensor, torch.Tensor]


@dataclass
class Report:
    """What one rank has to say when it is done; plain data."""

    rank: int
    steps_done: int = 0
    first_step: int = 0
    """The first step of which this run has times: not 0 where it began from another run's checkpoint."""
    samples_seen: int = 0
    window: tuple[int, int] = (0, 0)
    """First step of the measured window, and the step after its last."""
    left_out: list[tuple[int, int]] = field(default_factory=list)
    """Stretches of steps, the last one excluded, that warm up again after a stop and are not in the window."""
    pauses: list[int] = field(default_factory=list)
    """Numbers of steps done after which something else was done: an evaluation, a checkpoint."""
    window_left_s: float | None = None
    """At a checkpoint: what is left of `measure.minutes`, None before the window."""
    loop_s: float = 0.0
    """Time of the steps and what is between them, the time from a stop to going on left out."""
    epochs_done: float = 0.0
    checkpoints: list[dict[str, Any]] = field(default_factory=list)
    """Of each: `step`, `seconds`, `bytes` (rank 0 knows them), whether the run was to `stop`, `cause`."""
    evaluations: list[dict[str, Any]] = field(default_factory=list)
    evaluation_s: float | None = None
    loader_samples_per_s: float | None = None
    read_bytes: int | None = None
    resident_share: float | None = None
    """Of the node's training files, in the page cache after it was warmed or emptied; the node's first rank knows."""
    stage: dict[str, Any] | None = None
    """Copies on this node's own disk (staging.py), None where the data is read where it lies."""
    node_steps: int | None = None
    """Steps of an epoch, where each node has samples of its own and no others; else they follow from the data."""
    readiness: dict[str, float] = field(default_factory=dict)
    decoder: str = ""
    parameters: int = 0
    parameter_digest: str | None = None
    finite: bool = True
    backend: str = "none"
    overlapped: bool = False
    """The exchange happens inside backward and has no time of its own."""
    device_name: str = ""
    affinity: list[int] = field(default_factory=list)
    placement: dict[str, Any] = field(default_factory=dict)
    """Host, cores, device (binding.py)."""
    interface: str | None = None
    """Network interface of gloo, where several machines take part."""
    faults: dict[str, int] = field(default_factory=dict)
    setup_s: float | None = None
    strategy: dict[str, float] = field(default_factory=dict)
    """Further columns that the strategy knows."""
    doubt: str | None = None
    """Why the strategy does not believe this rank's part of the run."""


class Rank:
    """One process of a run."""

    def __init__(self, job: Job, rank: int) -> None:
        self.job, self.spec, self.resolved = job, job.spec, job.resolved
        self.world = join(job, rank)
        self.faults = Faults(job.spec, rank, job.beside)
        self.report = Report(rank, affinity=sorted(os.sched_getaffinity(0)), device_name=device_name(self.world.device))
        self.report.backend = dist.get_backend() if dist.is_initialized() else "none"
        self.report.decoder = kernel.state()
        self.report.placement = placement(device_bus_id(self.world.device))
        self.report.interface = os.environ.get("GLOO_SOCKET_IFNAME")
        self.timer = StepTimer(self.world.device)
        self.losses: list[torch.Tensor] = []
        self.earlier_losses = np.zeros(0)
        self.slow_decodes_before = 0
        self.read_before = 0

    def run(self) -> None:
        """The whole life of the process."""
        self.open_data()
        self.assemble()
        self.resume()
        if self.world.is_server:
            self.serve()
            if self.stage is not None:
                self.stage.end()
            return
        self.prepare_cache()
        self.measure_loader()
        cause = self.train()
        if cause:
            self.stop(cause)
            if self.stage is not None:
                self.stage.end()
            return
        if self.world.rank == 0:
            say_agreed(self.job.folder)  # the result is near: a wish to stop is met by finishing
        self.evaluate_at_end()
        self.time_a_checkpoint()
        self.strategy.finish()
        with self.strategy.full_parameters():
            self.check_parameters()
            self.keep_weights()
        self.write_report()
        if self.stage is not None:
            self.stage.end()

    # What is needed

    def open_data(self) -> None:
        """The training and held-out sets, and how many steps an epoch has."""
        spec = self.spec
        # All ranks of a node share the rate of an emulated storage.
        place = self.job.folder / f"storage.{self.world.rank // self.resolved.ranks_per_node}"
        manifest, loader = self.job.manifest, spec.loader
        self.stage = staging.Stage(self.job, self.world.rank) if spec.stage.to else None
        self.share: NodeShare | None = None
        if self.stage is not None:
            manifest, loader, self.share = self.stage.read_from, self.stage.loader, self.stage.node_share()
            self.report.stage = staging.plain(self.stage.report)
        self.data: Dataset = open_dataset(manifest, "train", loader, place)
        self.held_out: Dataset = open_dataset(manifest, "test", loader, place)
        self.steps_per_epoch = steps_per_epoch(self.data.samples, spec.global_batch, spec.loader.last_batch)
        if self.share is not None:
            self.steps_per_epoch = self.report.node_steps = self.share.steps
        self.planned_steps = self.steps_per_epoch * spec.train.epochs
        if spec.measure.steps is not None:
            self.planned_steps = min(self.planned_steps, spec.measure.warmup_steps + spec.measure.steps)
        limit = spec.loader.memory_limit_mib
        self.cache_limit = CacheLimit(int(limit * 2**20 / self.resolved.ranks_per_node)) if limit else None

    def assemble(self) -> None:
        """Model, optimiser and strategy. Equal weights on all ranks come from the strategy's broadcast."""
        spec, world = self.spec, self.world
        begin = time.perf_counter()
        self.strategy = build_strategy(spec.strategy, world)
        torch.manual_seed(spec.seed)
        self.dtype = DTYPES[spec.dtype]
        size = spec.loader.size
        self.model = build_model(
            spec.model,
            classes=self.data.classes,
            channels=self.data.channels,
            image_size=(size, size) if size else self.data.image_size,
            task=self.data.task,
            extensions=self.job.extensions,
        ).to(world.device, self.dtype)
        if spec.memory_format == "channels_last":
            self.model = self.model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        self.state_names = list(self.model.state_dict())
        self.report.parameters = sum(p.numel() for p in self.model.parameters() if p.requires_grad)
        self.emulated = self.resolved.step_time_s is not None
        stepped: nn.Module = self.model
        if self.resolved.step_time_s is not None:
            stepped = emulate(self.model, self.resolved.step_time_s / spec.batch.accumulate)
        elif spec.compile:
            stepped.compile()
        self.strategy.accumulation_steps = spec.batch.accumulate
        if spec.autocast is not None:
            self.strategy.precision = partial(torch.autocast, world.device.type, DTYPES[spec.autocast])
        if spec.autocast == "float16":
            self.strategy.scaler = torch.amp.GradScaler(world.device.type)
        self.label_weights = label_weights(self.data) if spec.train.weighted_loss else None
        if self.strategy.wants_example:
            self.strategy.example = self.example()
        self.module = self.strategy.prepare(stepped, lambda parameters: make_optimiser(spec.optimiser, parameters))
        self.module.train()
        self.report.setup_s = time.perf_counter() - begin
        if not self.world.is_server:
            self.settle()
        self.report.overlapped = self.strategy.overlapped
        self.agreement = Agreement(self.job, self.world, spec.strategy.synchronous, self.state_bytes())

    def example(self) -> tuple[torch.Tensor, torch.Tensor]:
        """This rank's first batch, as `train` will hand it on."""
        spec = self.spec
        indices = self.order(0)[0]
        x, y = self.data.batch(
            indices, size=spec.loader.size, augment=spec.loader.augment, seed=spec.seed, epoch=0, train=True
        )
        return normalise(x, self.dtype, self.world.device).clone(), y.to(self.world.device)

    def settle(self) -> None:
        """Let the strategy get over what only first steps do; no buffer, gradient or random state remembers it."""

        def backward() -> None:
            # A compiled model is compiled for the size of a batch. Held-out samples do not disturb how training reads.
            count = self.spec.rank_batch if self.spec.compile else 2 * self.spec.batch.accumulate
            x, y = self.held_out.batch(
                np.arange(count) % self.held_out.samples,
                size=self.spec.loader.size, augment="none", seed=self.spec.seed, epoch=0, train=False,
            )  # fmt: skip
            x = self.laid_out(normalise(x, self.dtype, self.world.device))
            self.forward_backward(x, y.to(self.world.device))

        with checkpoint.untouched_random_states():
            buffers = [buffer.clone() for buffer in self.model.buffers()]
            self.strategy.warm_up(backward)
            self.strategy.optimiser.zero_grad(set_to_none=True)
            for buffer, before in zip(self.model.buffers(), buffers, strict=True):
                buffer.copy_(before)

    def state_bytes(self) -> int:
        """About what a checkpoint holds: parameters and a momentum for each."""
        return 2 * self.report.parameters * self.dtype.itemsize

    def rate(self, step: int) -> float:
        """Learning rate of a step."""
        return rate_at(step, self.steps_per_epoch, self.spec.optimiser, self.spec.global_batch)

    def serve(self) -> None:
        """A parameter server's whole life."""
        begun = self.report.steps_done
        self.report.steps_done += self.strategy.serve(lambda step: self.rate(begun + step))
        self.write_report()
        if events := self.strategy.records():
            columns: dict[str, Any] = {name: np.array(values) for name, values in events.items()}
            np.savez(self.job.folder / f"events.{self.world.rank}.npz", **columns)

    # Going on after a stop

    def resume(self) -> None:
        """Be as after the last step that the checkpoint knows."""
        if self.job.resume is None:
            return
        facts = checkpoint.read_facts(self.job.resume)
        self.strategy.load_state(checkpoint.read_state(self.job.resume))
        self.report.steps_done = facts["step"]
        if self.job.borrowed:
            self.begin_at(facts["step"])
            self.report.evaluations = facts["reports"][0]["evaluations"]
        elif not self.world.is_server:
            self.remember(facts["reports"][self.world.rank])

    def begin_at(self, step: int) -> None:
        """Another run made the steps before: warm-up and window of this one begin here."""
        spec, self.report.first_step = self.spec, step
        self.planned_steps = self.steps_per_epoch * spec.train.epochs
        if spec.measure.steps is not None:
            self.planned_steps = min(self.planned_steps, step + spec.measure.warmup_steps + spec.measure.steps)
        if step >= self.planned_steps:
            raise UserError(
                f"it is after step {step}; the training has {self.planned_steps}",
                str(self.job.resume),
                "raise train.epochs",
            )

    def remember(self, earlier: dict[str, Any]) -> None:
        """Take over what this rank knew and had counted."""
        assert self.job.resume is not None
        own = checkpoint.read_rank(self.job.resume, self.world.rank)
        checkpoint.set_random_states(own)
        if self.strategy.scaler is not None:
            scale, tracker = own["loss_scale"].tolist()
            known = self.strategy.scaler.state_dict()
            self.strategy.scaler.load_state_dict({**known, "scale": scale, "_growth_tracker": int(tracker)})
        self.timer.earlier, self.earlier_losses = own["marks"].numpy(), own["losses"].numpy()
        if self.stage is not None and earlier.get("stage"):
            self.report.stage = staging.plain(staging.together(earlier["stage"], self.stage.report))
        here = ("affinity", "device_name", "backend", "overlapped", "parameters", "placement", "interface", "stage")
        self.report = Report(**{**earlier, **{name: getattr(self.report, name) for name in here}})
        done = self.report.steps_done
        self.report.pauses.append(done)
        self.report.left_out.append((done, done + self.spec.measure.warmup_steps))
        if (cost := checkpoint.read_cost(self.job.resume)) is not None:
            self.report.checkpoints.append(cost)
            self.report.loop_s += 0.0 if cost["stop"] else cost["seconds"]
        counts = Counter(earlier["faults"])
        self.slow_decodes_before = counts.pop("slow_decode", 0)
        self.faults.fired = counts
        self.read_before = earlier["read_bytes"] or 0

    def save(self, done: int, cause: str, stop: bool = False) -> None:
        """Write a checkpoint after so many steps, all ranks together, with the report as it is; count what it cost."""
        assert self.job.beside is not None
        begin = time.perf_counter()
        tensors = {
            **checkpoint.random_states(),
            "marks": torch.from_numpy(self.timer.seconds().copy()),
            "losses": torch.from_numpy(self.all_losses()),
        }
        if self.strategy.scaler is not None:
            scale = self.strategy.scaler.state_dict()
            tensors["loss_scale"] = torch.tensor([scale["scale"], scale["_growth_tracker"]], dtype=torch.float64)
        facts = {
            "run": self.job.run, "spec": self.spec.plain(), "global_batch": self.spec.global_batch,
            "ranks": self.spec.ranks, "cause": cause, "written": checkpoint.now(), "code": code_digest(),
        }  # fmt: skip
        part = checkpoint.Part(tensors, vars(self.report), self.strategy.state())
        folder = self.job.beside / CHECKPOINTS
        size = checkpoint.write(folder, done, self.world.rank, part, facts, self.strategy.gather)
        self.barrier()
        seconds = time.perf_counter() - begin
        cost = {"step": done, "seconds": seconds, "bytes": size, "stop": stop, "cause": cause}
        self.report.checkpoints.append(cost)
        if self.world.rank == 0:
            checkpoint.write_cost(folder, cost)
            notices.write_state(self.job.beside, "running", done, f"saved after step {done}, {cause}")
        self.agreement.written(seconds)
        self.report.pauses.append(done)

    def stop(self, cause: str) -> None:
        """Leave word that this run stopped on purpose, and let servers end."""
        self.strategy.finish()
        if self.world.rank == 0:
            write_json(self.job.folder / notices.STOPPED, {"step": self.report.steps_done, "cause": cause})

    def time_a_checkpoint(self) -> None:
        """A run cut short that is to write checkpoints has to know what one costs, if none was due yet."""
        spec = self.spec.checkpoint
        wanted = spec.every_steps is not None or spec.every_minutes is not None
        if wanted and not self.spec.runs_full_training and not self.report.checkpoints:
            self.save(self.report.steps_done, "to time it")

    # The data

    def prepare_cache(self) -> None:
        """Bring the page cache into the state that the spec names; on each node once, then all wait."""
        if self.world.rank % self.resolved.ranks_per_node == 0:
            files = self.data.files if self.stage is None else self.stage.copies.here(self.data.files)
            if self.spec.loader.cache == "warm":
                warm(files)
            elif self.spec.loader.cache == "cold" or self.cache_limit is not None:
                drop(files)
            if self.spec.loader.cache != "as_found" and files:
                there = resident_bytes(files)
                size = sum(file.stat().st_size for file in files)
                self.report.resident_share = None if there is None or not size else min(1.0, there / size)
        self.barrier()

    def plan(self) -> Iterator[tuple[int, np.ndarray]]:
        """Epoch and sample indices of each of this rank's batches, from the first step that is not done."""
        spec, step = self.spec, self.report.steps_done
        for epoch in range(step // self.steps_per_epoch, spec.train.epochs):
            order = self.order(epoch)
            for indices in order[step % self.steps_per_epoch :]:
                if step >= self.planned_steps:
                    return
                step += 1
                yield epoch, indices

    def order(self, epoch: int) -> np.ndarray:
        """[steps, rank_batch] this rank's samples of an epoch."""
        spec, rank, per_node = self.spec, self.world.rank, self.resolved.ranks_per_node
        last, stream = spec.loader.last_batch, self.data.stream
        if self.share is not None:
            place, node_batch = self.job.local_number(rank), per_node * spec.rank_batch
            return self.share.batches(node_batch, place, per_node, spec.seed, epoch, last=last, stream=stream)
        return batches(
            self.data.samples, spec.global_batch, rank, self.world.ranks, spec.seed, epoch, last=last, stream=stream
        )

    def loader(self) -> Loader:
        """The batches of the whole run."""
        slow_s = self.faults.slow_decode_s
        return Loader(self.data, self.plan(), self.spec.loader, self.spec.seed, slow_s, self.cache_limit)

    def measure_loader(self) -> None:
        """What the loader delivers when nothing else is done, samples/s; its first batches fill the queue, uncounted."""
        count = self.spec.measure.loader_batches
        if not count or self.report.steps_done:
            return
        ahead = max(1, self.spec.loader.workers * self.spec.loader.prefetch)
        with closing(self.loader()) as loader:
            stream = iter(loader)
            for _ in range(ahead):
                next(stream, None)
            begin, samples = time.perf_counter(), 0
            for _, (x, y) in zip(range(count), stream, strict=False):
                normalise(x, self.dtype, self.world.device)
                samples += len(y)
            self.report.loader_samples_per_s = samples / (time.perf_counter() - begin) if samples else None
        self.prepare_cache()  # what was just read is no longer cold

    # The training

    def train(self) -> str:
        """All steps, with evaluations and checkpoints between them; ends where the spec says.

        Returns why the run stopped on purpose before that, with its checkpoint written; "" where it did not.
        """
        report, timer = self.report, self.timer
        device, dtype = self.world.device, self.dtype
        self.barrier()
        self.begin_clocks()
        with closing(self.loader()) as self.stream:
            stream = on_device(self.stream, device) if self.spec.loader.pin_memory else iter(self.stream)
            if report.steps_done:
                self.evaluate_after(report.steps_done)  # the run may have stopped just before
            for step in range(report.steps_done, self.planned_steps):
                self.faults.before_step(step)
                self.strategy.set_learning_rate(self.rate(step))
                timer.begin()
                x, y = next(stream)
                x, y = self.laid_out(normalise(x, dtype, device)), y.to(device, non_blocking=True)
                timer.mark()
                loss = self.forward_backward(x, y)
                self.faults.in_step(step)
                timer.mark()
                self.strategy.exchange()
                timer.mark()
                self.update()
                timer.end()
                self.losses.append(loss)
                report.samples_seen += len(y)
                report.steps_done = step + 1
                over, cause = self.between_steps(step + 1)
                if over:
                    break
            else:
                cause = ""
        self.account()
        return cause

    def begin_clocks(self) -> None:
        """The steps begin, or go on."""
        report, now = self.report, time.perf_counter()
        self.begin = now - report.loop_s
        self.bytes_before = read_bytes()
        self.window_end = None if report.window_left_s is None else now + report.window_left_s
        self.agreement.begin(report.steps_done)

    def between_steps(self, done: int) -> tuple[bool, str]:
        """What is due after so many steps; returns whether that was the last step, and why where that was not planned."""
        minutes = self.spec.measure.minutes
        warm = self.report.first_step + max(1, self.spec.measure.warmup_steps)
        if minutes is not None and self.window_end is None and done >= warm:
            self.window_end = time.perf_counter() + 60 * minutes
        evaluation, last = self.evaluation_due(done), done == self.planned_steps
        saving = self.agreement.checkpoint_due(done) and not last
        meeting = evaluation or (not self.spec.strategy.synchronous and (saving or last))
        next_s = self.longest_evaluation_s() if evaluation else 0.0
        answer = self.agreement.after(done, meeting, self.window_end, next_s)
        if answer is not None:
            if answer.window_over:
                return True, ""
            if answer.stop and (evaluation or not last) and self.job.beside is not None:
                if self.world.rank == 0:
                    say_agreed(self.job.folder)
                self.account()
                self.save(done, answer.stop, stop=True)
                return True, answer.stop
        if evaluation:
            self.evaluate_after(done)
        timely = answer is not None and answer.checkpoint and not last
        if saving or timely:
            every = self.spec.checkpoint
            self.account()
            self.save(done, f"every {every.every_steps} steps" if saving else f"every {every.every_minutes:g} minutes")
        return False, ""

    def account(self) -> None:
        """Bring the report up to the step that was just done."""
        report, spec, now = self.report, self.spec, time.perf_counter()
        report.loop_s = now - self.begin
        report.window_left_s = None if self.window_end is None else self.window_end - now
        report.epochs_done = report.steps_done / self.steps_per_epoch
        first = report.first_step
        report.window = (min(first + spec.measure.warmup_steps, max(first, report.steps_done - 1)), report.steps_done)
        report.readiness = self.stream.readiness
        before, after = self.bytes_before, read_bytes()
        report.read_bytes = None if before is None or after is None else self.read_before + after - before
        report.faults = dict(self.faults.fired)
        if self.faults.killed_before:
            report.faults["killed_rank"] = self.faults.killed_before
        if self.faults.slow_decode_s:
            report.faults["slow_decode"] = self.slow_decodes_before + self.stream.slow_decode

    def forward_backward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        """Gradients of the mean loss over this rank's batch; returns the loss."""
        return self.strategy.forward_backward(self.module, x, y, self.loss)

    def laid_out(self, x: torch.Tensor) -> torch.Tensor:
        """A batch in the memory format that the spec names; otherwise as the loader has it."""
        wanted = self.spec.memory_format == "channels_last" and x.ndim == 4
        return x.contiguous(memory_format=torch.channels_last) if wanted else x

    def loss(self, output: Any, y: torch.Tensor) -> torch.Tensor:
        """The mean loss over this rank's batch."""
        return outputs.loss(output, y, self.data.task, self.label_weights)

    def update(self) -> None:
        """Apply the gradients. An emulated accelerator's published step time already holds its optimiser."""
        if not self.emulated:
            self.strategy.update()

    def evaluation_due(self, done: int) -> bool:
        """Whether an epoch ends here, the spec asks for an evaluation, and it has not been made."""
        every, made = self.spec.train.evaluate_every_epochs, self.report.evaluations
        due = every and not self.emulated and done % (every * self.steps_per_epoch) == 0
        return bool(due) and not (made and made[-1]["step"] == done)

    def longest_evaluation_s(self) -> float:
        """What the next evaluation may take."""
        return max((evaluation["evaluation_s"] for evaluation in self.report.evaluations), default=0.0)

    def evaluate_after(self, done: int) -> None:
        """Evaluate where an epoch ends and the spec asks for it."""
        if self.evaluation_due(done):
            self.evaluate(done // self.steps_per_epoch, done)
            self.agreement.paused(self.report.evaluations[-1]["evaluation_s"])
            self.report.pauses.append(done)

    def evaluate_at_end(self) -> None:
        """Evaluate after the last step, unless that was just done; a run cut short needs its time to extrapolate."""
        done = self.report.evaluations
        due = self.spec.train.evaluate_every_epochs and not self.emulated and self.report.steps_done
        if due and not (done and done[-1]["step"] == self.report.steps_done):
            self.begin = time.perf_counter() - self.report.loop_s
            self.evaluate(self.report.epochs_done, self.report.steps_done)
        times = [evaluation["evaluation_s"] for evaluation in done]
        self.report.evaluation_s = sum(times) / len(times) if times else None

    def evaluate(self, epoch: float, step: int) -> None:
        """One evaluation on held-out data; `time_s` is when it began, in seconds of the training loop."""
        start = time.perf_counter()
        with self.strategy.full_parameters() as model:
            scores = evaluate(model, self.held_out, self.spec, self.world, self.dtype)
        end = time.perf_counter()
        self.report.evaluations.append(
            {"epoch": epoch, "step": step, "time_s": start - self.begin, "evaluation_s": end - start, **scores}
        )

    # What can be believed, and what is left behind

    def check_parameters(self) -> None:
        """A digest of the parameters, to compare over ranks, and whether loss and parameters are finite."""
        self.report.strategy, self.report.doubt = self.strategy.measured(), self.strategy.invalid_reason()
        self.report.finite = bool(np.isfinite(self.all_losses()).all()) and all(
            bool(torch.isfinite(parameter).all()) for parameter in self.model.parameters()
        )
        if self.strategy.equal_parameters and not self.emulated:
            digest = hashlib.blake2b(digest_size=16)
            for parameter in self.model.parameters():
                # From a copy: memory that numpy has seen can no longer be given up, as a sharding strategy wants to.
                copied = parameter.detach().to("cpu", copy=True).contiguous()
                digest.update(copied.view(torch.uint8).numpy().tobytes())
            self.report.parameter_digest = digest.hexdigest()

    def keep_weights(self) -> None:
        """The final weights, unsharded, under the model's own names."""
        if self.job.weights is not None and self.world.rank == 0:
            from safetensors.torch import save_file

            # Not by `state_dict()`, to which a sharded model answers with shards.
            tensors = {**dict(self.model.named_parameters()), **dict(self.model.named_buffers())}
            state = {name: tensors[name].detach().cpu().contiguous().clone() for name in self.state_names}
            temporary = self.job.folder / "weights.safetensors"
            save_file(state, temporary)

    def write_report(self) -> None:
        """This rank's report and step times, for the process that started it."""
        file = self.job.folder / f"steps.{self.world.rank}.npz"
        np.savez(file, marks=self.timer.seconds(), loss=self.all_losses())
        write_json(self.job.folder / f"report.{self.world.rank}.json", vars(self.report))

    def all_losses(self) -> np.ndarray:
        """float64 [steps], of all links."""
        since = torch.stack(self.losses).double().cpu().numpy() if self.losses else np.zeros(0)
        return np.concatenate([self.earlier_losses, since])

    def barrier(self) -> None:
        """Wait for all ranks that train."""
        if self.world.workers is not None and self.world.ranks > 1:
            dist.barrier(group=self.world.workers)


def join(job: Job, rank: int) -> World:
    """Become rank `rank` of the run: threads, device, process groups."""
    spec, resolved = job.spec, job.resolved
    torch.set_num_threads(resolved.threads_per_rank)
    device = torch.device("cpu")
    if resolved.device == "cuda" and rank < spec.ranks:
        device = torch.device("cuda", job.local_rank(rank))
        torch.cuda.set_device(device)
    processes = job.processes
    workers = control = None
    if processes > 1 or spec.strategy.name != "single":
        # Servers are CPU processes: with them, a GPU run exchanges through the host.
        backend = "nccl" if device.type == "cuda" and not spec.strategy.servers_beside else "gloo"
        dist.init_process_group(backend, store=rendezvous_store(job, rank), rank=rank, world_size=processes)
        workers = new_group(spec.ranks)
        control = new_group(spec.ranks, "gloo") if backend == "nccl" else None
    return World(
        rank, spec.ranks, spec.strategy.servers_beside, device, resolved.ranks_per_node, workers, control, job.keep
    )


def new_group(ranks: int, backend: str | None = None) -> dist.ProcessGroup | None:
    """A group of those that train; None on a server, which is not in it."""
    group = dist.new_group(list(range(ranks)), backend=backend)
    return group if isinstance(group, dist.ProcessGroup) else None


def device_name(device: torch.device) -> str:
    """The accelerator as its maker calls it, or `cpu`."""
    return torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu"


def device_bus_id(device: torch.device) -> str | None:
    """The GPU's PCI address as the kernel writes it."""
    if device.type != "cuda":
        return None
    found: Any = torch.cuda.get_device_properties(device)
    return f"{found.pci_domain_id:04x}:{found.pci_bus_id:02x}:{found.pci_device_id:02x}.0"


def main(job: Job, rank: int) -> None:
    """Run one rank to its end."""
    Rank(job, rank).run()
    if dist.is_initialized():
        dist.destroy_process_group()
