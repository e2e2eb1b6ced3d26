"""Whether heat slowed the processor down, by a folder that stands in for /sys."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from scalestudy.measure.system import share_of_time, throttled_seconds


def heat(system: Path, cpu: int, **counters: object) -> None:
    """What the kernel counted for a hardware thread since the machine's start."""
    folder = system / f"devices/system/cpu/cpu{cpu}/thermal_throttle"
    folder.mkdir(parents=True, exist_ok=True)
    for name, value in counters.items():
        (folder / f"{name}_throttle_total_time_ms").write_text(f"{value}\n")


def test_the_time_is_that_of_core_or_socket_and_the_mean_over_the_runs_cores(tmp_path: Path) -> None:
    heat(tmp_path, 0, core=1500, package=500)
    heat(tmp_path, 1, core=0, package=500)
    heat(tmp_path, 2, core=90_000)
    assert throttled_seconds([0, 1], tmp_path) == pytest.approx(1.0)
    assert throttled_seconds([0, 1, 7], tmp_path) == pytest.approx(1.0)


def test_a_kernel_that_does_not_count_it_says_nothing(tmp_path: Path) -> None:
    assert math.isnan(throttled_seconds([0, 1], tmp_path))
    heat(tmp_path, 0, core="broken")
    assert math.isnan(throttled_seconds([0], tmp_path))
    rows = [{"clock_s": float(second), "throttled_s": math.nan} for second in range(3)]
    assert share_of_time(rows, 0.5, 1.5, "throttled_s") is None
    assert share_of_time([{"clock_s": 0.0}, {"clock_s": 1.0}], 0.0, 1.0, "throttled_s") is None
    assert share_of_time([], 0.0, 1.0, "throttled_s") is None


def test_of_cpu_time_the_share_is_that_of_each_core_and_rows_of_ranks_tell_nothing_of_disks() -> None:
    """Two cores are half busy, a disk a quarter of the time; a rank's row at the window's end has no disk."""
    rows = [
        {"clock_s": float(second), "busy_s": 7.0 + second, "cores": 2.0, "host_disk_busy_s": second / 4}
        for second in range(4)
    ]
    rows.insert(3, {"clock_s": 2.5, "busy_s": 9.5, "cores": 2.0})
    assert share_of_time(rows, 0.5, 2.5, "busy_s", "cores") == pytest.approx(0.5)
    assert share_of_time(rows, 0.5, 2.5, "host_disk_busy_s") == pytest.approx(0.25)
    assert share_of_time(rows[3:4], 0.5, 2.5, "host_disk_busy_s") is None
