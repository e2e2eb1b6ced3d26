"""Injected faults: each is an entry in the spec, and is counted when it fires."""

from __future__ import annotations

import os
import signal
import time
from collections import Counter
from pathlib import Path

from scalestudy.files import sync_directory
from scalestudy.spec.layout import CHECKPOINTS
from scalestudy.spec.run import KilledRank, RunSpec, SlowRank


class Faults:
    """The faults of one rank's steps."""

    def __init__(self, spec: RunSpec, rank: int, run_folder: Path) -> None:
        self.slow = [fault for fault in spec.faults if isinstance(fault, SlowRank) and fault.rank == rank]
        kills = [fault for fault in spec.faults if isinstance(fault, KilledRank) and fault.rank == rank]
        self.fired: Counter[str] = Counter()
        self.records = run_folder / CHECKPOINTS
        """Beside the checkpoints: a fault that kills a rank is recorded there, so that it fires once over all attempts."""
        self.kills = [kill for kill in kills if not (self.records / _record_of(kill)).exists()]
        self.killed_before = len(kills) - len(self.kills)

    def before_step(self, step: int) -> None:
        """Fire faults that are due before this step."""
        for kill in self.kills:
            if step == kill.at_step:
                print(f"fault: rank {kill.rank} kills itself before step {step}", flush=True)
                self.records.mkdir(parents=True, exist_ok=True)
                (self.records / _record_of(kill)).touch()
                sync_directory(self.records)
                os.kill(os.getpid(), signal.SIGKILL)

    def in_step(self, step: int) -> None:
        """Fire faults that are due inside this step's compute phase."""
        for slow in self.slow:
            if step >= slow.from_step:
                self.fired["slow_rank"] += 1
                time.sleep(slow.seconds)


def _record_of(kill: KilledRank) -> str:
    return f"fired-killed_rank-{kill.rank}-{kill.at_step}"
