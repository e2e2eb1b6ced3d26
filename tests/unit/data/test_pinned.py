"""Batches of worker processes are page-locked, by a stand-in for CUDA's runtime; tests/gpu has a real one."""

from __future__ import annotations

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


class StandInForCuda:
    """What the runtime was asked for, in order."""

    def __init__(self, status: int) -> None:
        self.status, self.calls = status, list[tuple[str, int]]()

    def cudaHostRegister(self, address: int, size: int, flags: int) -> int:
        self.calls.append(("lock", address))
        return self.status

    def cudaHostUnregister(self, address: int) -> int:
        self.calls.append(("give back", address))
        return self.status


def calls(prepared: Prepared, monkeypatch: pytest.MonkeyPatch, status: int = 0, **options: Any) -> list[Any]:
    """Those of a loader with two processes."""
    cuda = StandInForCuda(status)
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: DEVICE)
    monkeypatch.setattr(torch.cuda, "cudart", lambda: cuda)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda device: cuda.calls.append(("wait", device)))
    monkeypatch.setattr(torch.Tensor, "is_pinned", lambda _: True)
    spec = run.Loader.model_validate({"workers": 2, "kind": "processes", "size": 32, **options})
    path, _ = prepared(source="synthetic_jpeg", samples=8, width=96, height=64, mean_kib=3.0)
    with Loader(open_dataset(path, "train", spec), [(0, np.arange(8))], spec, seed=1) as loader:
        assert len(list(loader)) == 1
    return cuda.calls


def test_memory_that_processes_share_is_locked_and_given_back_after_its_copies(
    prepared: Prepared, monkeypatch: pytest.MonkeyPatch
) -> None:
    (locked, address), waited, given_back = calls(prepared, monkeypatch)
    assert locked == "lock" and address % 4096 == 0
    assert (waited, given_back) == (("wait", DEVICE), ("give back", address))
    assert calls(prepared, monkeypatch, pin_memory=False) == []


def test_memory_that_cannot_be_locked_is_said(prepared: Prepared, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UserError, match="of batches cannot be page-locked: cudaHostRegister: CUDA error 2") as caught:
        calls(prepared, monkeypatch, status=2)
    assert "`loader.pin_memory: false`" in caught.value.remedy
