"""Momentum SGD and the learning rate of each step."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import nn

from scalestudy.spec.run import Optimiser


def make_optimiser(spec: Optimiser, parameters: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
    """SGD as the spec has it; the rate is set before each step by `rate_at`."""
    return torch.optim.SGD(
        parameters,
        lr=spec.learning_rate,
        momentum=spec.momentum,
        weight_decay=spec.weight_decay,
        nesterov=spec.nesterov,
    )


def scaled_rate(spec: Optimiser, global_batch: int) -> float:
    """The rate after warm-up: linear in the global batch (Goyal et al., arXiv 1706.02677, 2.1) where the spec asks for it."""
    if spec.learning_rate_for_batch is None:
        return spec.learning_rate
    return spec.learning_rate * global_batch / spec.learning_rate_for_batch


def rate_at(step: int, steps_per_epoch: int, spec: Optimiser, global_batch: int) -> float:
    """Learning rate of a step (from 0): linear warm-up (Goyal et al., 2.2), then steps.

    Warm-up starts from the unscaled rate where the rate is scaled up, and from a tenth elsewhere.
    """
    epoch = step / steps_per_epoch
    rate = full = scaled_rate(spec, global_batch)
    if spec.steps is not None:
        # A millionth of a step forgives the rounding of `step / steps_per_epoch`.
        rate *= spec.steps.factor ** int((epoch + 1e-6 / steps_per_epoch) / spec.steps.every_epochs)
    if epoch < spec.warmup_epochs:
        start = spec.learning_rate / full if full > spec.learning_rate else 0.1
        rate *= start + (1 - start) * epoch / spec.warmup_epochs
    return rate
