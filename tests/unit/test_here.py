"""What `make run` chooses, by stand-in GPUs."""

from __future__ import annotations

from pathlib import Path

import pytest

from scalestudy.commands.run import ON_GPU, fitting_scale
from scalestudy.errors import UserError
from scalestudy.hardware import Accelerators
from scalestudy.spec.machine import Machine
from scalestudy.spec.read_study import find_studies
from tests.conftest import ROOT
from tests.unit.conftest import See


def test_a_driver_that_torch_cannot_use_is_no_reason_to_take_the_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    broken = Accelerators("", (), "torch", unusable="nvmlInit_v2: Driver/library version mismatch; torch finds none")
    monkeypatch.setattr("scalestudy.hardware.accelerators", lambda: broken)
    for scale in (None, "node"):
        with pytest.raises(
            UserError, match="this machine has an accelerator, but it cannot be used: nvmlInit_v2"
        ) as caught:
            fitting_scale(scale)
        assert "`make run SCALE=mini` measures the CPU" in caught.value.remedy
    assert fitting_scale("mini")[0] == "mini"


def test_what_make_run_measures_on_a_gpu_is_sampled_often_enough_and_takes_ten_minutes_at_most(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(ROOT)
    machine = Machine.model_validate({"devices_per_node": 1, "device": "cuda", "cores_per_node": 16, "nodes": 1})
    runs = [run.spec for study in find_studies(ON_GPU, "node", machine).studies for run in study.runs]
    assert {spec.loader.workers for spec in runs if spec.data.source == "synthetic_jpeg"} == {1, 2, 4, 8, 16}
    windows_s = [60 * (spec.measure.minutes or 0.0) for spec in runs]
    assert min(windows_s) >= 5  # NVML is sampled once a second
    assert all(spec.measure.steps is None for spec in runs)
    # Beside its window a run starts processes and CUDA, warms up, and may time its loader alone: 8 s each, to be seen on a GPU.
    assert sum(windows_s) + 8 * len(runs) <= 600


def test_a_machine_without_a_gpu_runs_on_its_cpu(project: Path, see: See) -> None:
    see(0)
    assert fitting_scale()[0] == "mini"
    with pytest.raises(UserError, match="scale `node` needs an accelerator"):
        fitting_scale("node")
