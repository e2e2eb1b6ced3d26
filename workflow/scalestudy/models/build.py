"""From a model's options to the module."""

from __future__ import annotations

import inspect
from pathlib import Path

from torch import nn

from scalestudy.errors import UserError
from scalestudy.extensions import blamed_on, load_class
from scalestudy.models import small
from scalestudy.models.catalogue import MLP, AnyModel, OwnModel, SmallCNN, SmallRelative, Torchvision
from scalestudy.models.outputs import Task
from scalestudy.spec.layout import EXTENSIONS


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
            return own(options, classes=classes, channels=channels, extensions=extensions)
        case MLP():
            return small.mlp(options, classes, (channels, *size))
        case SmallCNN():
            _height_and_width(options, size)
            return small.small_cnn(options, classes, channels)
        case SmallRelative():
            from scalestudy.models import relatives

            _height_and_width(options, size, least=8)
            return relatives.RELATIVES[options.name](options.width, classes, channels)
        case Torchvision():
            from scalestudy.models import vision

            height_and_width = _height_and_width(options, size)
            return vision.build(options, classes=classes, channels=channels, image_size=height_and_width)


def _height_and_width(
    options: SmallCNN | SmallRelative | Torchvision, size: tuple[int, ...], least: int = 2
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
    found = load_class(path, class_name)
    if not issubclass(found, nn.Module):
        raise UserError(f"class `{class_name}` is not a model", str(path), "let it inherit from torch.nn.Module")
    known, taken = {"classes": classes, "channels": channels}, inspect.signature(found).parameters
    kwargs = {name: value for name, value in known.items() if name in taken} | options.kwargs
    with blamed_on(path, f"{class_name}({', '.join(f'{name}={value!r}' for name, value in kwargs.items())})"):
        model = found(**kwargs)
    assert isinstance(model, nn.Module)
    if not any(parameter.requires_grad for parameter in model.parameters()):
        what = f"`{class_name}` has no parameter to train"
        raise UserError(what, str(path), "make layers or nn.Parameter attributes of the module in its __init__")
    return model
