"""Small relatives of the published networks: the same kind of layers, few enough of them for a CPU and small images."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import nn


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


def _normalised(inputs: int, outputs: int, stride: int = 1) -> list[nn.Module]:
    convolution = nn.Conv2d(inputs, outputs, 3, stride, padding=1, bias=False)
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


RELATIVES: dict[str, Callable[[int, int, int], nn.Module]] = {
    "small_resnet": resnet,
    "small_densenet": densenet,
}
"""By name, from width, classes and channels to a network for images from 8x8: [batch, channels, height, width]."""
