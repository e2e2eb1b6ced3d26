"""From a model's options to the module."""

from __future__ import annotations

import inspect
import math
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

import torch
from torch import nn
from torch.nn.parameter import is_lazy

from scalestudy.errors import UserError
from scalestudy.extensions import blamed_on, load_class
from scalestudy.models.catalogue import MLP, AnyModel, OwnModel, SmallCNN, SmallDenseNet, Torchvision
from scalestudy.spec.layout import EXTENSIONS


def build(
    options: AnyModel,
    *,
    classes: int,
    channels: int,
    image_size: int | tuple[int, ...],
    extensions: Path = EXTENSIONS,
) -> nn.Module:
    """The model in float32 on the CPU, with weights drawn from torch's global generator.

    It maps [batch, channels, *image_size] to logits [batch, classes]; one number for `image_size` means a square, no
    number (`()`) samples that are vectors. There is one logit per class or label. Raises UserError where model and data
    do not fit, and for whatever goes wrong in a file of the user's own.
    """
    size = (image_size, image_size) if isinstance(image_size, int) else tuple(image_size)
    match options:
        case OwnModel():
            return own(options, classes=classes, channels=channels, extensions=extensions)
        case MLP():
            return mlp(options, classes, (channels, *size))
        case SmallCNN():
            _height_and_width(options, size)
            return small_cnn(options, classes, channels)
        case SmallDenseNet():
            _height_and_width(options, size, least=8)
            return small_densenet(options.width, classes, channels)
        case Torchvision():
            from scalestudy.models import vision

            height_and_width = _height_and_width(options, size)
            return vision.build(options, classes=classes, channels=channels, image_size=height_and_width)


def _height_and_width(
    options: SmallCNN | SmallDenseNet | Torchvision, size: tuple[int, ...], least: int = 2
) -> tuple[int, int]:
    if len(size) != 2 or min(size) < least:
        shape = "x".join(map(str, size)) or "vectors"
        what = f"`{options.name}` takes images of {least}x{least} and more, not samples of {shape}"
        raise UserError(what, "model", "use `mlp`, or data with images")
    return size[0], size[1]


def own(options: OwnModel, *, classes: int, channels: int, extensions: Path) -> nn.Module:
    """The user's module, called with its `kwargs`, and `classes` and `channels` where its signature names them.

    Raises UserError with file and line for whatever goes wrong in the user's file.
    """
    file_name, _, class_name = options.import_.partition(":")
    path = extensions / f"{file_name}.py"
    model_class = load_class(path, class_name)
    arguments, taken = {"classes": classes, "channels": channels}, inspect.signature(model_class).parameters
    kwargs = {name: value for name, value in arguments.items() if name in taken} | options.kwargs
    with blamed_on(path, f"{class_name}({', '.join(f'{name}={value!r}' for name, value in kwargs.items())})"):
        model = model_class(**kwargs)
    if not isinstance(model, nn.Module):
        what = f"`{class_name}` makes a {type(model).__name__}, which is not a model"
        raise UserError(what, str(path), "let it inherit from torch.nn.Module, or return such a module")
    if any(map(is_lazy, model.parameters())):
        what = f"`{class_name}` has lazy layers, whose sizes are not known before a first batch"
        raise UserError(what, str(path), "give every layer its sizes")
    if not any(parameter.requires_grad for parameter in model.parameters()):
        what = f"`{class_name}` has no parameter to train"
        raise UserError(what, str(path), "make layers or nn.Parameter attributes of the module in its __init__")
    return model


# Models for CPUs, and the deep chain of linear layers


def small_cnn(options: SmallCNN, classes: int, channels: int) -> nn.Sequential:
    """Two convolutions and two linear layers, for images of any size from 2x2: [batch, channels, height, width]."""
    width, side, hidden = options.width, 4, 128
    return nn.Sequential(
        nn.Conv2d(channels, width, kernel_size=3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(width, 2 * width, kernel_size=3, padding=1),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(side),
        nn.Flatten(),
        nn.Linear(2 * width * side * side, hidden),
        nn.ReLU(),
        nn.Linear(hidden, classes),
    )


def small_densenet(width: int, classes: int, channels: int) -> nn.Sequential:
    """DenseNet's shape for images from 8x8: each layer sees all outputs before it; a transition halves channels and sides."""
    growth = width // 2
    return nn.Sequential(
        nn.Conv2d(channels, width, kernel_size=3, padding=1, bias=False),
        nn.BatchNorm2d(width),
        nn.ReLU(),
        _Dense(width, growth),
        _Dense(width + growth, growth),
        nn.Conv2d(width + 2 * growth, width, kernel_size=1, bias=False),
        nn.AvgPool2d(2),
        _Dense(width, growth),
        _Dense(width + growth, growth),
        nn.BatchNorm2d(width + 2 * growth),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(width + 2 * growth, classes),
    )


class _Dense(nn.Module):
    def __init__(self, inputs: int, growth: int) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.BatchNorm2d(inputs), nn.ReLU(), nn.Conv2d(inputs, growth, kernel_size=3, padding=1, bias=False)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """[batch, inputs, height, width] with `growth` channels appended."""
        return torch.cat([x, self.body(x)], dim=1)


def mlp(options: MLP, classes: int, sample_shape: Sequence[int]) -> nn.Sequential:
    """`layers` linear layers with ReLU between them, for samples of any shape, which are flattened.

    Weights are drawn as He et al. (arXiv 1502.01852) derive for ReLU, with which also deep chains learn.
    """
    widths = [math.prod(sample_shape), *[options.hidden] * (options.layers - 1), classes]
    parts: list[nn.Module] = [nn.Flatten()]
    for inputs, outputs in pairwise(widths):
        linear = nn.Linear(inputs, outputs)
        nn.init.kaiming_normal_(linear.weight, nonlinearity="relu")
        nn.init.zeros_(linear.bias)
        parts += [linear, nn.ReLU()]
    return nn.Sequential(*parts[:-1])
