"""What a run's accelerators do: sampled by NVML, here a stand-in for it, and what follows for the window."""

from __future__ import annotations

import math

import pytest

from scalestudy.measure.devices import DeviceMeter, energy_j, throttling
from tests.stand_ins import gpus
from tests.unit.conftest import See


def row(clock_s: float, energy: float = math.nan, power: float = math.nan) -> dict[str, float]:
    return {"clock_s": clock_s, "devices": 1.0, "device_energy_j": energy, "device_power_w": power}


COUNTED = [row(0, 1000.0), row(1, 1300.0), row(2, 1500.0), row(3, 1900.0)]
UNKNOWN = [row(0, power=100.0), row(1), row(2, power=100.0)]
POWERED = [row(0, power=100.0), row(1, power=300.0), row(2, power=300.0), row(3, power=100.0)]


@pytest.mark.parametrize(("begin", "end", "joules"), [(0, 3, 900), (1, 2, 200), (0.5, 2.5, 550), (1.25, 1.75, 100)])
def test_energy_is_the_difference_of_the_counters_at_both_ends(begin: float, end: float, joules: float) -> None:
    assert energy_j(COUNTED, begin, end) == pytest.approx(joules)


@pytest.mark.parametrize(("begin", "end", "joules"), [(0, 3, 700), (1, 2, 300), (0.5, 2.5, 550)])
def test_without_a_counter_energy_is_the_area_below_sampled_power(begin: float, end: float, joules: float) -> None:
    assert energy_j(POWERED, begin, end) == pytest.approx(joules)
    assert energy_j(UNKNOWN, 0, 2) is None


@pytest.mark.parametrize(("held_down", "said"), [(2, ["power cap (20% of samples)"]), (0, [])])
def test_what_holds_the_clock_down_in_a_tenth_of_the_samples_is_said(held_down: int, said: list[str]) -> None:
    rows = [row(clock) | {"device_throttle": 4.0 if clock < held_down else 0.0} for clock in range(10)]
    assert throttling(rows, 0, 9) == said


def test_readings_of_two_devices_are_one_row(see: See) -> None:
    see(2, STAND_IN_GPU_WATTS="250", STAND_IN_THROTTLE="4", STAND_IN_PROCESSES="3")
    meter = DeviceMeter(["0000:10:00.0", "0000:11:00.0"])
    found = meter.row()
    meter.close()
    assert found["devices"] == 2
    assert found["device_power_w"] == 500
    assert found["device_utilisation"] == 0.75
    assert found["device_memory_bytes"] == 2 * 1024 * 2**20
    assert found["device_processes"] == 6
    assert found["device_clock_mhz"] == 1500
    assert found["device_throttle"] == 4
    assert meter.row() == {}


def test_an_absent_library_or_device_is_said(see: See, monkeypatch: pytest.MonkeyPatch) -> None:
    see(1)
    of = "utilisation, power and energy of the devices are not measured: "
    assert DeviceMeter(["0000:99:00.0"]).unmeasured == f"{of}NVML does not know 1 device"
    gpus.loads(monkeypatch, None)
    assert DeviceMeter(["0000:10:00.0"]).unmeasured == f"{of}NVML Shared Library Not Found"
    assert DeviceMeter([]).unmeasured == ""
