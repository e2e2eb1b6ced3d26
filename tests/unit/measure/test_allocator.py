"""How the allocator of a run's processes is set up, and what that does to page faults."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from scalestudy.measure import allocator

STEPS = """
import resource
from scalestudy.measure import allocator
allocator.keep_freed_memory()
import numpy as np
def step(): return float(np.ones(4_000_000).sum())
step()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(10): step()
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before, allocator.name())
"""


def test_memory_of_a_step_is_kept_for_the_next_one() -> None:
    env = {key: value for key, value in os.environ.items() if not key.startswith(("MALLOC_", "GLIBC_"))}
    done = subprocess.run([sys.executable, "-c", STEPS], env=env, capture_output=True, text=True, check=True)
    faults, _, name = done.stdout.strip().partition(" ")
    assert int(faults) < 100  # of ten steps that use 32 MB each
    assert name.startswith("glibc") and name.endswith("freed memory kept")


@pytest.mark.parametrize(
    ("loaded", "variables", "name"),
    [
        ("/usr/lib/x86_64-linux-gnu/libjemalloc.so.2", {}, "jemalloc"),
        ("", {"MALLOC_MMAP_THRESHOLD_": "65536"}, "MALLOC_MMAP_THRESHOLD_=65536"),
        ("", {"GLIBC_TUNABLES": "glibc.malloc.arena_max=1"}, "glibc.malloc.arena_max=1"),
    ],
)
def test_an_allocator_that_the_user_has_set_stays_and_is_named(
    loaded: str, variables: dict[str, str], name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "maps").write_text(f"7f0000000000-7f0000001000 r-xp 00000000 08:01 1 {loaded}\n")
    monkeypatch.setattr(allocator, "MAPS", tmp_path / "maps")
    monkeypatch.setattr(allocator, "_set", pytest.fail)
    monkeypatch.setattr(allocator, "_of_process", {})
    monkeypatch.setattr(os, "environ", variables)
    allocator.keep_freed_memory()
    assert allocator.name().endswith(name)
