"""Proof that a run that is killed, wherever, ends with the weights of one never stopped, bit for bit.

    python -m tests.soak.kill_and_resume

On 1, 2 and 4 ranks a network with dropout and BatchNorm is trained twice: once undisturbed, and once with a checkpoint
every few steps and SIGKILL: of three kills, one at any random moment, one at a random moment after a checkpoint, and one
as soon as a checkpoint begins to be written. Killed is, drawn by lot, one rank or the process that started the ranks. The
same command is given again until there is a result; then every tensor's bytes are compared. Prints a line per kill; fails
where weights differ, no kill was inside a checkpoint, or a case never had a checkpoint to go on from.
"""

from __future__ import annotations

import contextlib
import random
import signal
import subprocess
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from tests.integration.processes import ranks_of
from tests.integration.tries import begin, result, weights

CASES = (("single", 1), ("allreduce", 2), ("allreduce", 4), ("halving_doubling", 2), ("parameter_server", 2))
TRAINING = (
    "model=mobilenet_v3_small", "data={source: synthetic, samples: 128, shape: [3, 16, 16]}", "batch={global: 16}",
    "train={epochs: 12, evaluate_every_epochs: 2}", "optimiser.learning_rate=0.05", "keep=weights",
)  # fmt: skip
CHECKPOINTS, KILLS = "checkpoint.every_steps=5", 4
"""Kills of each case."""


@dataclass
class Victim:
    """A run that is killed again and again."""

    settings: tuple[str, ...]
    out: Path
    kills: list[str] = field(default_factory=list)
    inside: int = 0
    """Kills that left a half-written checkpoint behind."""
    kept: int = 0
    """Kills that left a whole one to go on from."""

    def processes(self) -> list[psutil.Process]:
        """The process that starts the ranks, and the ranks, which write their logs beside the result."""
        if ranks := ranks_of(self.out):
            with contextlib.suppress(psutil.NoSuchProcess):  # it ended meanwhile
                return [psutil.Process(ranks[0].ppid()), *ranks]
        return []

    def partial(self) -> bool:
        """Whether a checkpoint is being written, or was when its writer was killed."""
        return any((self.out / "checkpoint").glob(".step-*.partial"))

    def checkpoints(self) -> list[str]:
        """Names of those that are whole, oldest first."""
        return sorted(path.name for path in (self.out / "checkpoint").glob("step-*"))

    def kill_once(self, process: subprocess.Popen[str], within_s: float, number: int) -> None:
        """SIGKILL at a random moment within so many seconds, from a new checkpoint on, or in the next checkpoint."""
        after_checkpoint, in_checkpoint = number % 3 == 1, number % 3 == 2
        before = self.checkpoints()
        while not (targets := self.processes()) or (after_checkpoint and self.checkpoints() == before):
            if process.poll() is not None:
                return
            time.sleep(0.02)
        target = random.choice(targets)
        moment = time.monotonic() + random.uniform(0, within_s)
        while process.poll() is None and (not self.partial() if in_checkpoint else time.monotonic() < moment):
            time.sleep(0.0005)
        if process.poll() is not None:
            return
        try:
            target.send_signal(signal.SIGKILL)
        except psutil.NoSuchProcess:
            return
        who = "the starting process" if target == targets[0] else f"rank {targets.index(target) - 1}"
        process.wait(60)
        time.sleep(0.5)
        self.inside += self.partial()
        kept = self.checkpoints()
        self.kept += bool(kept)
        where = "inside a checkpoint" if self.partial() else "between checkpoints"
        self.kills.append(f"{who}, {where}, kept {', '.join(kept) or 'nothing'}")
        print(f"  kill {len(self.kills):2}: {self.kills[-1]}", flush=True)


def prove(settings: tuple[str, ...], kills: int, folder: Path) -> tuple[list[Victim], bool]:
    """Kill one training so often, anew where it ended before; returns its rounds, and whether every ending was the same."""
    started = time.monotonic()
    whole = folder / "whole"
    output, _ = begin(whole, *settings).communicate()
    assert (whole / "result.json").exists(), output
    whole_s, victims, same = time.monotonic() - started, [], True
    while (made := sum(len(victim.kills) for victim in victims)) < kills:
        victim = Victim((*settings, CHECKPOINTS), folder / f"killed{len(victims)}")
        victims.append(victim)
        while not (victim.out / "result.json").exists():
            process = begin(victim.out, *victim.settings)
            if (number := made + len(victim.kills)) < kills:
                victim.kill_once(process, whole_s / 2, number)
            process.communicate()
        found, equal = result(victim.out), weights(whole) == weights(victim.out)
        same &= equal
        print(
            f"  finished after {len(victim.kills)} kills and {len(found['links'])} links: "
            f"{'same weights, bit for bit' if equal else 'DIFFERENT WEIGHTS'}; warnings {found['warnings']}",
            flush=True,
        )
    return victims, same


def main() -> None:
    """All cases."""
    random.seed(0)
    made, inside, kept, right = 0, 0, 0, True
    with tempfile.TemporaryDirectory() as folder:
        for case, (strategy, ranks) in enumerate(CASES):
            print(f"{strategy}, {ranks} ranks:", flush=True)
            victims, same = prove(
                (*TRAINING, f"strategy={strategy}", f"ranks={ranks}"), KILLS, Path(folder) / str(case)
            )
            made += sum(len(victim.kills) for victim in victims)
            inside += sum(victim.inside for victim in victims)
            kept += (went_on := sum(victim.kept for victim in victims))
            right &= same and went_on > 0
    ending = "all endings the same" if right else "ENDINGS DIFFER, or a case went on from no checkpoint"
    print(f"{made} kills, {inside} of them inside a checkpoint, {kept} with a checkpoint to go on from: {ending}")
    raise SystemExit(0 if right and inside else 1)


if __name__ == "__main__":
    main()
