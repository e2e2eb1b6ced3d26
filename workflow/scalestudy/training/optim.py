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


def rate_at(step: int, steps_per_epoch: int, spec: Optimiser) -> float:
    """Learning rate of a step (from 0): linear warm-up from a tenth (Goyal et al. 2017, 2.2), then steps."""
    epoch = step / steps_per_epoch
    rate = spec.learning_rate
    if spec.steps is not None:
        # A millionth of a step forgives the rounding of `step / steps_per_epoch`.
        rate *= spec.steps.factor ** int((epoch + 1e-6 / steps_per_epoch) / spec.steps.every_epochs)
    if epoch < spec.warmup_epochs:
        rate *= 0.1 + 0.9 * epoch / spec.warmup_epochs
    return rate
