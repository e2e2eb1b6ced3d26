"""A run that a device's memory does not suffice for, by stand-ins for the allocator: skipped, with what was found."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from scalestudy.errors import Skipped, UserError
from scalestudy.measure import memory
from scalestudy.measure.memory import MemoryLimit, PeakMemory
from scalestudy.training.world import is_oom, oom_as_skip

GIB = 2**30
CPU, GPU = torch.device("cpu"), torch.device("cuda", 0)
OUT_OF_MEMORY = (
    "CUDA out of memory. Tried to allocate 2.50 GiB. GPU 0 has a total capacity of 80.00 GiB of which 1.00 GiB is free."
)
AS_LIBRARIES_SAY = (
    "CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`",
    "cuDNN error: CUDNN_STATUS_ALLOC_FAILED",
    "CUDA error: out of memory\nCompile with `TORCH_USE_CUDA_DSA` to enable device-side assertions.",
)


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """A stand-in device of 80 GiB of which this process holds 77."""
    found = SimpleNamespace(free=1 * GIB)
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "memory_reserved", lambda: 77 * GIB)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda: (found.free, 80 * GIB))
    return found


def ends(error: Exception, shares: bool = False, limit_mib: float | None = None) -> None:
    job: Any = SimpleNamespace(shares_devices=shares, spec=SimpleNamespace(memory_limit_mib=limit_mib))
    with oom_as_skip(job):
        raise error


@pytest.mark.parametrize("said", (OUT_OF_MEMORY, *AS_LIBRARIES_SAY))
def test_out_of_memory_is_skipped_with_the_librarys_message(device: SimpleNamespace, said: str) -> None:
    with pytest.raises(Skipped) as caught:
        ends(RuntimeError(said))
    first = said.split("\n", maxsplit=1)[0].rstrip(".")
    remedy = "use a smaller batch, or another strategy or precision"
    assert str(caught.value) == f"does not fit: {first}; {remedy}"


def test_memory_that_others_hold_is_no_property_of_the_run(device: SimpleNamespace, monkeypatch: Any) -> None:
    monkeypatch.setattr(torch.cuda, "memory_reserved", lambda: 60 * GIB)
    with pytest.raises(
        UserError, match=r"of which others hold 19\.0 GiB: CUDA out of memory\. Tried to allocate 2\.50 GiB"
    ):
        ends(torch.OutOfMemoryError(OUT_OF_MEMORY))
    with pytest.raises(Skipped):  # the others are ranks of the run
        ends(torch.OutOfMemoryError(OUT_OF_MEMORY), shares=True)


def test_other_errors_stay_what_they_are() -> None:
    for error in (RuntimeError("CUDA error: an illegal memory access was encountered"), ValueError("out of memory")):
        assert not is_oom(error)
        with pytest.raises(type(error)):
            ends(error)


def test_a_limit_of_the_run_makes_it_a_property_of_the_run_on_a_cpu_too() -> None:
    refused = RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 393216 bytes.")
    for error in (refused, MemoryError("Unable to allocate 1 GiB")):
        with pytest.raises(Skipped, match=r"^does not fit in 140 MiB: "):
            ends(error, limit_mib=140)
        with pytest.raises(type(error)):  # the host's memory may suffice the next time
            ends(error)


def test_of_a_gpu_what_comes_above_the_use_before_is_counted_and_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    shares: list[float] = []
    for name, size in {"memory_allocated": 2, "memory_reserved": 3, "max_memory_allocated": 7}.items():
        monkeypatch.setattr(torch.cuda, name, lambda device, size=size: size * GIB)
    monkeypatch.setattr(torch.cuda, "reset_peak_memory_stats", lambda device: None)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: SimpleNamespace(total_memory=80 * GIB))
    monkeypatch.setattr(torch.cuda, "set_per_process_memory_fraction", lambda share, device: shares.append(share))
    peak = PeakMemory(GPU)
    peak.restart()
    assert peak.bytes() == 5 * GIB
    with MemoryLimit(GPU, 5 * GIB):
        assert shares == [0.1]
    assert shares == [0.1, 1.0]


def test_a_system_that_tells_nothing_of_a_process_measures_no_peak_and_limits_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(memory, "CLEAR", tmp_path / "no" / "clear_refs")
    monkeypatch.setattr(memory, "return_freed_memory", lambda: None)
    peak = PeakMemory(CPU)
    peak.restart()
    assert peak.bytes() is None
    monkeypatch.setattr(memory, "sizes", lambda file: {})
    with pytest.raises(Skipped, match="cannot be limited here"):
        MemoryLimit(CPU, GIB)
