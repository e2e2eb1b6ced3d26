"""From a model's options to the module."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from scalestudy.errors import UserError
from scalestudy.models.catalogue import MLP, AnyModel, OwnModel, SmallCNN, SmallRelative, Torchvision
from scalestudy.spec.layout import EXTENSIONS

if TYPE_CHECKING:
    from torch import nn

    from scalestudy.models.outputs import Task


def build(
    options: AnyModel,
    *,
    classes: int,
    channels: int,
    image_size: int | tuple[int, ...],
    task: Task,
    extensions: Path = EXTENSIONS,
) -> nn.Module:
    """The model in float32 on the CPU, with weights drawn from torch's global generator.

    It maps [batch, channels, *image_size] to logits [batch, classes]; one number for `image_size` means a square, no
    number (`()`) samples that are vectors. With either `task` there is one logit per class or label. Raises UserError
    where model and data do not fit, and for whatever goes wrong in a file of the user's own.
    """
    size = (image_size, image_size) if isinstance(image_size, int) else tuple(image_size)
    match options:
        case OwnModel():
            from scalestudy.models import own

            return own.build(options, classes=classes, channels=channels, extensions=extensions)
        case MLP():
            from scalestudy.models import small

            return small.mlp(options, classes, (channels, *size))
        case SmallCNN():
            from scalestudy.models import small

            _height_and_width(options, size)
            return small.small_cnn(options, classes, channels)
        case SmallRelative():
            from scalestudy.models import relatives

            _height_and_width(options, size, least=8)
            return relatives.build(options, classes, channels)
        case Torchvision():
            from scalestudy.models import vision

            return vision.build(
                options, classes=classes, channels=channels, image_size=_height_and_width(options, size)
            )


def _height_and_width(
    options: SmallCNN | SmallRelative | Torchvision, size: tuple[int, ...], least: int = 2
) -> tuple[int, int]:
    if len(size) != 2 or min(size) < least:
        shape = "x".join(map(str, size)) or "vectors"
        what = f"`{options.name}` takes images of {least}x{least} and more, not samples of {shape}"
        raise UserError(what, "model", "use `mlp`, or data with images")
    return size[0], size[1]
