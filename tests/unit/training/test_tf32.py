"""`tf32` of a run: what it sets on a GPU, what is said of it, and where it is refused. No GPU is needed."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch

from scalestudy.errors import Skipped
from scalestudy.launch.resolve import resolve
from scalestudy.spec.config import Site
from scalestudy.spec.machine import Machine
from scalestudy.spec.run import RunSpec
from scalestudy.training.world import allow_tf32, uses_tf32

GPU = torch.device("cuda", 0)


def run(**more: Any) -> RunSpec:
    return RunSpec.model_validate({"batch": {"per_rank": 8}, **more})


@pytest.fixture(autouse=True)
def as_before() -> Iterator[None]:
    """The flags are those of the process."""
    flags = torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32
    yield
    torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32 = flags


def test_both_kinds_of_product_are_set_alike_and_unset_leaves_torchs_choice() -> None:
    before = uses_tf32(GPU)
    allow_tf32(None)
    assert uses_tf32(GPU) == before
    allow_tf32(True)
    assert uses_tf32(GPU) == ["matrix products", "convolutions"]
    allow_tf32(False)
    assert uses_tf32(GPU) == []
    assert uses_tf32(torch.device("cpu")) is None


def test_it_is_of_gpus() -> None:
    with pytest.raises(Skipped, match="TF32 is of GPUs"):
        resolve(run(tf32=True), Machine.model_validate({"device": "cpu"}), Site())


@pytest.mark.parametrize(
    ("settings", "device", "peaks"),
    [
        ({}, "cuda", (67.0, 494.5)),
        ({"tf32": False}, "cuda", (67.0, 67.0)),
        ({"tf32": True}, "cuda", (494.5, 494.5)),
        ({"autocast": "bfloat16"}, "cuda", (989.5, 989.5)),
        ({}, "cpu", (67.0, 67.0)),
    ],
)
def test_a_share_of_the_peak_is_of_the_number_type_that_computes(
    settings: dict[str, Any], device: str, peaks: tuple[float, float]
) -> None:
    # On an H200, ResNet-50 in float32 and convolutions in TF32 made 80 % of the peak without tensor cores.
    stated = {"float32": 67, "tf32": 494.5, "bfloat16": 989.5}
    machine = Machine.model_validate({"device": device, "devices_per_node": 1, "peak_tflops": stated})
    resolved, _ = resolve(run(**settings, device=device, launch={"oversubscribe": True}), machine, Site())
    assert (resolved.peak_tflops, resolved.convolution_peak_tflops) == peaks
