"""What cannot work is refused in one sentence before any rank starts, or where it is first seen."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from scalestudy.errors import Skipped, UserError
from scalestudy.launch.resolve import resolve
from scalestudy.models.build import build
from scalestudy.models.catalogue import OwnModel
from scalestudy.models.outputs import check_width
from scalestudy.spec.config import Site
from scalestudy.spec.machine import Machine
from scalestudy.spec.run import RunSpec

RUN = {"ranks": 2, "strategy": "allreduce", "data": {"source": "digits"}, "batch": {"per_rank": 8}}
TWO_CORES = Machine.model_validate({"cores_per_node": 2})


def run(**more: object) -> RunSpec:
    """A small run on two ranks."""
    return RunSpec.model_validate({**RUN, **more})


def test_more_than_sixteen_threads_per_core_are_not_tried() -> None:
    with pytest.raises(Skipped, match="4096 threads per rank are more than 16 per core; 32 are possible here"):
        resolve(run(threads_per_rank=4096), TWO_CORES, Site())
    assert resolve(run(threads_per_rank=32), TWO_CORES, Site())[0].threads_per_rank == 32


def test_a_network_interface_that_is_not_there_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "nope0")
    with pytest.raises(UserError, match="there is no network interface `nope0`") as caught:
        resolve(run(), TWO_CORES, Site())
    assert "or name one of" in caught.value.remedy
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "lo")
    resolve(run(), TWO_CORES, Site())


def test_a_model_without_parameters_is_named(tmp_path: Path) -> None:
    (tmp_path / "empty.py").write_text("from torch import nn\nclass Empty(nn.Module):\n    pass\n")
    options = OwnModel.model_validate({"import": "empty:Empty"})
    with pytest.raises(UserError, match="`Empty` has no parameter to train"):
        build(options, classes=10, channels=1, image_size=8, task="classification", extensions=tmp_path)


@pytest.mark.parametrize("shape", [(4, 7), (4, 12), (4,), (4, 10, 1)])
def test_logits_that_are_not_one_per_class_are_refused(shape: tuple[int, ...]) -> None:
    with pytest.raises(UserError, match="for data with 10 classes"):
        check_width(torch.zeros(shape), 10)
    check_width(torch.zeros(4, 10), 10)
