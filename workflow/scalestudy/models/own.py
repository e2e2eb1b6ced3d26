"""A model of the user's own, from config/extensions/."""

from __future__ import annotations

import inspect
from pathlib import Path

from torch import nn

from scalestudy.errors import UserError
from scalestudy.extensions import blamed_on, load_class
from scalestudy.models.catalogue import OwnModel


def build(options: OwnModel, *, classes: int, channels: int, extensions: Path) -> nn.Module:
    """The user's module, called with its `kwargs`, and `classes` and `channels` where its signature names them.

    Raises UserError with file and line for whatever goes wrong in the user's file.
    """
    file_name, _, class_name = options.import_.partition(":")
    path = extensions / f"{file_name}.py"
    found = load_class(path, class_name)
    if not issubclass(found, nn.Module):
        raise UserError(f"class `{class_name}` is not a model", str(path), "let it inherit from torch.nn.Module")
    known = {"classes": classes, "channels": channels}
    taken = inspect.signature(found).parameters
    kwargs = {**{name: value for name, value in known.items() if name in taken}, **options.kwargs}
    with blamed_on(path, f"{class_name}({', '.join(f'{name}={value!r}' for name, value in kwargs.items())})"):
        model = found(**kwargs)
    assert isinstance(model, nn.Module)
    if not any(parameter.requires_grad for parameter in model.parameters()):
        what = f"`{class_name}` has no parameter to train"
        raise UserError(what, str(path), "make layers or nn.Parameter attributes of the module in its __init__")
    return model
