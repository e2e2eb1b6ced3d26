"""From uint8 images to the floats that a model takes."""

from __future__ import annotations

import functools
import threading

import torch

_NORMS = {1: ((0.3,), (0.35,)), 3: ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))}
"""Mean and deviation by channels: rounded ones of handwritten digits and Fashion-MNIST (.13/.31, .29/.35) for grey
images, those of ImageNet that torchvision publishes with its weights for colour."""
_local = threading.local()


def normalise(x: torch.Tensor, dtype: torch.dtype, device: torch.device | str) -> torch.Tensor:
    """uint8 images as (x / 255 - mean) / deviation per channel; what is floating already is only converted.

    The result lies in a buffer that this thread keeps: the next call for samples of the same shape overwrites it.
    A fresh batch of floats would cost as much as decoding it. Neither one nor three channels: mean 0.5, deviation 0.3.
    """
    device = torch.device(device)
    x = x.to(device, non_blocking=True)
    if x.is_floating_point():
        return x.to(dtype)
    exact = dtype if dtype == torch.float64 else torch.float32
    result = _buffer(x, exact).copy_(x)
    if _channels_last(result) and result.shape[1] > 1:
        # Rows of width x channels: three channels innermost are too few for vector instructions (3.5 times slower).
        rows = result.permute(0, 2, 3, 1).view(len(x), x.shape[2], -1)
        factor, offset = (value.flatten().repeat(x.shape[3]) for value in _constants(x.shape[1], x.ndim, exact, device))
        rows.mul_(factor).sub_(offset)
    else:
        factor, offset = _constants(x.shape[1], x.ndim, exact, device)
        result.mul_(factor).sub_(offset)
    return result if dtype == exact else _buffer(x, dtype).copy_(result)


@functools.cache
def _constants(
    channels: int, dimensions: int, dtype: torch.dtype, device: torch.device
) -> tuple[torch.Tensor, torch.Tensor]:
    """1 / (255 deviation) and mean / deviation, as [1, channels, 1...]; kept, or a GPU would wait for them each step."""
    mean, deviation = _NORMS.get(channels if dimensions == 4 else 0, ((0.5,) * channels, (0.3,) * channels))
    centre = torch.tensor(mean, dtype=dtype, device=device).reshape(1, -1, *(1,) * (dimensions - 2))
    scale = torch.tensor(deviation, dtype=dtype, device=device).reshape(centre.shape)
    return 1 / (255 * scale), centre / scale


def _channels_last(x: torch.Tensor) -> bool:
    return x.ndim == 4 and x.is_contiguous(memory_format=torch.channels_last)


def _buffer(x: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Memory for x in another dtype, in x's memory format, as large as the largest batch so far."""
    last = _channels_last(x)
    buffers: dict[tuple[object, ...], torch.Tensor] = _local.__dict__.setdefault("buffers", {})
    key = (dtype, x.device, x.shape[1:], last)
    buffer = buffers.get(key)
    if buffer is None or len(buffer) < len(x):
        memory = torch.channels_last if last else torch.contiguous_format
        buffer = buffers[key] = torch.empty(x.shape, dtype=dtype, device=x.device, memory_format=memory)
    return buffer[: len(x)]
