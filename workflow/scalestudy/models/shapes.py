"""Shapes of a model's outputs, without computing anything."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from typing import Any

import torch
from torch import nn


def call_on_meta(model: nn.Module, shape: Sequence[int], dtype: torch.dtype = torch.float32) -> Any:
    """The model's output for an input of this shape, batch first, as tensors with shapes and no values.

    Parameters and buffers are replaced for the call and stay as they are. Exceptions of the model come through.
    """
    state = {
        name: torch.empty_like(tensor, device="meta").requires_grad_(tensor.requires_grad)
        for name, tensor in chain(model.named_parameters(), model.named_buffers())
    }
    return torch.func.functional_call(model, state, torch.empty(tuple(shape), dtype=dtype, device="meta"))
