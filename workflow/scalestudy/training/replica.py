"""One rank's replica of the model, with the strategy by which it exchanges gradients with the others."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import nn

from scalestudy.data.load.dataset import Dataset
from scalestudy.data.load.normalise import normalise
from scalestudy.models import outputs
from scalestudy.models.build import build as build_model
from scalestudy.spec.run import Optimiser
from scalestudy.strategies.base import World
from scalestudy.strategies.build import build as build_strategy
from scalestudy.training import checkpoint
from scalestudy.training.job import Job
from scalestudy.training.training_data import TrainingData

if TYPE_CHECKING:
    from scalestudy.emulation.accelerator import Emulated

DTYPES = {"float32": torch.float32, "float64": torch.float64, "float16": torch.float16, "bfloat16": torch.bfloat16}


def make_optimiser(spec: Optimiser, parameters: Any) -> torch.optim.Optimizer:
    """SGD as the spec has it; the rate is set before each step by the schedule."""
    return torch.optim.SGD(
        parameters,
        lr=spec.learning_rate,
        momentum=spec.momentum,
        weight_decay=spec.weight_decay,
        nesterov=spec.nesterov,
    )


class Replica:
    """Model, optimiser and strategy of one process. Equal weights on all ranks come from the strategy's broadcast."""

    def __init__(self, job: Job, world: World, data: TrainingData) -> None:
        begin = time.perf_counter()
        self.job, self.spec, self.world, self.data = job, job.spec, world, data
        self.dtype = DTYPES[self.spec.dtype]
        self.emulator: Emulated | None = None
        self.emulated = job.resolved.step_time_s is not None
        self.strategy = build_strategy(self.spec.strategy, world)
        self.memory_limit: AbstractContextManager[None] = nullcontext()
        """Entered for the computation of a step."""
        if self.spec.memory_limit_mib is not None and not world.is_server:
            from scalestudy.measure.memory import MemoryLimit

            self.memory_limit = MemoryLimit(world.device, int(self.spec.memory_limit_mib * 2**20))
        self.model = self._built_model(data.train)
        # Weights follow from the seed alone; what ranks draw from here on, such as dropout's masks, differs.
        torch.manual_seed(int(np.random.SeedSequence([self.spec.seed, world.rank]).generate_state(1)[0]))
        torch.set_num_threads(job.resolved.threads_per_rank)  # the user's class may have set another number
        self.state_names = list(self.model.state_dict())
        self.parameters = sum(p.numel() for p in self.model.parameters() if p.requires_grad)
        self.state_bytes = 2 * self.parameters * self.dtype.itemsize
        """Rough size of a checkpoint: parameters and a momentum for each."""
        self.times_forward = self.strategy.whole_parameters and self.spec.batch.accumulate == 1
        """Forward and backward can be timed one by one: neither alternates with the other, nor exchanges."""
        self._configure_strategy()
        self.module = self.strategy.prepare(self._stepped(), partial(make_optimiser, self.spec.optimiser))
        self.module.train()
        self.setup_s = time.perf_counter() - begin
        """Time to build the model and prepare the strategy, without its warm-up."""
        if not world.is_server:
            self._warm_up()

    # One step

    def inputs(self, x: torch.Tensor) -> torch.Tensor:
        """A batch as the model takes it: normalised, on the device, in the memory format that the spec names.

        An emulated accelerator gets the loader's batch as it is, and reads no value: a GPU takes uint8 from pinned
        memory, copied ahead of its use, and normalises it itself, so the host has no work for it.
        """
        if self.emulated:
            return x
        x = normalise(x, self.dtype, self.world.device)
        channels_last = self.spec.memory_format == "channels_last" and x.ndim == 4
        return x.contiguous(memory_format=torch.channels_last) if channels_last else x

    def forward_backward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        """Gradients of the mean loss over this rank's batch; returns the loss."""
        return self.strategy.forward_backward(self.module, x, y, self._loss)

    def update(self) -> None:
        """Apply the gradients. An emulated accelerator's published step time already holds its optimiser."""
        if self.emulator is None:
            self.strategy.update()
        elif self.world.ranks > 1 or not self.spec.strategy.idle_alone or self.spec.faults:
            self.emulator.synchronise()

    def _loss(self, output: Any, y: torch.Tensor) -> torch.Tensor:
        if not self.emulated:
            outputs.check_trainable(output, len(y), self.data.train.classes)
        return outputs.loss(output, y, self.data.train.task)

    # What is recorded and kept of it

    def sample_at_peak_s(self) -> float | None:
        """Seconds to train on one sample at the accelerator's peaks; None where they are unknown, or torch cannot count.

        A compiled model and one that lies in shards are not counted.
        """
        products, convolutions = self.job.resolved.peak_tflops, self.job.resolved.convolution_peak_tflops
        if products is None or convolutions is None or self.emulated or self.spec.compile:
            return None
        if not self.strategy.whole_parameters:
            return None
        from scalestudy.models.count import flops_by_kind

        shape = self.held_out_batch(1)[0].shape[1:]
        try:
            of_convolutions, of_products = flops_by_kind(self.model, shape)
        except Exception:
            return None  # own models look at values, or for a GPU, which a tensor without data does not have
        return (of_convolutions / convolutions + of_products / products) / 1e12

    def digest(self) -> str | None:
        """A digest of the parameters, to compare over ranks; None where ranks need not hold equal ones."""
        if not self.spec.strategy.synchronous or self.emulated:
            return None
        digest = hashlib.blake2b(digest_size=16)
        for parameter in self.model.parameters():
            # From a copy: memory that numpy has seen can no longer be released, as a sharding strategy wants to.
            # Flat: channels-last weights of 1 x 1 convolutions count as contiguous, with strides that no view as bytes takes.
            copied = parameter.detach().to("cpu", copy=True).flatten()
            digest.update(copied.view(torch.uint8).numpy().tobytes())
        return digest.hexdigest()

    def save_weights(self, file: Path) -> None:
        """The weights, unsharded, under the model's own names; called inside the strategy's `full_parameters`."""
        from safetensors.torch import save_file

        # Not by `state_dict()`, to which a sharded model answers with shards; a shared tensor has several names.
        parameters, buffers = self.model.named_parameters, self.model.named_buffers
        tensors = {**dict(parameters(remove_duplicate=False)), **dict(buffers(remove_duplicate=False))}
        save_file({name: tensors[name].detach().cpu().contiguous().clone() for name in self.state_names}, file)

    # How it is made

    def _built_model(self, data: Dataset) -> nn.Module:
        """The run's model for samples such as those of `data`, with weights that follow from the seed."""
        spec, size = self.spec, self.spec.loader.size
        torch.manual_seed(spec.seed)
        model = build_model(
            spec.model,
            classes=data.classes,
            channels=data.channels,
            image_size=(size, size) if size else data.image_size,
            extensions=self.job.extensions,
        ).to(self.world.device, self.dtype)
        if spec.memory_format == "channels_last":
            return model.to(memory_format=torch.channels_last)  # type: ignore[call-overload, no-any-return]
        return model

    def _stepped(self) -> nn.Module:
        """The module that steps call: the model, compiled or emulated where the spec asks for it."""
        if self.job.resolved.step_time_s is not None:
            from scalestudy.emulation.accelerator import Emulated

            self.emulator = Emulated(self.model, self.job.resolved.step_time_s / self.spec.batch.accumulate)
            return self.emulator
        if self.spec.compile:
            self.model.compile()
        return self.model

    def _configure_strategy(self) -> None:
        spec, device, strategy = self.spec, self.world.device, self.strategy
        strategy.memory_limit_mib = spec.memory_limit_mib
        strategy.accumulation_steps = spec.batch.accumulate
        if spec.autocast is not None:
            strategy.precision = partial(torch.autocast, device.type, DTYPES[spec.autocast])
        if spec.autocast == "float16":
            strategy.scaler = torch.amp.GradScaler(device.type)
        if strategy.wants_example:  # this rank's first batch, as training will pass it on
            loader, samples = spec.loader, self.data.order(0)[0]
            x, y = self.data.train.batch(samples, size=loader.size, augment=loader.augment, seed=spec.seed, epoch=0)
            strategy.example = normalise(x, self.dtype, device).clone(), y.to(device)

    def _warm_up(self) -> None:
        """Let the strategy do the extra work of first steps, and restore buffers, gradients and random states."""
        # A compiled model is compiled for the size of a batch.
        count = self.spec.rank_batch if self.spec.compile else 2 * self.spec.batch.accumulate
        with self.undisturbed():
            for _ in range(max(self.strategy.warm_up_passes, int(self.spec.compile))):
                self.forward_backward(*self.held_out_batch(count))
            self.strategy.optimiser.zero_grad(set_to_none=True)

    @contextmanager
    def undisturbed(self) -> Iterator[None]:
        """Passes inside leave buffers and random states as they were."""
        buffers, states = [buffer.clone() for buffer in self.model.buffers()], checkpoint.random_states()
        yield
        checkpoint.set_random_states(states)
        with torch.no_grad():
            for buffer, before in zip(self.model.buffers(), buffers, strict=True):
                buffer.copy_(before)

    def held_out_batch(self, count: int) -> tuple[torch.Tensor, torch.Tensor]:
        """So many held-out samples, repeated where there are fewer: they do not disturb how training reads."""
        spec, held_out = self.spec, self.data.held_out
        samples = np.arange(count) % held_out.samples
        x, y = held_out.batch(samples, size=spec.loader.size, augment="none", seed=spec.seed, epoch=0)
        return self.inputs(x), y.to(self.world.device)
