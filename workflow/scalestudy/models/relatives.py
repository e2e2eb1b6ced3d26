"""Small relatives of the published networks: the same kind of layers, few enough of them for a CPU and small images."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import nn
from torchvision.models.inception import InceptionOutputs


def alexnet(width: int, classes: int, channels: int) -> nn.Module:
    """AlexNet's shape: large first filters, then three convolutions in a row, dropout and wide linear layers."""
    return nn.Sequential(
        *_convolution(channels, width, kernel=5),
        nn.MaxPool2d(2),
        *_convolution(width, 2 * width),
        *_convolution(2 * width, 2 * width),
        *_convolution(2 * width, width),
        nn.AdaptiveAvgPool2d(3),
        nn.Flatten(),
        nn.Dropout(0.5),
        nn.Linear(9 * width, 16 * width),
        nn.ReLU(),
        nn.Linear(16 * width, classes),
    )


def vgg(width: int, classes: int, channels: int) -> nn.Module:
    """VGG's shape: pairs of 3x3 convolutions between poolings; most parameters are in the first linear layer."""
    return nn.Sequential(
        *_convolution(channels, width),
        *_convolution(width, width),
        nn.MaxPool2d(2),
        *_convolution(width, 2 * width),
        *_convolution(2 * width, 2 * width),
        nn.AdaptiveAvgPool2d(4),
        nn.Flatten(),
        nn.Linear(32 * width, 16 * width),
        nn.ReLU(),
        nn.Linear(16 * width, classes),
    )


def resnet(width: int, classes: int, channels: int) -> nn.Module:
    """ResNet's shape: BatchNorm, and blocks that add to their input."""
    return nn.Sequential(
        *_normalised(channels, width),
        _Residual(width, width),
        _Residual(width, 2 * width),
        _Residual(2 * width, 4 * width),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(4 * width, classes),
    )


def densenet(width: int, classes: int, channels: int) -> nn.Module:
    """DenseNet's shape: each layer sees all outputs before it; transitions halve channels and sides."""
    growth = width // 2
    return nn.Sequential(
        *_normalised(channels, width),
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


def _convolution(inputs: int, outputs: int, kernel: int = 3) -> list[nn.Module]:
    return [nn.Conv2d(inputs, outputs, kernel, padding=kernel // 2), nn.ReLU()]


def _normalised(inputs: int, outputs: int, kernel: int = 3, stride: int = 1) -> list[nn.Module]:
    convolution = nn.Conv2d(inputs, outputs, kernel, stride, padding=kernel // 2, bias=False)
    return [convolution, nn.BatchNorm2d(outputs), nn.ReLU()]


class _Residual(nn.Module):
    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        stride = 1 if inputs == outputs else 2
        convolution = nn.Conv2d(outputs, outputs, kernel_size=3, padding=1, bias=False)
        self.body = nn.Sequential(*_normalised(inputs, outputs, stride=stride), convolution, nn.BatchNorm2d(outputs))
        shortcut = nn.Conv2d(inputs, outputs, kernel_size=1, stride=stride, bias=False)
        self.shortcut = nn.Identity() if inputs == outputs else shortcut

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """[batch, inputs, height, width] to [batch, outputs, height, width], sides halved where channels change."""
        return torch.relu(self.body(x) + self.shortcut(x))


class _Dense(nn.Module):
    def __init__(self, inputs: int, growth: int) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.BatchNorm2d(inputs), nn.ReLU(), nn.Conv2d(inputs, growth, kernel_size=3, padding=1, bias=False)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """[batch, inputs, height, width] with `growth` channels appended."""
        return torch.cat([x, self.body(x)], dim=1)


class Inception(nn.Module):
    """Inception-v3's shape: branches of different filters side by side, and an auxiliary classifier while training."""

    def __init__(self, width: int, classes: int, channels: int) -> None:
        super().__init__()
        self.stem = nn.Sequential(*_normalised(channels, width))
        self.branches = nn.ModuleList(nn.Sequential(*_normalised(width, width, kernel)) for kernel in (1, 3, 5))
        self.auxiliary = _classifier(3 * width, classes)
        self.last = nn.Sequential(*_normalised(3 * width, 2 * width, stride=2), _classifier(2 * width, classes))

    def forward(self, x: torch.Tensor) -> torch.Tensor | InceptionOutputs:
        """Logits [batch, classes]; in training mode with those of the auxiliary classifier."""
        x = self.stem(x)
        x = torch.cat([branch(x) for branch in self.branches], dim=1)
        logits = self.last(x)
        return InceptionOutputs(logits, self.auxiliary(x)) if self.training else logits


def _classifier(inputs: int, classes: int) -> nn.Module:
    return nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(inputs, classes))


RELATIVES: dict[str, Callable[[int, int, int], nn.Module]] = {
    "small_alexnet": alexnet,
    "small_vgg": vgg,
    "small_resnet": resnet,
    "small_densenet": densenet,
    "small_inception": Inception,
}
"""By name, from width, classes and channels to a network for images from 8x8: [batch, channels, height, width]."""
