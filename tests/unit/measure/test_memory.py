"""Peak memory of a process."""

from __future__ import annotations

import pytest
import torch

from scalestudy.measure.memory import PeakMemory

MIB = 2**20


def test_memory_that_was_freed_again_is_in_the_peak_and_what_was_there_before_is_not() -> None:
    before = torch.ones(64 * MIB, dtype=torch.uint8)
    memory = PeakMemory(torch.device("cpu"))
    memory.restart()
    torch.ones(96 * MIB, dtype=torch.uint8)
    if (peak := memory.bytes()) is None:
        pytest.skip("this system does not reset a process's peak")
    assert 90 * MIB < peak < 128 * MIB
    memory.restart()
    assert len(before) and (memory.bytes() or 0) < 32 * MIB
