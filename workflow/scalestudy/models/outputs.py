"""Outputs of a model, their shapes, and its loss."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from typing import Any, Literal

import torch
from torch import nn
from torch.nn import functional

from scalestudy.errors import UserError

Task = Literal["classification", "multilabel"]

AUXILIARY_WEIGHTS = {
    # The authors' TensorFlow code (models/inception); the paper, arXiv 1512.00567, names no number.
    "InceptionOutputs": 0.4,
    # Szegedy et al., "Going Deeper with Convolutions" (arXiv 1409.4842), section 5.
    "GoogLeNetOutputs": 0.3,
}
"""Weight of each auxiliary classifier's loss relative to the main one's, by the name of torchvision's output tuple."""


def logits_and_aux(output: Any) -> tuple[torch.Tensor, list[torch.Tensor]]:
    """The main logits [batch, classes], and those of auxiliary classifiers, which exist only in training mode.

    Raises UserError where a model returns anything but a tensor or one of torchvision's two output tuples.
    """
    if isinstance(output, torch.Tensor):
        return output, []
    if isinstance(output, tuple) and type(output).__name__ in AUXILIARY_WEIGHTS:
        logits, *auxiliary = output
        return logits, [one for one in auxiliary if one is not None]
    what = f"the model returned {type(output).__name__}, not a tensor of logits"
    raise UserError(what, "model", "let its forward return one tensor of shape [batch, classes]")


def predictions(output: Any) -> torch.Tensor:
    """The main logits [batch, classes]: the larger, the likelier."""
    return logits_and_aux(output)[0]


def check_trainable(output: Any, batch: int, classes: int) -> None:
    """Raise UserError where the main logits are not [batch, classes], or have no gradient."""
    logits = predictions(output)
    shape = tuple(logits.shape)
    if shape != (batch, classes):
        what = f"the model returned logits of shape [{', '.join(map(str, shape))}] for {batch} samples of {classes} classes"
        raise UserError(what, "model", f"let its forward return [batch, {classes}]: take `classes` in its __init__")
    if not logits.requires_grad:
        remedy = "leave no_grad, inference_mode, detach and .data out of its forward"
        raise UserError("the model's output has no gradient", "model", remedy)


def call_on_meta(model: nn.Module, shape: Sequence[int], dtype: torch.dtype = torch.float32) -> Any:
    """The model's output for an input of this shape, batch first, as tensors with shapes and no values.

    Parameters and buffers are replaced for the call and stay as they are. Exceptions of the model come through.
    """
    state = {
        name: torch.empty_like(tensor, device="meta").requires_grad_(tensor.requires_grad)
        for name, tensor in chain(model.named_parameters(), model.named_buffers())
    }
    return torch.func.functional_call(model, state, torch.empty(tuple(shape), dtype=dtype, device="meta"))


def loss(output: Any, target: torch.Tensor, task: Task) -> torch.Tensor:
    """Mean loss over the batch, a scalar; auxiliary classifiers count with their weight.

    `classification`: cross-entropy with class indices [batch]. `multilabel`: binary cross-entropy of each label, mean
    over labels too, with 0/1 targets [batch, classes]. Logits of 16 bits are widened to float32 first.
    """
    logits, auxiliary = logits_and_aux(output)
    total = _loss(logits, target, task)
    for one in auxiliary:
        total = total + AUXILIARY_WEIGHTS[type(output).__name__] * _loss(one, target, task)
    return total


def _loss(logits: torch.Tensor, target: torch.Tensor, task: Task) -> torch.Tensor:
    if logits.dtype in (torch.bfloat16, torch.float16):
        logits = logits.float()
    if task == "classification":
        return functional.cross_entropy(logits, target)
    return functional.binary_cross_entropy_with_logits(logits, target.to(logits.dtype))
