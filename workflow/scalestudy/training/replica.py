"""One rank's replica of the model, with the strategy by which it exchanges gradients with the others."""

from __future__ import annotations

import hashlib
import time
from contextlib import AbstractContextManager
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from scalestudy.data.load.dataset import Dataset
from scalestudy.data.load.normalise import normalise
from scalestudy.emulation.accelerator import emulate
from scalestudy.errors import UserError
from scalestudy.models import outputs
from scalestudy.models.build import build as build_model
from scalestudy.strategies.base import World
from scalestudy.strategies.build import build as build_strategy
from scalestudy.training import checkpoint
from scalestudy.training.job import Job
from scalestudy.training.optim import make_optimiser
from scalestudy.training.training_data import TrainingData

DTYPES = {"float32": torch.float32, "float64": torch.float64, "float16": torch.float16, "bfloat16": torch.bfloat16}


class Replica:
    """Model, optimiser and strategy of one process. Equal weights on all ranks come from the strategy's broadcast."""

    def __init__(self, job: Job, world: World, data: TrainingData) -> None:
        begin = time.perf_counter()
        self.job, self.spec, self.world, self.data = job, job.spec, world, data
        self.dtype = DTYPES[self.spec.dtype]
        self.emulated = job.resolved.step_time_s is not None
        self.strategy = build_strategy(self.spec.strategy, world)
        self.model = built_model(job, world.device, self.dtype, data.train)
        torch.set_num_threads(job.resolved.threads_per_rank)  # the user's class may have set another number
        self.state_names = list(self.model.state_dict())
        self.parameters = sum(p.numel() for p in self.model.parameters() if p.requires_grad)
        self.label_weights = label_weights(data.train) if self.spec.train.weighted_loss else None
        self._configure_strategy()
        self.module = self.strategy.prepare(self._stepped(), partial(make_optimiser, self.spec.optimiser))
        self.module.train()
        self.setup_s = time.perf_counter() - begin
        """Time to build the model and prepare the strategy, without its warm-up."""
        if not world.is_server:
            self._warm_up()

    @property
    def state_bytes(self) -> int:
        """Rough size of a checkpoint: parameters and a momentum for each."""
        return 2 * self.parameters * self.dtype.itemsize

    # One step

    def inputs(self, x: torch.Tensor) -> torch.Tensor:
        """A batch as the model takes it: normalised, on the device, in the memory format that the spec names.

        An emulated accelerator gets the loader's batch as it is. A GPU takes uint8 from pinned
        memory, copied ahead of its use, and normalises it itself: the host has no work for it. The stand-in reads no value.
        """
        if self.emulated:
            return x
        x = normalise(x, self.dtype, self.world.device)
        wanted = self.spec.memory_format == "channels_last" and x.ndim == 4
        return x.contiguous(memory_format=torch.channels_last) if wanted else x

    def forward_backward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        """Gradients of the mean loss over this rank's batch; returns the loss."""
        return self.strategy.forward_backward(self.module, x, y, self._loss)

    def exchange(self) -> None:
        """Make every rank's gradients their mean, where that has not happened inside backward."""
        self.strategy.exchange()

    def set_learning_rate(self, rate: float) -> None:
        """Set the learning rate of the next update."""
        self.strategy.set_learning_rate(rate)

    def update(self) -> None:
        """Apply the gradients. An emulated accelerator's published step time already holds its optimiser."""
        if not self.emulated:
            self.strategy.update()

    # What a run has to know of it

    @property
    def times_forward(self) -> bool:
        """Whether forward and backward can be timed one by one: neither alternates with the other, nor exchanges."""
        return self.strategy.forward_apart and self.spec.batch.accumulate == 1

    @property
    def synchronous(self) -> bool:
        """Whether all ranks make the same step at the same time."""
        return self.spec.strategy.synchronous

    def training_flops(self) -> float | None:
        """Floating-point operations of training on one sample; None where nothing is compared with them, or torch cannot count.

        A compiled model and one that lies in shards are not counted.
        """
        counts = self.job.resolved.peak_tflops is not None and not self.emulated and not self.spec.compile
        if not counts or not self.strategy.whole_parameters:
            return None
        from scalestudy.models.count import flops_per_sample

        shape = self.held_out_batch(1)[0].shape[1:]
        try:
            return flops_per_sample(self.model, shape)
        except (RuntimeError, NotImplementedError, TypeError, ValueError):
            return None  # the user's own model may look at values, which a tensor without data does not have

    def all_weights(self) -> AbstractContextManager[nn.Module]:
        """Inside, this rank has all weights of the training; entered and left by all ranks together."""
        return self.strategy.full_parameters()

    def invalid_reason(self) -> str | None:
        """Why the run is invalid as far as the strategy knows, None where it is not."""
        return self.strategy.invalid_reason()

    def is_finite(self) -> bool:
        """Whether every parameter is."""
        return all(bool(torch.isfinite(parameter).all()) for parameter in self.model.parameters())

    def digest(self) -> str | None:
        """A digest of the parameters, to compare over ranks; None where ranks need not hold equal ones."""
        if not self.strategy.equal_parameters or self.emulated:
            return None
        digest = hashlib.blake2b(digest_size=16)
        for parameter in self.model.parameters():
            # From a copy: memory that numpy has seen can no longer be released, as a sharding strategy wants to.
            # Flat: channels-last weights of 1 x 1 convolutions count as contiguous, with strides that no view as bytes takes.
            copied = parameter.detach().to("cpu", copy=True).flatten()
            digest.update(copied.view(torch.uint8).numpy().tobytes())
        return digest.hexdigest()

    def save_weights(self, file: Path) -> None:
        """The weights, unsharded, under the model's own names; called inside `all_weights`."""
        from safetensors.torch import save_file

        # Not by `state_dict()`, to which a sharded model answers with shards.
        tensors = {**dict(self.model.named_parameters()), **dict(self.model.named_buffers())}
        save_file({name: tensors[name].detach().cpu().contiguous().clone() for name in self.state_names}, file)

    # How it is made

    def _stepped(self) -> nn.Module:
        """The module that steps call: the model, compiled or emulated where the spec asks for it."""
        if self.job.resolved.step_time_s is not None:
            return emulate(self.model, self.job.resolved.step_time_s / self.spec.batch.accumulate)
        if self.spec.compile:
            self.model.compile()
        return self.model

    def _configure_strategy(self) -> None:
        spec, device = self.spec, self.world.device.type
        self.strategy.accumulation_steps = spec.batch.accumulate
        if spec.autocast is not None:
            self.strategy.precision = partial(torch.autocast, device, DTYPES[spec.autocast])
        if spec.autocast == "float16":
            self.strategy.scaler = torch.amp.GradScaler(device)
        if self.strategy.wants_example:
            self.strategy.example = self._example()

    def _example(self) -> tuple[torch.Tensor, torch.Tensor]:
        """This rank's first batch, as training will pass it on."""
        spec = self.spec
        x, y = self.data.train.batch(
            self.data.order(0)[0],
            size=spec.loader.size,
            augment=spec.loader.augment,
            seed=spec.seed,
            epoch=0,
            train=True,
        )
        return normalise(x, self.dtype, self.world.device).clone(), y.to(self.world.device)

    def _warm_up(self) -> None:
        """Let the strategy do the extra work of first steps; no buffer, gradient or random state remembers it."""
        with checkpoint.untouched_random_states():
            buffers = [buffer.clone() for buffer in self.model.buffers()]
            self.strategy.warm_up(self._backward_of_held_out_samples)
            self.strategy.optimiser.zero_grad(set_to_none=True)
            for buffer, before in zip(self.model.buffers(), buffers, strict=True):
                buffer.copy_(before)

    def _backward_of_held_out_samples(self) -> None:
        """One forward and backward pass."""
        # A compiled model is compiled for the size of a batch.
        count = self.spec.rank_batch if self.spec.compile else 2 * self.spec.batch.accumulate
        self.forward_backward(*self.held_out_batch(count))

    def held_out_batch(self, count: int) -> tuple[torch.Tensor, torch.Tensor]:
        """So many held-out samples, repeated where there are fewer: they do not disturb how training reads."""
        spec, held_out = self.spec, self.data.held_out
        x, y = held_out.batch(
            np.arange(count) % held_out.samples,
            size=spec.loader.size, augment="none", seed=spec.seed, epoch=0, train=False,
        )  # fmt: skip
        return self.inputs(x), y.to(self.world.device)

    def _loss(self, output: Any, y: torch.Tensor) -> torch.Tensor:
        """The mean loss over this rank's batch."""
        if not self.emulated:
            outputs.check_width(output, self.data.train.classes)
        return outputs.loss(output, y, self.data.train.task, self.label_weights)


