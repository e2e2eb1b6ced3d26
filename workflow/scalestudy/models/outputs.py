"""What comes out of a model, and its loss."""

from __future__ import annotations

from typing import Any, Literal

import torch
from torch.nn import functional

from scalestudy.errors import UserError

Task = Literal["classification", "multilabel"]

AUXILIARY_WEIGHTS = {
    # The authors' TensorFlow code (models/inception); the paper, arXiv 1512.00567, names no number.
    "InceptionOutputs": 0.4,
    # Szegedy et al., "Going Deeper with Convolutions" (arXiv 1409.4842), section 5.
    "GoogLeNetOutputs": 0.3,
}
"""Weight of each auxiliary classifier's loss beside the main one's, by the name of torchvision's output tuple."""


def logits_and_aux(output: Any) -> tuple[torch.Tensor, list[torch.Tensor]]:
    """The main logits [batch, classes], and those of auxiliary classifiers, which exist only in training mode.

    Raises UserError where a model returns anything but a tensor or one of torchvision's two output tuples.
    """
    if isinstance(output, torch.Tensor):
        return output, []
    if isinstance(output, tuple) and type(output).__name__ in AUXILIARY_WEIGHTS:
        logits, *auxiliary = output
        return logits, [one for one in auxiliary if one is not None]
    raise UserError(
        f"the model returned {type(output).__name__}, not a tensor of logits",
        "model",
        "let its forward return one tensor of shape [batch, classes]",
    )


def predictions(output: Any) -> torch.Tensor:
    """The main logits [batch, classes]: the larger, the likelier."""
    return logits_and_aux(output)[0]


def loss(output: Any, target: torch.Tensor, task: Task) -> torch.Tensor:
    """Mean loss over the batch, a scalar; auxiliary classifiers count with their weight.

    `classification`: cross-entropy with class indices [batch]. `multilabel`: binary cross-entropy of each label, mean
    over labels too, with 0/1 targets [batch, classes]. bfloat16 logits are widened to float32 first.
    """
    logits, auxiliary = logits_and_aux(output)
    total = _loss(logits, target, task)
    for one in auxiliary:
        total = total + AUXILIARY_WEIGHTS[type(output).__name__] * _loss(one, target, task)
    return total


def _loss(logits: torch.Tensor, target: torch.Tensor, task: Task) -> torch.Tensor:
    if logits.dtype in (torch.bfloat16, torch.float16):
        logits = logits.float()
    if task == "multilabel":
        return functional.binary_cross_entropy_with_logits(logits, target.to(logits.dtype))
    return functional.cross_entropy(logits, target)
