"""What the suite for GPUs computes from a device's answers, on made-up ones: no GPU is needed."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch.autograd import DeviceType

from scalestudy.models.build import build
from scalestudy.spec.run import RunSpec
from tests.gpu import checks


def of_profile(name: str, where: Any, microseconds: float, begin: float = 0.0, annotation: bool = False) -> Any:
    span = SimpleNamespace(start=begin, end=begin + microseconds)
    return SimpleNamespace(name=name, device_type=where, self_device_time_total=microseconds,
                           is_user_annotation=annotation, time_range=span)  # fmt: skip


def test_kernel_time_of_a_profile_is_counted_once() -> None:
    rows = [
        of_profile("aten::mm", DeviceType.CPU, 2_000_000),
        of_profile("sgemm", DeviceType.CUDA, 2_000_000),
        of_profile("step", DeviceType.CUDA, 2_000_000, annotation=True),
    ]
    assert checks.kernel_seconds(rows) == 2.0


def test_copies_and_kernels_of_a_trace_are_told_apart() -> None:
    events = [
        of_profile("aten::copy_", DeviceType.CPU, 50, 0),
        of_profile("sgemm", DeviceType.CUDA, 100, 200),
        of_profile("sgemm", DeviceType.CUDA, 100, 0),
        of_profile("Memcpy HtoD (Pinned -> Device)", DeviceType.CUDA, 40, 80),
        of_profile("Memset (Device)", DeviceType.CUDA, 40, 110),
    ]
    copies, kernels = checks.copies_and_kernels(events)
    assert copies == [(80, 120)]
    assert kernels == [(0, 100), (200, 300)]
    assert checks._overlap(copies[0], kernels) == 20


@pytest.mark.parametrize(("settings", "channels", "side"), [("mlp", 1, 8), ("resnet18", 3, 64)])
def test_models_that_are_compared_bit_for_bit_have_no_operation_that_differs_on_a_gpu(
    settings: str, channels: int, side: int
) -> None:
    spec = RunSpec.model_validate({"model": settings})
    model = build(
        spec.model, classes=10, channels=channels, image_size=(side, side), task="multiclass", extensions=None
    )
    names = set()
    stack = [model(torch.rand(2, channels, side, side)).sum().grad_fn]
    while stack:
        node = stack.pop()
        if node is not None and node not in names:
            names.add(node)
            stack += [below for below, _ in node.next_functions]
    # Those of torch.use_deterministic_algorithms' list that a classification network can have.
    refused = (
        "AdaptiveAvgPool",
        "AdaptiveMaxPool",
        "MaxPool3D",
        "AvgPool3D",
        "FractionalMaxPool",
        "Upsample",
        "MaxUnpool",
    )
    assert not [node.name() for node in names if any(word in node.name() for word in refused)]
    assert settings in "".join((*checks.EXACT["cuda"], "model=mlp"))
