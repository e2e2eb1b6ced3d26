"""One process of a run: a rank that trains, or a parameter server. `Rank.run` is the table of contents."""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import nn

from scalestudy.data.dataset import Dataset, normalise, open_dataset
from scalestudy.data.loader import Loader
from scalestudy.data.pagecache import CacheLimit, drop, read_bytes, warm
from scalestudy.data.sampler import batches
from scalestudy.files import write_json
from scalestudy.measure.timers import StepTimer
from scalestudy.models import outputs
from scalestudy.models.build import build as build_model
from scalestudy.models.emulated import emulate
from scalestudy.strategies.base import World
from scalestudy.strategies.build import build as build_strategy
from scalestudy.training.binding import placement
from scalestudy.training.evaluate import evaluate, label_weights
from scalestudy.training.faults import Faults
from scalestudy.training.job import Job
from scalestudy.training.optim import make_optimiser, rate_at
from scalestudy.training.rendezvous import store as rendezvous_store

DTYPES = {"float32": torch.float32, "float64": torch.float64, "float16": torch.float16, "bfloat16": torch.bfloat16}
STOP_CHECK_STEPS = 10
Batch = tuple[int, torch.Tensor, torch.Tensor]


@dataclass
class Report:
    """What one rank has to say when it is done; plain data."""

    rank: int
    steps_done: int = 0
    samples_seen: int = 0
    window: tuple[int, int] = (0, 0)
    """First step of the measured window, and the step after its last."""
    loop_s: float = 0.0
    epochs_done: float = 0.0
    evaluations: list[dict[str, Any]] = field(default_factory=list)
    evaluation_s: float | None = None
    loader_samples_per_s: float | None = None
    read_bytes: int | None = None
    parameters: int = 0
    parameter_digest: str | None = None
    finite: bool = True
    backend: str = "none"
    device_name: str = ""
    affinity: list[int] = field(default_factory=list)
    placement: dict[str, Any] = field(default_factory=dict)
    """Host, cores, device (binding.py)."""
    interface: str | None = None
    """Network interface of gloo, where several machines take part."""
    faults: dict[str, int] = field(default_factory=dict)


