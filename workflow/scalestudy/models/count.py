"""How large a model is, and how much it computes.

`python -m scalestudy.models.count > config/reference/model_costs.csv` counts the plan's numbers again, which it reads without torch.
"""

from __future__ import annotations

import csv
import sys
from collections.abc import Iterator, Sequence
from typing import Any, get_args

import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from scalestudy.models.build import build
from scalestudy.models.catalogue import MLP, AnyModel, SmallCNN, Torchvision
from scalestudy.models.outputs import logits_and_aux
from scalestudy.models.shapes import call_on_meta


def parameters(model: nn.Module) -> int:
    """Trainable parameters, elements."""
    return sum(parameter.numel() for parameter in model.parameters() if parameter.requires_grad)


def flops_per_sample(model: nn.Module, shape: Sequence[int], training: bool = True) -> float:
    """Floating-point operations for one sample of this shape (without batch), a multiply-add counted as two.

    Convolutions and matrix products only, as torch counts them: forward, and with `training` the backward pass with
    all auxiliary classifiers. The model's mode is left as it is found.
    """
    batch, was_training = 2, model.training  # BatchNorm in training mode refuses a batch of one
    model.train(training)
    try:
        with FlopCounterMode(display=False) as counter:
            output = call_on_meta(model, (batch, *shape), next(model.parameters()).dtype)
            if training:
                logits, auxiliary = logits_and_aux(output)
                torch.autograd.backward([one.sum() for one in (logits, *auxiliary)])
    finally:
        model.train(was_training)
    return float(counter.get_total_flops()) / batch


COLUMNS = ("model", "channels", "height", "width", "classes", "parameters", "forward_flops", "training_flops", "source")


def cost_row(options: AnyModel, channels: int, size: int, classes: int) -> dict[str, Any]:
    """A line of config/reference/model_costs.csv: counted with tensors that hold no data, nothing is computed."""
    import torchvision

    model = build(options, classes=classes, channels=channels, image_size=size, task="classification")
    shape = (channels, size, size)
    return {
        "model": options.name,
        "channels": channels,
        "height": size,
        "width": size,
        "classes": classes,
        "parameters": parameters(model),
        "forward_flops": round(flops_per_sample(model, shape, training=False)),
        "training_flops": round(flops_per_sample(model, shape)),
        "source": f"counted by scalestudy.models.count, torch {torch.__version__.partition('+')[0]}, "
        f"torchvision {torchvision.__version__.partition('+')[0]}",
    }


def cost_rows() -> Iterator[dict[str, Any]]:
    """Every model of the catalogue at its defaults: on the data that it is used with, and at its published size."""
    from scalestudy.models.vision import published_size

    for size in (8, 28):
        for small in (SmallCNN(name="small_cnn"), MLP(name="mlp")):
            yield cost_row(small, 1, size, 10)
    for name in get_args(Torchvision.model_fields["name"].annotation):
        yield cost_row(Torchvision(name=name), 3, published_size(name), 1000)


def main() -> None:
    """Write the table to standard output."""
    writer = csv.DictWriter(sys.stdout, COLUMNS, lineterminator="\n")
    writer.writeheader()
    for row in cost_rows():
        writer.writerow(row)
        sys.stdout.flush()


if __name__ == "__main__":
    main()
