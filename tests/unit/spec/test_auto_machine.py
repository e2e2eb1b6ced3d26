"""`machine: auto`: the file that it writes of stand-in GPUs, and when it writes none."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest

from scalestudy.errors import UserError
from scalestudy.hardware import Accelerators, Device
from scalestudy.spec import auto_machine as module
from scalestudy.spec.auto_machine import auto_machine, name_of
from scalestudy.spec.config import checked, read_config, read_machine
from scalestudy.spec.machine import Machine
from scalestudy.spec.yamlfile import parse_yaml
from tests.conftest import ROOT
from tests.stand_ins import gpus
from tests.unit.conftest import See

KNOWN = ROOT / "config/reference/accelerators.csv"


@pytest.fixture(autouse=True)
def _table_of_accelerators(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A project with the table of accelerators."""
    monkeypatch.setattr(module, "KNOWN", KNOWN)
    monkeypatch.setenv(module.NAMED, "")


@pytest.mark.parametrize("count", [1, 8])
def test_the_file_has_what_was_found_and_what_the_data_sheet_says(see: See, count: int) -> None:
    see(count, **gpus.H100)
    name = auto_machine()
    assert name == auto_machine() == f"h100_80gb_hbm3_x{count}"
    Path("config/config.yaml").write_text("machine: local\n")
    assert read_config("config/config.yaml", {"machine": "auto"}).machine == name
    machine = read_machine(name)
    assert (machine.nodes, machine.devices_per_node, machine.device) == (1, count, "cuda")
    assert machine.device_name == "NVIDIA H100 80GB HBM3"
    assert machine.peak_tflops["bfloat16"] == 989.5
    assert machine.device_link_gb_per_s == 900
    assert machine.cores_per_node == module.cores()
    assert machine.sources["peak_tflops"].startswith("NVIDIA H100 Tensor Core GPU, data sheet, 2023")


def test_a_file_that_is_there_is_kept_and_one_of_another_machine_is_an_error(
    see: See, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    see(1, **gpus.H100)
    file = tmp_path / "config/machines/h100_80gb_hbm3_x1.yaml"
    file.write_text("devices_per_node: 1\nprices: {currency: EUR, per_device_hour: 2.0}\n")
    assert auto_machine() == "h100_80gb_hbm3_x1"
    assert "prices" in file.read_text()
    file.write_text("devices_per_node: 1\ncores_per_node: 4096\n")
    monkeypatch.delenv(module.NAMED)
    with pytest.raises(UserError, match=r"x1\.yaml:2: cores_per_node: says 4096, and \d+ was found here"):
        auto_machine()


def test_without_an_accelerator_there_is_no_such_machine(see: See) -> None:
    see(0)
    with pytest.raises(UserError, match="choose `machine: local` to measure the CPU"):
        auto_machine()


def test_a_gpu_that_is_not_in_the_table_has_no_peaks_and_the_file_says_so(see: See, tmp_path: Path) -> None:
    see(1, STAND_IN_GPU_NAME="Stand-in GPU")
    name = auto_machine()
    assert name == "stand_in_gpu_x1"
    assert read_machine(name).peak_tflops == {}
    assert "is not in" in (tmp_path / f"config/machines/{name}.yaml").read_text()


@pytest.mark.parametrize(
    ("driver_says", "name"),
    [
        ("Tesla V100-SXM2-16GB", "v100_sxm2_16gb_x1"),
        ("", "accelerator_x1"),
        ("NVIDIA 4090", "gpu_4090_x1"),
    ],
)
def test_a_machine_is_named_after_its_accelerator(driver_says: str, name: str) -> None:
    assert name_of(Accelerators("cuda", (Device(driver_says, 0, None),), "a stand-in")) == name


def test_every_row_of_the_table_is_a_machine_file() -> None:
    with open(KNOWN, encoding="utf-8", newline="") as stream:
        rows = list(csv.DictReader(stream))
    for row in rows:
        facts = {"nodes": 1, "devices_per_node": 1, "device": "cuda", "device_name": row["device_name"],
                 "cores_per_node": 8, "memory_gib": 64.0}  # fmt: skip
        machine = checked(Machine, parse_yaml(module.text_of(facts, row), "m.yaml"))
        assert machine.peak_tflops["float16"] == float(row["float16"])
        assert machine.sources["peak_tflops"] == row["source"]
    assert len(rows) >= 15
