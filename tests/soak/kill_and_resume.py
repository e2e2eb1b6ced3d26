"""Proof that a run that is killed, wherever, ends with the weights of one never stopped, bit for bit.

    python -m tests.soak.kill_and_resume [--kills 21] [--seed 0]

On 1, 2 and 4 ranks a network with dropout and BatchNorm is trained twice: once undisturbed, and once with a checkpoint
every few steps and SIGKILL at random moments, every third one as soon as a checkpoint begins to be written. Killed is,
drawn by lot, one rank or the process that started the ranks. The same command is given again until there is a result;
then every tensor's bytes are compared. Prints a line per kill.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import random
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path

import psutil
from safetensors.torch import load_file

from tests.integration.processes import ranks_of

ROOT = Path(__file__).resolve().parents[2]
CASES = (("single", 1), ("allreduce", 2), ("allreduce", 4), ("halving_doubling", 2), ("parameter_server", 2))
TRAINING = (
    "model=mobilenet_v3_small", "data={source: synthetic, samples: 128, shape: [3, 16, 16]}", "batch={global: 16}",
    "train={epochs: 12, evaluate_every_epochs: 2}", "optimiser.learning_rate=0.05", "keep=weights",
)  # fmt: skip
CHECKPOINTS = "checkpoint.every_steps=5"


@dataclass
class Victim:
    """A run that is killed again and again."""

    settings: tuple[str, ...]
    out: Path
    kills: list[str] = field(default_factory=list)
    inside: int = 0
    """Kills that left a half-written checkpoint behind."""

    def start(self) -> subprocess.Popen[str]:
        """Give the command once more."""
        command = [str(Path(sys.executable).parent / "scalestudy"), "try", *self.settings, "--out", str(self.out)]
        return subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)

    def processes(self) -> list[psutil.Process]:
        """The process that starts the ranks, and the ranks, which write their logs beside the result."""
        if ranks := ranks_of(self.out):
            with contextlib.suppress(psutil.NoSuchProcess):  # it ended meanwhile
                return [psutil.Process(ranks[0].ppid()), *ranks]
        return []

    def partial(self) -> bool:
        """Whether a checkpoint is being written, or was when its writer was killed."""
        return any((self.out / "checkpoint").glob(".step-*.partial"))

    def kill_once(self, process: subprocess.Popen[str], within_s: float, in_checkpoint: bool) -> None:
        """SIGKILL at a random moment within so many seconds of training, or in the next checkpoint."""
        while not (targets := self.processes()):
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
        kept = sorted(path.name for path in (self.out / "checkpoint").glob("step-*"))
        where = "inside a checkpoint" if self.partial() else "between checkpoints"
        self.kills.append(f"{who}, {where}, kept {', '.join(kept) or 'nothing'}")
        print(f"  kill {len(self.kills):2}: {self.kills[-1]}", flush=True)


def same_bits(one: Path, other: Path) -> bool:
    """Whether two runs ended with the same weights and buffers."""
    left, right = (load_file(out / "weights.safetensors") for out in (one, other))
    return left.keys() == right.keys() and all(
        left[name].numpy().tobytes() == right[name].numpy().tobytes() for name in left
    )


def prove(settings: tuple[str, ...], kills: int, folder: Path) -> tuple[int, int, bool]:
    """Kill one training so often; returns kills, those inside a checkpoint, and whether every ending was the same."""
    begin = time.monotonic()
    whole = Victim(settings, folder / "whole")
    output, _ = whole.start().communicate()
    assert (folder / "whole" / "result.json").exists(), output
    whole_s, made, inside, same, round_ = time.monotonic() - begin, 0, 0, True, 0
    while made < kills:
        victim = Victim((*settings, CHECKPOINTS), folder / f"killed{round_}")
        round_ += 1
        while not (victim.out / "result.json").exists():
            process = victim.start()
            if made + len(victim.kills) < kills:
                number = made + len(victim.kills)
                victim.kill_once(process, whole_s / 2, in_checkpoint=number % 3 == 2)
            output, _ = process.communicate()
        made, inside = made + len(victim.kills), inside + victim.inside
        result = json.loads((victim.out / "result.json").read_text())
        equal = same_bits(whole.out, victim.out)
        same &= equal
        print(
            f"  finished after {len(victim.kills)} kills and {len(result['links'])} links: "
            f"{'same weights, bit for bit' if equal else 'DIFFERENT WEIGHTS'}; warnings {result['warnings']}",
            flush=True,
        )
    return made, inside, same


def main() -> None:
    """All cases."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=20, help="In all, shared by the cases.")
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    random.seed(arguments.seed)
    each = -(-arguments.kills // len(CASES))
    made, inside, same = 0, 0, True
    with tempfile.TemporaryDirectory() as folder:
        for number, (strategy, ranks) in enumerate(CASES):
            print(f"{strategy}, {ranks} ranks:", flush=True)
            settings = (*TRAINING, f"strategy={strategy}", f"ranks={ranks}")
            found = prove(settings, each, Path(folder) / str(number))
            made, inside, same = made + found[0], inside + found[1], same and found[2]
    print(f"{made} kills, {inside} of them inside a checkpoint: {'all endings the same' if same else 'ENDINGS DIFFER'}")
    raise SystemExit(0 if same and inside else 1)


if __name__ == "__main__":
    main()
