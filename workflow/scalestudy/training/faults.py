"""Injected faults: each is a sentence in the spec, and is counted when it fires."""

from __future__ import annotations

import os
import signal
import time
from collections import Counter

from scalestudy.spec.run import KilledRank, RunSpec, SlowDecode, SlowRank


class Faults:
    """The faults of one rank."""

    def __init__(self, spec: RunSpec, rank: int) -> None:
        self.slow = [fault for fault in spec.faults if isinstance(fault, SlowRank) and fault.rank == rank]
        self.kills = [fault for fault in spec.faults if isinstance(fault, KilledRank) and fault.rank == rank]
        self.slow_decode_s = sum(fault.seconds for fault in spec.faults if isinstance(fault, SlowDecode))
        self.fired: Counter[str] = Counter()

    def before_step(self, step: int) -> None:
        """Fire what is due before this step."""
        for kill in self.kills:
            if step == kill.at_step:
                print(f"fault: rank {kill.rank} kills itself before step {step}", flush=True)
                os.kill(os.getpid(), signal.SIGKILL)

    def in_step(self, step: int) -> None:
        """Fire what is due inside this step's compute phase."""
        for slow in self.slow:
            if step >= slow.from_step:
                self.fired["slow_rank"] += 1
                time.sleep(slow.seconds)
