"""How the allocator of a run's processes is set up, and what that does to page faults."""

from __future__ import annotations

import os
import subprocess
import sys

STEPS = """
import resource, sys
from scalestudy.measure import allocator
getattr(allocator, sys.argv[1])()
import numpy as np
def step(): return float(np.ones(4_000_000).sum())
step()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(10): step()
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before, allocator.name())
"""


def faults_and_name(setting: str, **environment: str) -> tuple[int, str]:
    """Page faults of ten steps that use 32 MB each, and the allocator's name, in a process of its own."""
    env = {key: value for key, value in os.environ.items() if not key.startswith(("MALLOC_", "GLIBC_"))}
    done = subprocess.run(
        [sys.executable, "-c", STEPS, setting], env={**env, **environment}, capture_output=True, text=True, check=True
    )
    faults, _, name = done.stdout.strip().partition(" ")
    return int(faults), name


def test_memory_of_a_step_is_kept_for_the_next_one() -> None:
    faults, name = faults_and_name("keep_freed_memory")
    assert faults < 100
    assert name.startswith("glibc") and name.endswith("freed memory kept")


def test_an_allocator_that_the_user_has_set_stays_and_is_named() -> None:
    faults, name = faults_and_name("keep_freed_memory", MALLOC_MMAP_THRESHOLD_="65536")
    assert faults > 1000
    assert name.endswith("MALLOC_MMAP_THRESHOLD_=65536")