class Rank:
    """One process of a run."""

    def __init__(self, job: Job, rank: int) -> None:
        self.job, self.spec, self.resolved = job, job.spec, job.resolved
        self.world = join(job, rank)
        self.faults = Faults(job.spec, rank)
        self.report = Report(rank, affinity=sorted(os.sched_getaffinity(0)), device_name=device_name(self.world.device))
        self.report.backend = dist.get_backend() if dist.is_initialized() else "none"
        self.report.placement = placement(device_bus_id(self.world.device))
        self.report.interface = os.environ.get("GLOO_SOCKET_IFNAME")
        self.timer = StepTimer(self.world.device)
        self.losses: list[torch.Tensor] = []

    def run(self) -> None:
        """The whole life of the process."""
        self.open_data()
        self.assemble()
        if self.world.is_server:
            self.serve()
            return
        self.prepare_cache()
        self.measure_loader()
        self.train()
        self.evaluate_at_end()
        self.strategy.finish()
        self.check_parameters()
        self.keep_weights()
        self.write_report()

    # What is needed

    def open_data(self) -> None:
        """The training and held-out sets, and how many steps an epoch has."""
        spec = self.spec
        self.data: Dataset = open_dataset(self.job.manifest, "train")
        self.held_out: Dataset = open_dataset(self.job.manifest, "test")
        plan = batches(self.data.samples, spec.global_batch, 0, spec.ranks, spec.seed, 0)
        self.steps_per_epoch = len(plan)
        self.planned_steps = self.steps_per_epoch * spec.train.epochs
        if spec.measure.steps is not None:
            self.planned_steps = min(self.planned_steps, spec.measure.warmup_steps + spec.measure.steps)
        limit = spec.loader.memory_limit_mib
        self.cache_limit = CacheLimit(int(limit * 2**20 / self.resolved.ranks_per_node)) if limit else None

    def assemble(self) -> None:
        """Model, optimiser and strategy. Equal weights on all ranks come from the strategy's broadcast."""
        spec, world = self.spec, self.world
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
        self.report.parameters = sum(p.numel() for p in self.model.parameters() if p.requires_grad)
        self.emulated = self.resolved.step_time_s is not None
        stepped: nn.Module = self.model
        if self.resolved.step_time_s is not None:
            stepped = emulate(self.model, self.resolved.step_time_s / spec.batch.accumulate)
        elif spec.compile:
            stepped.compile()
        self.strategy = build_strategy(spec.strategy, world)
        self.strategy.parts = spec.batch.accumulate
        if spec.autocast is not None:
            self.strategy.precision = partial(torch.autocast, world.device.type, DTYPES[spec.autocast])
        if spec.autocast == "float16":
            self.strategy.scaler = torch.amp.GradScaler(world.device.type)
        self.label_weights = label_weights(self.data) if spec.train.weighted_loss else None
        self.module = self.strategy.prepare(stepped, lambda parameters: make_optimiser(spec.optimiser, parameters))
        self.module.train()

    def rate(self, step: int) -> float:
        """Learning rate of a step."""
        return rate_at(step, self.steps_per_epoch, self.spec.optimiser, self.spec.global_batch)

    def serve(self) -> None:
        """A parameter server's whole life."""
        self.report.steps_done = self.strategy.serve(self.rate)
        self.write_report()

    # The data

    def prepare_cache(self) -> None:
        """Bring the page cache into the state that the spec names; on each node once, then all wait."""
        if self.world.rank % self.resolved.ranks_per_node == 0:
            if self.spec.loader.cache == "warm":
                warm(self.data.files)
            elif self.spec.loader.cache == "cold" or self.cache_limit is not None:
                drop(self.data.files)
        self.barrier()

    def plan(self) -> Iterator[tuple[int, np.ndarray]]:
        """Epoch and sample indices of each of this rank's batches."""
        spec, world, left = self.spec, self.world, self.planned_steps
        for epoch in range(spec.train.epochs):
            for indices in batches(self.data.samples, spec.global_batch, world.rank, world.ranks, spec.seed, epoch):
                if left == 0:
                    return
                left -= 1
                yield epoch, indices

    def loader(self) -> Loader:
        """The batches of the whole run."""
        slow_s = self.faults.slow_decode_s
        return Loader(self.data, self.plan(), self.spec.loader, self.spec.seed, slow_s, self.cache_limit)

    def measure_loader(self) -> None:
        """What the loader delivers when nothing else is done, samples/s; its first batches fill the queue, uncounted."""
        count = self.spec.measure.loader_batches
        if not count:
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

    def train(self) -> None:
        """All steps, with evaluations between epochs; stops where the spec says."""
        spec, report, timer = self.spec, self.report, self.timer
        device, dtype = self.world.device, self.dtype
        bytes_before = read_bytes()
        self.barrier()
        begin = time.perf_counter()
        window_end = None if spec.measure.minutes is None else float("inf")
        last_warmup = max(0, spec.measure.warmup_steps - 1)
        with closing(self.loader()) as loader:
            stream = iter(loader)
            for step in range(self.planned_steps):
                self.faults.before_step(step)
                self.strategy.set_rate(self.rate(step))
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
                if step == last_warmup and spec.measure.minutes is not None:
                    window_end = time.perf_counter() + 60 * spec.measure.minutes
                if window_end is not None and self.time_is_up(step, window_end):
                    break
                self.evaluate_after(step, begin)
        report.loop_s = time.perf_counter() - begin
        report.epochs_done = report.steps_done / self.steps_per_epoch
        report.window = (min(spec.measure.warmup_steps, max(0, report.steps_done - 1)), report.steps_done)
        after = read_bytes()
        report.read_bytes = None if after is None or bytes_before is None else after - bytes_before
        report.faults = {
            **self.faults.fired,
            **({"slow_decode": loader.slow_decode} if self.faults.slow_decode_s else {}),
        }

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

    def time_is_up(self, step: int, window_end: float) -> bool:
        """Whether the window's minutes have passed for any rank; agreed on by all, every few steps."""
        if (step + 1) % STOP_CHECK_STEPS:
            return False
        up = torch.tensor(float(time.perf_counter() >= window_end))
        if self.world.workers is not None and self.world.ranks > 1:
            up = up.to(self.world.device)
            dist.all_reduce(up, dist.ReduceOp.MAX, group=self.world.workers)
        return bool(up.item())

    def evaluate_after(self, step: int, begin: float) -> None:
        """Evaluate where an epoch ends and the spec asks for it."""
        every = self.spec.train.evaluate_every_epochs
        if every and not self.emulated and (step + 1) % (every * self.steps_per_epoch) == 0:
            self.evaluate((step + 1) // self.steps_per_epoch, step + 1, begin)

    def evaluate_at_end(self) -> None:
        """Evaluate after the last step, unless that was just done; a run cut short needs its time to extrapolate."""
        done = self.report.evaluations
        due = self.spec.train.evaluate_every_epochs and not self.emulated and self.report.steps_done
        if due and not (done and done[-1]["step"] == self.report.steps_done):
            self.evaluate(self.report.epochs_done, self.report.steps_done, time.perf_counter() - self.report.loop_s)
        times = [evaluation["evaluation_s"] for evaluation in done]
        self.report.evaluation_s = sum(times) / len(times) if times else None

    def evaluate(self, epoch: float, step: int, begin: float) -> None:
        """One evaluation on held-out data; `time_s` is when it began, in seconds of the training loop."""
        start = time.perf_counter()
        scores = evaluate(self.model, self.held_out, self.spec, self.world, self.dtype)
        end = time.perf_counter()
        self.report.evaluations.append(
            {"epoch": epoch, "step": step, "time_s": start - begin, "evaluation_s": end - start, **scores}
        )

    # What can be believed, and what is left behind

    def check_parameters(self) -> None:
        """A digest of the parameters, to compare over ranks, and whether loss and parameters are finite."""
        losses = torch.stack(self.losses).float() if self.losses else torch.zeros(0)
        self.report.finite = bool(torch.isfinite(losses).all()) and all(
            bool(torch.isfinite(parameter).all()) for parameter in self.model.parameters()
        )
        if self.strategy.equal_parameters and not self.emulated:
            digest = hashlib.blake2b(digest_size=16)
            for parameter in self.model.parameters():
                digest.update(parameter.detach().cpu().contiguous().view(torch.uint8).numpy().tobytes())
            self.report.parameter_digest = digest.hexdigest()

    def keep_weights(self) -> None:
        """The final weights, unsharded, under the model's own names."""
        if self.job.weights is not None and self.world.rank == 0:
            from safetensors.torch import save_file

            state = {
                name: tensor.detach().cpu().contiguous().clone() for name, tensor in self.model.state_dict().items()
            }
            temporary = self.job.folder / "weights.safetensors"
            save_file(state, temporary)

    def write_report(self) -> None:
        """This rank's report and step times, for the process that started it."""
        losses = torch.stack(self.losses).double().cpu().numpy() if self.losses else np.zeros(0)
        np.savez(self.job.folder / f"steps.{self.world.rank}.npz", marks=self.timer.seconds(), loss=losses)
        write_json(self.job.folder / f"report.{self.world.rank}.json", vars(self.report))

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
    workers = None
    if processes > 1 or spec.strategy.name != "single":
        # Servers are CPU processes: with them, a GPU run exchanges through the host.
        backend = "nccl" if device.type == "cuda" and not spec.strategy.servers_beside else "gloo"
        dist.init_process_group(backend, store=rendezvous_store(job, rank), rank=rank, world_size=processes)
        group = dist.new_group(list(range(spec.ranks)))
        # A server is not in it.
        workers = group if isinstance(group, dist.ProcessGroup) else None
    return World(rank, spec.ranks, spec.strategy.servers_beside, device, resolved.ranks_per_node, workers)


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
