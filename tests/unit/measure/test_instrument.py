"""What is said of the machine: its clock and its pages."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch

from scalestudy.measure import instrument
from scalestudy.measure.instrument import cpu_clock, cpu_name, of_host, of_rank, switches


def write(file: Path, text: str) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text)


def test_governor_clock_boost_and_huge_pages_are_those_of_the_kernel(tmp_path: Path) -> None:
    for core in os.sched_getaffinity(0):
        write(tmp_path / f"devices/system/cpu/cpu{core}/cpufreq/scaling_governor", "powersave\n")
        write(tmp_path / f"devices/system/cpu/cpu{core}/cpufreq/scaling_max_freq", "3400000\n")
    write(tmp_path / "devices/system/cpu/cpufreq/boost", "0\n")
    write(tmp_path / "kernel/mm/transparent_hugepage/enabled", "always [madvise] never\n")
    assert cpu_clock(tmp_path) == {"governor": "powersave", "clock": "3.40 GHz at most, no boost"}
    assert of_host(tmp_path)["huge_pages"] == "madvise"


def test_what_a_virtual_machine_does_not_show_is_not_made_up(tmp_path: Path) -> None:
    assert cpu_clock(tmp_path) == {"governor": "not shown", "clock": "not shown"}
    assert of_host(tmp_path)["huge_pages"] == "not shown"


def test_switches_of_libraries_are_part_of_the_instrument_and_threads_of_a_run_are_not() -> None:
    environment = {
        "NCCL_ALGO": "Ring",
        "OMP_NUM_THREADS": "2",
        "HOME": "/",
        "TORCHELASTIC_RUN_ID": "7",
        "LD_PRELOAD": "x.so",
    }
    assert switches(environment) == "LD_PRELOAD=x.so NCCL_ALGO=Ring"


def test_a_rank_on_a_gpu_names_driver_and_nccl(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(instrument, "driver_version", lambda: "580.65")
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.distributed, "is_nccl_available", lambda: True)
    monkeypatch.setattr(torch.cuda.nccl, "version", lambda: (2, 29, 3))
    named = of_rank()
    assert (named["driver"], named["nccl"]) == ("580.65", "2.29.3")


@pytest.mark.parametrize(("text", "name"), [
    ("processor\t: 0\ncpu family\t: 23\nmodel\t\t: 1\nmodel name\t: AMD EPYC\n\nprocessor\t: 1\n", "AMD EPYC (family 23, model 1)"),
    ("processor\t: 0\nCPU implementer\t: 0x41\nCPU part\t: 0xd40\n", " (implementer 0x41, part 0xd40)"),
])  # fmt: skip
def test_processors_that_share_a_name_are_told_apart_by_their_kind(text: str, name: str, tmp_path: Path) -> None:
    (tmp_path / "cpuinfo").write_text(text)
    assert cpu_name(tmp_path / "cpuinfo").endswith(name)
