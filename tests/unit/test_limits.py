"""Limits of control groups, of both versions."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from scalestudy import limits

MIB = 1 << 20


@pytest.fixture
def groups(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder in place of /sys/fs/cgroup, on a machine of eight cores."""
    monkeypatch.setattr(limits, "GROUPS", tmp_path)
    monkeypatch.setattr(limits, "MEMBERSHIP", tmp_path / "self")
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(8)))
    yield tmp_path


def write(folder: Path, **files: str) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        (folder / name.replace("__", ".")).write_text(text + "\n")


def test_limits_of_parents_hold_in_version_2(groups: Path) -> None:
    (groups / "self").write_text("0::/user/job\n")
    write(groups / "user", cpu__max="250000 100000", memory__max=str(900 * MIB), memory__current=str(700 * MIB),
          memory__stat=f"anon 1\ninactive_file {400 * MIB}")  # fmt: skip
    write(groups / "user/job", cpu__max="max 100000", memory__max="max", memory__current="0")
    assert limits.usable_cores() == 2
    assert limits.usable_memory_bytes() == 900 * MIB
    assert limits.free_memory_bytes() == 600 * MIB


def test_limits_of_version_1_are_found_where_a_container_hides_its_path(groups: Path) -> None:
    (groups / "self").write_text("5:cpu,cpuacct:/docker/1f\n4:memory:/docker/1f\n1:name=systemd:/\n")
    write(groups / "cpu", cpu__cfs_quota_us="50000", cpu__cfs_period_us="100000")
    write(groups / "memory", memory__limit_in_bytes=str(512 * MIB), memory__usage_in_bytes=str(100 * MIB),
          memory__stat="total_inactive_file 0")  # fmt: skip
    assert limits.usable_cores() == 1
    assert limits.usable_memory_bytes() == 512 * MIB
    assert limits.free_memory_bytes() == 412 * MIB


@pytest.mark.parametrize("files", [{}, {"cpu__max": "max 100000"}, {"cpu__cfs_quota_us": "-1", "memory__max": "max"}])
def test_without_a_limit_the_machine_counts(groups: Path, files: dict[str, str]) -> None:
    (groups / "self").write_text("0::/\n")
    write(groups, **files)
    assert limits.usable_cores() == 8
    assert limits.usable_memory_bytes() == os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def test_time_that_quotas_withheld_is_that_of_the_own_group_and_of_its_parents(groups: Path) -> None:
    (groups / "self").write_text("0::/user/job\n")
    assert math.isnan(limits.quota_throttled_seconds())
    write(groups, cpu__stat="usage_usec 90\nuser_usec 60\nsystem_usec 30")  # the root has no quota
    assert math.isnan(limits.quota_throttled_seconds())
    write(groups / "user", cpu__stat="usage_usec 90\nnr_periods 12\nnr_throttled 3\nthrottled_usec 1500000")
    write(groups / "user/job", cpu__stat="usage_usec 90\nnr_periods 9\nnr_throttled 1\nthrottled_usec 250000")
    assert limits.quota_throttled_seconds() == 1.75
    (groups / "self").write_text("5:cpu,cpuacct:/docker/1f\n")
    write(groups / "cpu", cpu__stat="nr_periods 4\nnr_throttled 2\nthrottled_time 300000000")
    assert limits.quota_throttled_seconds() == 0.3
