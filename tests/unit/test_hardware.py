"""Which accelerators a process may use: by NVML, else by torch, and never the CPU in their place."""

from __future__ import annotations

import inspect
import json
from pathlib import Path

import pytest

from scalestudy import hardware
from scalestudy.errors import Skipped
from scalestudy.hardware import (
    Accelerators,
    Device,
    accelerators,
    bus_ids,
    has_gpu_to_train_on,
    visible,
)
from scalestudy.launch.resolve import resolve
from scalestudy.nvml import NvmlDevice, throttled_by
from scalestudy.spec.config import Site
from scalestudy.spec.machine import Machine
from scalestudy.spec.run import RunSpec
from tests.stand_ins import gpus
from tests.unit.conftest import See

TWO = [
    NvmlDevice(None, "Some GPU", "GPU-aa00", "0000:3b:00.0", 1 << 34),
    NvmlDevice(None, "Some GPU", "GPU-bb00", "0000:5e:00.0", 1 << 34),
]


@pytest.mark.parametrize(
    ("named", "addresses"),
    [
        (None, ["0000:3b:00.0", "0000:5e:00.0"]),
        ("1,0", ["0000:5e:00.0", "0000:3b:00.0"]),
        ("-1", []),
        ("1,-1,0", ["0000:5e:00.0"]),
        ("NoDevFiles", []),
        ("GPU-bb00, GPU-aa00", ["0000:5e:00.0", "0000:3b:00.0"]),
        ("MIG-1234", [None]),
    ],
)
def test_gpus_are_those_that_cuda_would_show(named: str | None, addresses: list[str | None]) -> None:
    assert [device.bus_id for device in visible(TWO, named)] == addresses


@pytest.mark.parametrize("count", [1, 8])
def test_as_many_gpus_are_found_as_nvml_has(see: See, count: int) -> None:
    see(count, STAND_IN_GPU_NAME="Stand-in GPU", STAND_IN_GPU_MIB="16384")
    found = accelerators()
    assert (found.kind, found.count, found.source) == ("cuda", count, "NVML")
    assert found.devices[0] == Device("Stand-in GPU", 16384 << 20, "0000:10:00.0")
    assert bus_ids(2) == ["0000:10:00.0", "0000:11:00.0" if count > 1 else "0000:10:00.0"]


def test_a_driver_by_which_people_train_is_one_of_nvidia_or_of_amd_with_rocm(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "dxg").touch()
    (tmp_path / "rocm-smi").touch(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert not has_gpu_to_train_on(tmp_path)
    (tmp_path / "kfd").touch()
    assert has_gpu_to_train_on(tmp_path)
    monkeypatch.setenv("PATH", "/nowhere")
    assert not has_gpu_to_train_on(tmp_path)
    (tmp_path / "nvidia0").touch()
    assert has_gpu_to_train_on(tmp_path)


AMD = {"kind": "cuda", "devices": [{"name": "AMD Stand-in", "memory_bytes": 64 << 30, "bus_id": "0000:c1:00.0"}] * 2}


def asked(monkeypatch: pytest.MonkeyPatch, answer: str) -> None:
    """No NVML, the file of a driver, and a stand-in for torch that prints an answer."""
    gpus.loads(monkeypatch, None)
    monkeypatch.setattr(hardware, "is_any_there", lambda: True)
    monkeypatch.setattr(hardware, "QUESTION", f"print({answer!r})")
    monkeypatch.setattr(hardware, "_accelerators", inspect.unwrap(hardware._accelerators))


def test_where_nvml_does_not_answer_torch_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    asked(monkeypatch, json.dumps(AMD))
    found = accelerators()
    assert (found.count, found.devices[1].name, found.source) == (2, "AMD Stand-in", "torch")
    monkeypatch.setattr(hardware, "QUESTION", "raise SystemExit('no such thing')")
    assert accelerators() == Accelerators("", (), "torch could not say: no such thing")


def test_a_driver_that_torch_cannot_use_is_no_reason_to_take_the_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    asked(monkeypatch, json.dumps({"kind": "", "devices": []}))
    monkeypatch.setattr(hardware, "has_gpu_to_train_on", lambda: True)
    found = accelerators()
    assert found.unusable == f"NVML Shared Library Not Found; {hardware.UNUSABLE}"
    spec, machine = RunSpec.model_validate({"batch": {"per_rank": 8}}), Machine()
    with pytest.raises(Skipped, match=r"it cannot be used: NVML Shared Library.*set `device: cpu`"):
        resolve(spec, machine, Site())
    assert resolve(spec.model_copy(update={"device": "cpu"}), machine, Site())[0].device == "cpu"
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "-1")
    assert resolve(spec, machine, Site())[0].device == "cpu"
    assert accelerators() == Accelerators("", (), "CUDA_VISIBLE_DEVICES hides all")


def test_what_holds_a_clock_down_is_said_in_words() -> None:
    assert throttled_by(0x1) == []
    assert throttled_by(0x4 | 0x20) == ["power cap", "temperature"]
    assert throttled_by(float("nan")) == []