def built_model(job: Job, device: torch.device, dtype: torch.dtype, data: Dataset) -> nn.Module:
    """The run's model for samples such as those of `data`, with weights that follow from the seed."""
    spec, size = job.spec, job.spec.loader.size
    torch.manual_seed(spec.seed)
    model = build_model(
        spec.model,
        classes=data.classes,
        channels=data.channels,
        image_size=(size, size) if size else data.image_size,
        task=data.task,
        extensions=job.extensions,
    ).to(device, dtype)
    if spec.memory_format == "channels_last":
        return model.to(memory_format=torch.channels_last)  # type: ignore[call-overload, no-any-return]
    return model


def label_weights(data: Dataset) -> outputs.LabelWeights:
    """For each label of multi-label training data, the share of samples without it, and of those with it.

    With these weights, positives and negatives of a label have the same total weight (Rajpurkar et al., CheXNet, arXiv 1711.05225, 2.1).
    Raises UserError where the labels are not known before they are read, or have one class per sample.
    """
    labels = getattr(data, "labels", None)
    if data.task != "multilabel" or labels is None:
        what = "weighs labels by how often they occur, which needs multi-label data whose labels are known beforehand"
        raise UserError(f"`weighted_loss` {what}", "train.weighted_loss", "leave it out")
    share = torch.from_numpy(np.asarray(labels, np.float32).mean(axis=0))
    return 1 - share, share
