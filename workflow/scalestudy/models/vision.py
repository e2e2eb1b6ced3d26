"""torchvision's classification networks, unmodified, for the data at hand."""

from __future__ import annotations

from typing import Any

import torch
import torchvision.models
from torch import nn

from scalestudy.errors import UserError
from scalestudy.models.catalogue import Torchvision
from scalestudy.models.outputs import call_on_meta


def build(options: Torchvision, *, classes: int, channels: int, image_size: tuple[int, int]) -> nn.Module:
    """The network with random weights and `classes` outputs, for images of height and width `image_size`.

    Grey images are shown to it as three equal channels; parameters keep torchvision's names. googlenet, and inception_v3
    for images of 299 or more, have their auxiliary classifiers (see `outputs`); inception_v3's does not fit smaller
    images, for which it is left out. Raises UserError for images that the network cannot take.
    """
    name, (height, width), published = options.name, image_size, published_size(options.name)
    if channels not in (1, 3):
        what = f"`{name}` takes grey or RGB images, not {channels} channels"
        raise UserError(what, "model", "use data with 1 or 3 channels")
    what = f"`{name}` cannot take images of {height}x{width}"
    more: dict[str, Any] = {}
    if name in ("inception_v3", "googlenet"):
        more = {"aux_logits": min(image_size) >= published or name == "googlenet", "init_weights": True}
    elif name.startswith("vit_"):
        patch = int(name.rpartition("_")[2])
        if height != width or height % patch:
            remedy = f"it needs square images with sides a multiple of {patch}; 224 as published"
            raise UserError(what, "loader.size", remedy)
        more = {"image_size": height}
    model: nn.Module = torchvision.models.get_model(name, weights=None, num_classes=classes, **more)
    if channels == 1:
        # [batch, 1, height, width] as three equal channels, without a copy
        model.register_forward_pre_hook(lambda _, inputs: (inputs[0].expand(-1, 3, -1, -1),))
    try:
        with torch.no_grad():
            call_on_meta(model, (2, channels, *image_size))
    except (RuntimeError, ValueError, AssertionError):
        remedy = f"it was published with {published}x{published}: use that size"
        raise UserError(what, "loader.size", remedy) from None
    return model


def published_size(name: str) -> int:
    """Height and width of the images that the network was published with."""
    return 299 if name == "inception_v3" else 224
