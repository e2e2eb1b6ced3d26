"""How large a model is, and how much it computes.

`python -m scalestudy.models.count > config/reference/model_costs.csv` counts the plan's numbers again, which it reads without torch.
"""

from __future__ import annotations

import csv
import sys
from collections.abc import Sequence
from typing import Any, get_args

import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from scalestudy.models.build import build
from scalestudy.models.catalogue import MLP, AnyModel, SmallCNN, Torchvision
from scalestudy.models.outputs import call_on_meta, logits_and_aux


def parameters(model: nn.Module) -> int:
    """Trainable parameters, elements."""
    return sum(parameter.numel() for parameter in model.parameters() if parameter.requires_grad)


def flops_by_kind(model: nn.Module, shape: Sequence[int], training: bool = True) -> tuple[float, float]:
    """Floating-point operations of convolutions, and of matrix products, for one sample of this shape (without batch).

    A multiply-add counts as two, as torch counts them: forward, and with `training` the backward pass with all auxiliary
    classifiers. The model's mode is left as it is found.
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
    counts = counter.get_flop_counts()["Global"]
    convolutions = sum(count for kind, count in counts.items() if "convolution" in str(kind))
    return convolutions / batch, (counter.get_total_flops() - convolutions) / batch


COLUMNS = ("model", "channels", "height", "width", "classes", "parameters", "forward_flops", "training_flops", "source")


def cost_row(options: AnyModel, channels: int, size: int, classes: int) -> dict[str, Any]:
    """A line of config/reference/model_costs.csv: counted with tensors that hold no data, nothing is computed."""
    import torchvision

    model = build(options, classes=classes, channels=channels, image_size=size)
    shape = (channels, size, size)
    return {
        "model": options.name,
        "channels": channels,
        "height": size,
        "width": size,
        "classes": classes,
        "parameters": parameters(model),
        "forward_flops": round(sum(flops_by_kind(model, shape, training=False))),
        "training_flops": round(sum(flops_by_kind(model, shape))),
        "source": f"counted by scalestudy.models.count, torch {torch.__version__.partition('+')[0]}, "
        f"torchvision {torchvision.__version__.partition('+')[0]}",
    }


def main() -> None:
    """Write the table: every model of the catalogue at its defaults, on the data that it is used with or was published with."""
    from scalestudy.models.vision import published_size

    models = [(model, 1, size, 10) for size in (8, 28) for model in (SmallCNN(name="small_cnn"), MLP(name="mlp"))]
    names = get_args(Torchvision.model_fields["name"].annotation)
    writer = csv.DictWriter(sys.stdout, COLUMNS, lineterminator="\n")
    writer.writeheader()
    for row in models + [(Torchvision(name=name), 3, published_size(name), 1000) for name in names]:
        writer.writerow(cost_row(*row))
        sys.stdout.flush()


if __name__ == "__main__":
    main()
