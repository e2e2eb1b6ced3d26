"""What this process may use. Cores and memory: the least of the machine's, its affinity and its control groups' limits.

A container, a scheduler or a login node limits a process by control groups (cgroups(7)) of version 1 or 2. A limit of a
parent group holds for its children.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterator
from pathlib import Path

GROUPS = Path("/sys/fs/cgroup")
MEMBERSHIP = Path("/proc/self/cgroup")
VISIBLE = ("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "ZE_AFFINITY_MASK")
"""Variables that hide accelerators from a process."""


def usable_cores() -> int:
    """Logical cores: a CPU quota of 2.5 cores is two, and there is always one."""
    quotas = [int(quota) / int(period) for quota, period in _quotas() if quota.isdigit() and int(period)]
    return max(1, int(min([len(os.sched_getaffinity(0)), *quotas])))


def quota_throttled_seconds() -> float:
    """CPU time that quotas have withheld since their groups began, seconds, summed over cores; NaN: no group counts it."""
    group_seconds = []
    for group in _groups("cpu"):
        counts = dict(line.split() for line in kernel_text(group / "cpu.stat").splitlines())
        if "throttled_usec" in counts:
            group_seconds.append(int(counts["throttled_usec"]) / 1e6)
        elif "throttled_time" in counts:  # version 1
            group_seconds.append(int(counts["throttled_time"]) / 1e9)
    return sum(group_seconds) if group_seconds else math.nan


def usable_memory_bytes() -> int:
    """Main memory, or the least limit on it."""
    machine = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return min([machine, *(limit for limit, _ in _memory_limits())])


def free_memory_bytes() -> int:
    """Memory that can be taken without swapping or meeting a limit; pages of a group's file cache count as free."""
    import psutil

    return min([int(psutil.virtual_memory().available), *(limit - used for limit, used in _memory_limits())])


def _quotas() -> Iterator[tuple[str, str]]:
    """Quota and period of each group that limits CPU time, microseconds."""
    for group in _groups("cpu"):
        if words := kernel_text(group / "cpu.max").split():
            yield words[0], words[1]
        elif quota := kernel_text(group / "cpu.cfs_quota_us"):
            yield quota, kernel_text(group / "cpu.cfs_period_us")


def _memory_limits() -> Iterator[tuple[int, int]]:
    """Limit and use of each group that limits memory, bytes; use without the file cache that is given up first."""
    for group in _groups("memory"):
        limit = kernel_text(group / "memory.max") or kernel_text(group / "memory.limit_in_bytes")
        if limit.isdigit():
            used = int(kernel_text(group / "memory.current") or kernel_text(group / "memory.usage_in_bytes") or 0)
            lines = dict(line.split() for line in kernel_text(group / "memory.stat").splitlines())
            yield int(limit), used - int(lines.get("total_inactive_file", lines.get("inactive_file", 0)))


def _groups(controller: str) -> Iterator[Path]:
    """Folders of this process's group and its parents, innermost first.

    Inside a container its own group may be the root of the mount, under another path than the kernel names.
    """
    roots = {}
    for line in kernel_text(MEMBERSHIP).splitlines():
        _, names, path = line.split(":", 2)
        roots[names] = path
    of_version_1 = [(names, path) for names, path in roots.items() if controller in names.split(",")]
    root, path = (GROUPS / controller, of_version_1[0][1]) if of_version_1 else (GROUPS, roots.get("", "/"))
    innermost = root / path.lstrip("/")
    yield from (folder for folder in (innermost, *innermost.parents) if folder.is_relative_to(root))


def kernel_text(file: Path) -> str:
    """The text of a small file of the kernel; empty where there is none."""
    try:
        return file.read_text(encoding="utf-8", errors="replace").strip()  # paths of mounts may be any bytes
    except OSError:
        return ""
