"""How large a model is, and how much it computes."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from scalestudy.models.outputs import logits_and_aux
from scalestudy.models.shapes import call_on_meta


def parameters(model: nn.Module) -> int:
    """Trainable parameters, elements."""
    return sum(parameter.numel() for parameter in model.parameters() if parameter.requires_grad)


def flops_per_sample(model: nn.Module, shape: Sequence[int], training: bool = True) -> float:
    """Floating-point operations for one sample of this shape (without batch), a multiply-add counted as two.

    Convolutions and matrix products only, as torch counts them: forward, and with `training` the backward pass with
    all auxiliary classifiers. The model's mode is left as it is found.
    """
    batch, was_training = 2, model.training  # BatchNorm in training mode refuses a batch of one
    model.train(training)
    try:
        with FlopCounterMode(display=False) as counter:
            output = call_on_meta(model, (batch, *shape), next(model.parameters()).dtype)
            if training:
                logits, auxiliary = logits_and_aux(output)
                torch.autograd.backward([one.sum() for one in (logits, *auxiliary)])
    finally:
        model.train(was_training)
    return float(counter.get_total_flops()) / batch
