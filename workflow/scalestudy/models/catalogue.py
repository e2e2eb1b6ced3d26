"""The models by name, with their options. Imports no torch: specs are checked where none is."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field

from scalestudy.spec.base import Spec


class SmallCNN(Spec):
    """Two convolutions and two linear layers: learns digits and Fashion-MNIST on a CPU in seconds."""

    name: Literal["small_cnn"]
    width: Annotated[int, Field(ge=1, le=4096)] = 32
    """Channels of the first convolution; the second has twice as many."""


class SmallDenseNet(Spec):
    """A small relative of DenseNet, for CPUs and small images."""

    name: Literal["small_densenet"]
    width: Annotated[int, Field(ge=2, le=4096)] = 16
    """Channels of the first convolution."""


class MLP(Spec):
    """A chain of linear layers and ReLU of any depth."""

    name: Literal["mlp"]
    hidden: Annotated[int, Field(ge=1, le=1 << 20)] = 512
    """Width of every hidden layer."""
    layers: Annotated[int, Field(ge=1, le=10_000)] = 10
    """Number of linear layers, the last one included."""


class Torchvision(Spec):
    """A classification network of torchvision, by torchvision's own name."""

    name: Literal[
        "alexnet",
        "convnext_base", "convnext_large", "convnext_small", "convnext_tiny",
        "densenet121", "densenet161", "densenet169", "densenet201",
        "efficientnet_b0", "efficientnet_b1", "efficientnet_b2", "efficientnet_b3", "efficientnet_b4",
        "efficientnet_b5", "efficientnet_b6", "efficientnet_b7",
        "efficientnet_v2_l", "efficientnet_v2_m", "efficientnet_v2_s",
        "googlenet",
        "inception_v3",
        "maxvit_t",
        "mnasnet0_5", "mnasnet0_75", "mnasnet1_0", "mnasnet1_3",
        "mobilenet_v2", "mobilenet_v3_large", "mobilenet_v3_small",
        "regnet_x_16gf", "regnet_x_1_6gf", "regnet_x_32gf", "regnet_x_3_2gf", "regnet_x_400mf", "regnet_x_800mf",
        "regnet_x_8gf",
        "regnet_y_128gf", "regnet_y_16gf", "regnet_y_1_6gf", "regnet_y_32gf", "regnet_y_3_2gf", "regnet_y_400mf",
        "regnet_y_800mf", "regnet_y_8gf",
        "resnet101", "resnet152", "resnet18", "resnet34", "resnet50",
        "resnext101_32x8d", "resnext101_64x4d", "resnext50_32x4d",
        "shufflenet_v2_x0_5", "shufflenet_v2_x1_0", "shufflenet_v2_x1_5", "shufflenet_v2_x2_0",
        "squeezenet1_0", "squeezenet1_1",
        "swin_b", "swin_s", "swin_t", "swin_v2_b", "swin_v2_s", "swin_v2_t",
        "vgg11", "vgg11_bn", "vgg13", "vgg13_bn", "vgg16", "vgg16_bn", "vgg19", "vgg19_bn",
        "vit_b_16", "vit_b_32", "vit_h_14", "vit_l_16", "vit_l_32",
        "wide_resnet101_2", "wide_resnet50_2",
    ]  # fmt: skip


class OwnModel(Spec):
    """Your own `torch.nn.Module`: `{import: my_nets:MyNet, kwargs: {...}}` from config/extensions/."""

    import_: Annotated[str, Field(alias="import", pattern=r"^[A-Za-z_][A-Za-z0-9_]*:[A-Za-z_][A-Za-z0-9_]*$")]
    """`file:class`; the class is called with `kwargs`, and with `classes` and `channels` of the data if it takes them."""
    kwargs: dict[str, Any] = {}
    """Keyword arguments for the class."""

    @property
    def name(self) -> str:
        """The class name, for labels and slugs."""
        return self.import_.partition(":")[2]


NamedModel = SmallCNN | SmallDenseNet | MLP | Torchvision
AnyModel = NamedModel | OwnModel
