"""Proof that many ranks on one machine start, exchange, write a checkpoint, stop, resume and end.

    python -m tests.soak.many_ranks [--ranks 64]

A small network is trained in float64 on one rank, then with the same global batch on many, over gloo. The many are told to
stop once a checkpoint is there, and the same command is run again. The weights of both trainings must agree to 1e-12,
and no process may be left. Prints a line per phase; fails where anything of this does not hold.
"""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import torch
from safetensors.torch import load_file

from scalestudy.launch.attempts import EXIT_STOPPED
from tests.integration.processes import ranks_of, wait_until, with_files_below
from tests.integration.tries import begin, completed, result

STEPS = 10 * (1437 // 64)
"""Ten epochs of digits."""
TRAINING = (
    "model={name: mlp, hidden: 16, layers: 2}", "data.source=digits", "dtype=float64", "batch.global=64",
    "optimiser.learning_rate=0.05", "train={epochs: 10, evaluate_every_epochs: 10}", "measure.whole_program=true", "checkpoint.every_steps=5",
    "keep=weights", "heartbeat_timeout_s=300",
)  # fmt: skip
WITHIN_S = 600.0
CLOSE = 1e-12


def train(out: Path, *settings: str, until: Callable[[], object] | None = None) -> tuple[int, float]:
    """Train; SIGTERM to the command once `until` is true. Returns exit status and seconds."""
    started = time.monotonic()
    process = begin(out, *TRAINING, *settings)
    if until is not None:
        assert wait_until(lambda: until() or process.poll() is not None, WITHIN_S), "the moment to stop it never came"
        process.send_signal(signal.SIGTERM)
    said, _ = process.communicate(timeout=WITHIN_S)
    done = subprocess.CompletedProcess(process.args, process.returncode, said)
    assert completed(done) or done.returncode == EXIT_STOPPED, said
    return done.returncode, time.monotonic() - started


def difference(one: Path, other: Path) -> float:
    """The largest difference between two trainings' weights."""
    left, right = (load_file(out / "weights.safetensors") for out in (one, other))
    assert left.keys() == right.keys()
    return max(float(torch.max(torch.abs(left[name] - right[name]))) for name in left)


def prove(ranks: int, folder: Path) -> None:
    """All phases; AssertionError where one of them fails."""
    alone, many = folder / "alone", folder / "many"
    _, alone_s = train(alone, "ranks=1", "strategy=single")
    print(f"1 rank: {result(alone)['steps_done']} steps in {alone_s:.0f} s", flush=True)
    most = 0

    def saved() -> bool:
        nonlocal most
        if not any((many / "checkpoint").glob("step-*")):
            return False
        most = max(most, len(ranks_of(many)))
        return most >= ranks

    settings = (f"ranks={ranks}", "strategy=allreduce")
    status, first_s = train(many, *settings, until=saved)
    assert status == EXIT_STOPPED, "they ended before they were told to stop"
    kept = max(path.name for path in (many / "checkpoint").glob("step-*"))
    print(f"{ranks} ranks: {most} processes at once; stopped after {first_s:.0f} s at {kept}", flush=True)
    status, second_s = train(many, *settings)
    assert status != EXIT_STOPPED
    found = result(many)
    assert found["steps_done"] == STEPS, found["steps_done"]
    print(f"resumed, and ended after {second_s:.0f} s more: {found['steps_done']} steps", flush=True)
    worst = difference(alone, many)
    assert worst <= CLOSE, f"the weights of {ranks} ranks differ by {worst:.2g} from those of one"
    print(f"largest difference from the weights of 1 rank: {worst:.2g}", flush=True)
    left = wait_until(lambda: not with_files_below(folder), 30)
    assert left, f"processes are left: {with_files_below(folder)}"
    print("no process is left")


def main() -> None:
    """From the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, default=64)
    ranks = parser.parse_args().ranks
    print(f"{ranks} ranks on {os.cpu_count()} cores, gloo, float64")
    with tempfile.TemporaryDirectory(prefix="scalestudy-ranks-") as folder:
        prove(ranks, Path(folder))


if __name__ == "__main__":
    main()
