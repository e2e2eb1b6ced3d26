"""Injected faults: each is an entry in the spec, and is counted when it fires."""

from __future__ import annotations

import os
import signal
import time
from collections import Counter
from pathlib import Path

from scalestudy.files import sync_directory
from scalestudy.spec.layout import CHECKPOINTS
from scalestudy.spec.run import KilledRank, RunSpec, SlowDecode, SlowRank


class Faults:
    """The faults of one rank."""

    def __init__(self, spec: RunSpec, rank: int, run_folder: Path | None = None) -> None:
        self.slow = [fault for fault in spec.faults if isinstance(fault, SlowRank) and fault.rank == rank]
        self.kills = [fault for fault in spec.faults if isinstance(fault, KilledRank) and fault.rank == rank]
        self.slow_decode_s = sum(fault.seconds for fault in spec.faults if isinstance(fault, SlowDecode))
        self.fired: Counter[str] = Counter()
        self.run_folder = run_folder
        """The folder of the result: a fault that kills a rank is recorded there, so that it fires once over all attempts."""
        before = [kill for kill in self.kills if run_folder is not None and fired_before(run_folder, _name(kill))]
        self.kills = [kill for kill in self.kills if kill not in before]
        self.killed_before = len(before)

    def before_step(self, step: int) -> None:
        """Fire faults that are due before this step."""
        for kill in self.kills:
            if step == kill.at_step:
                print(f"fault: rank {kill.rank} kills itself before step {step}", flush=True)
                if self.run_folder is not None:
                    remember_fired(self.run_folder, _name(kill))
                os.kill(os.getpid(), signal.SIGKILL)

    def in_step(self, step: int) -> None:
        """Fire faults that are due inside this step's compute phase."""
        for slow in self.slow:
            if step >= slow.from_step:
                self.fired["slow_rank"] += 1
                time.sleep(slow.seconds)


def _name(kill: KilledRank) -> str:
    return f"killed_rank-{kill.rank}-{kill.at_step}"


def fired_before(run_folder: Path, name: str) -> bool:
    """Whether the fault of that name has fired in an earlier attempt."""
    return (run_folder / CHECKPOINTS / f"fired-{name}").exists()


def remember_fired(run_folder: Path, name: str) -> None:
    """Record it in a file, which survives the fault."""
    folder = run_folder / CHECKPOINTS
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"fired-{name}").touch()
    sync_directory(folder)
