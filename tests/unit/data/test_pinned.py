"""Page-locked batches, by a stand-in for CUDA's runtime: what is locked, for which device, and that it is given back."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import pytest
import torch

from scalestudy.data.load.dataset import open_dataset
from scalestudy.data.load.loader import Loader
from scalestudy.errors import UserError
from scalestudy.spec import run
from tests.unit.data.conftest import Prepared

DEVICE = 3
JPEG = {"source": "synthetic_jpeg", "samples": 24, "width": 96, "height": 64, "mean_kib": 3.0}
TENSORS = {"source": "synthetic", "samples": 24, "shape": [3, 8, 8]}


class StandInForCuda:
    """What the runtime was asked for; memory is locked in name only."""

    def __init__(self, status: int = 0) -> None:
        self.status = status
        self.registered: dict[int, int] = {}
        self.given_back: list[int] = []
        self.locked: set[int] = set()
        self.devices_of: dict[str, int] = {}
        self.waited = 0

    def cudaHostRegister(self, address: int, size: int, flags: int) -> int:
        self.registered[address] = size
        return self.status

    def cudaHostUnregister(self, address: int) -> int:
        assert self.waited, "a copy may be under way"
        self.given_back.append(address)
        return self.status


@pytest.fixture
def cuda(monkeypatch: pytest.MonkeyPatch) -> StandInForCuda:
    """A process that computes on GPU 3."""
    stand_in = StandInForCuda()
    empty = torch.empty

    def locked_empty(*shape: Any, pin_memory: bool = False, **options: Any) -> torch.Tensor:
        found = empty(*shape, **options)
        if pin_memory:
            stand_in.locked.add(found.data_ptr())
        return found

    def lock(tensor: torch.Tensor) -> torch.Tensor:
        copied = tensor.clone()
        stand_in.locked.add(copied.data_ptr())
        return copied

    def is_locked(tensor: torch.Tensor) -> bool:
        inside = any(begin <= tensor.data_ptr() < begin + size for begin, size in stand_in.registered.items())
        return inside or tensor.data_ptr() in stand_in.locked

    def waits(device: int) -> None:
        stand_in.waited += device == DEVICE

    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: DEVICE)
    monkeypatch.setattr(torch.cuda, "cudart", lambda: stand_in)
    monkeypatch.setattr(torch.cuda, "synchronize", waits)
    monkeypatch.setattr(
        torch.cuda, "set_device", lambda device: stand_in.devices_of.update({threading.current_thread().name: device})
    )
    monkeypatch.setattr(torch, "empty", locked_empty)
    monkeypatch.setattr(torch.Tensor, "pin_memory", lock)
    monkeypatch.setattr(torch.Tensor, "is_pinned", is_locked)
    return stand_in


def shown(prepared: Prepared, form: dict[str, Any], **options: Any) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """All batches of a loader, as it hands them out, until it is closed."""
    path, _ = prepared(**form)
    spec = run.Loader.model_validate({"workers": 2, "size": 32 if form is JPEG else None, **options})
    data = open_dataset(path, "train", spec)
    plan = [(0, np.arange(begin, begin + 8)) for begin in (0, 8, 16)]
    with Loader(data, plan, spec, seed=1) as loader:
        return [(x, y) for x, y in loader]


@pytest.mark.parametrize("form", [JPEG, TENSORS], ids=["pictures", "tensors"])
@pytest.mark.parametrize("kind", ["threads", "processes"])
def test_batches_of_pictures_and_of_tensors_are_page_locked(
    prepared: Prepared, cuda: StandInForCuda, form: dict[str, Any], kind: str
) -> None:
    batches = shown(prepared, form, kind=kind)
    assert len(batches) == 3
    assert all(x.is_pinned() and y.is_pinned() for x, y in batches)


def test_memory_that_processes_share_is_given_back_once_and_after_its_copies(
    prepared: Prepared, cuda: StandInForCuda
) -> None:
    shown(prepared, JPEG, kind="processes")
    assert cuda.given_back == list(cuda.registered)
    assert len(cuda.given_back) == 1
    assert cuda.given_back[0] % 4096 == 0


def test_memory_that_cannot_be_locked_is_said(prepared: Prepared, cuda: StandInForCuda) -> None:
    cuda.status = 2
    with pytest.raises(UserError, match="of batches cannot be page-locked: cudaHostRegister: CUDA error 2") as caught:
        shown(prepared, JPEG, kind="processes")
    assert "`loader.pin_memory: false`" in caught.value.remedy
