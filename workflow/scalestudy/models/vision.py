"""torchvision's classification networks, unmodified, for the data at hand."""

from __future__ import annotations

from typing import Any

import torch
import torchvision.models
from torch import nn

from scalestudy.errors import UserError
from scalestudy.models.catalogue import Torchvision
from scalestudy.models.shapes import call_on_meta

LARGEST_TRIED = 512


def build(options: Torchvision, *, classes: int, channels: int, image_size: tuple[int, int]) -> nn.Module:
    """The network with random weights and `classes` outputs, for images of height and width `image_size`.

    Grey images are shown to it as three equal channels; parameters keep torchvision's names. googlenet, and inception_v3
    for images of 299 or more, have their auxiliary classifiers (see `outputs`); inception_v3's does not fit smaller
    images, for which it is left out. Raises UserError for images that the network cannot take.
    """
    name = options.name
    if channels not in (1, 3):
        raise UserError(
            f"`{name}` takes grey or RGB images, not {channels} channels", "model", "use data with 1 or 3 channels"
        )
    model: nn.Module = torchvision.models.get_model(
        name, weights=None, num_classes=classes, **_arguments(name, image_size)
    )
    if channels == 1:
        model.register_forward_pre_hook(_grey_to_rgb)
    if not _takes(model, channels, image_size):
        height, width = image_size
        raise UserError(
            f"`{name}` cannot take images of {height}x{width}",
            "loader.size",
            _sizes_taken(name, model, channels, image_size),
        )
    return model


def _arguments(name: str, image_size: tuple[int, int]) -> dict[str, Any]:
    """Arguments that some networks need in addition to the number of classes."""
    if name in ("inception_v3", "googlenet"):
        return {"aux_logits": min(image_size) >= published_size(name) or name == "googlenet", "init_weights": True}
    if name.startswith("vit_"):
        patch = int(name.rpartition("_")[2])
        height, width = image_size
        if height != width or height % patch:
            raise UserError(
                f"`{name}` cannot take images of {height}x{width}",
                "loader.size",
                f"it needs square images with sides a multiple of {patch}; 224 as published",
            )
        return {"image_size": height}
    return {}


def _grey_to_rgb(_module: nn.Module, inputs: tuple[torch.Tensor, ...]) -> tuple[torch.Tensor, ...]:
    """[batch, 1, height, width] as three equal channels, without a copy."""
    return (inputs[0].expand(-1, 3, -1, -1),)


def _takes(model: nn.Module, channels: int, image_size: tuple[int, int]) -> bool:
    """Whether the network in training mode can take two such images."""
    try:
        with torch.no_grad():
            call_on_meta(model, (2, channels, *image_size))
    except (RuntimeError, ValueError, AssertionError):
        return False
    return True


def _sizes_taken(name: str, model: nn.Module, channels: int, image_size: tuple[int, int]) -> str:
    """A remedy that names the next larger square images that the network can take."""
    published = published_size(name)
    larger = range(min(image_size), LARGEST_TRIED + 1)
    fits = next((size for size in larger if _takes(model, channels, (size, size))), published)
    return f"it takes {fits}x{fits}; it was published with {published}x{published}"


def published_size(name: str) -> int:
    """Height and width of the images that the network was published with."""
    return 299 if name == "inception_v3" else 224
