"""What recording once a second costs a training: the sampler of every run switched on and off beside a process.

    python benchmarks/recording.py [--turns 7]

A turn is a training process of its own. While it trains, the sampler records in one block of each pair of blocks, by a
drawn order. A turn's ratio is its mean step in blocks with recording over that in the others. Printed are the mean over
turns with its 95 % interval, and the processor time of one sample.
"""

from __future__ import annotations

import argparse
import os
import random
import statistics
import subprocess
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))

from benchmarks.ratios import mean_of, ratio_of

from scalestudy.measure.instrument import of_host
from scalestudy.measure.system import Sampler

LIMIT = 1.02
BLOCK_S, PAIRS = 4.0, 6
SCRIPT = """
import sys, time, torch
from torch import nn

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(1024, 1024), nn.ReLU(), nn.Linear(1024, 1024), nn.ReLU(), nn.Linear(1024, 10))
optimiser = torch.optim.SGD(model.parameters(), lr=0.01)
x, y = torch.randn(64, 1024), torch.randint(10, (64,))
print("ready", flush=True)
end = time.perf_counter() + float(sys.argv[1])
ends = []
while not ends or ends[-1] < end:
    optimiser.zero_grad()
    nn.functional.cross_entropy(model(x), y).backward()
    optimiser.step()
    ends.append(time.perf_counter())
print(*ends, sep="\\n")
"""


def turn(seed: int) -> tuple[float, float, float]:
    """Mean step with recording and without, and the processor time of a sample, in seconds."""
    draw = random.Random(seed)
    seconds = 2 + 2 * PAIRS * (BLOCK_S + 0.1)
    process = subprocess.Popen(
        [sys.executable, "-c", SCRIPT, str(seconds)], stdout=subprocess.PIPE, text=True, process_group=0
    )
    assert process.stdout is not None
    process.stdout.readline()
    time.sleep(1)
    blocks: list[tuple[bool, float, float]] = []
    sampled_s = samples = 0.0
    for _ in range(PAIRS):
        for is_recorded in draw.sample([True, False], 2):
            begin, used_s = time.perf_counter(), time.process_time()
            sampler = Sampler([process.pid], process.pid) if is_recorded else None
            if sampler is not None:
                sampler.start()
            time.sleep(BLOCK_S)
            blocks.append((is_recorded, begin, time.perf_counter()))
            if sampler is not None:
                sampler.stop()
                samples += len(sampler.rows)
                sampled_s += time.process_time() - used_s
    ends = [float(line) for line in process.communicate()[0].split()]
    means = {
        kind: statistics.fmean(
            (last - first) / count
            for is_recorded, begin, end in blocks
            if is_recorded == kind
            for inside in [[moment for moment in ends if begin <= moment <= end]]
            for first, last, count in [(inside[0], inside[-1], len(inside) - 1)]
        )
        for kind in (True, False)
    }
    return means[True], means[False], sampled_s / samples


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--turns", type=int, default=7)
    turns = [turn(seed) for seed in range(parser.parse_args().turns)]
    print(", ".join(f"{key.replace('_', ' ')} {value}" for key, value in of_host().items()))
    found = ratio_of([recorded / plain for recorded, plain, _ in turns])
    sample = mean_of([sample_s for *_, sample_s in turns])
    plain_ms = 1e3 * statistics.fmean(plain for _, plain, _ in turns)
    print(f"a sample takes {1e3 * sample.value:.1f} ms of a core [{1e3 * sample.low:.1f}, {1e3 * sample.high:.1f}]")
    print(
        f"a step of {plain_ms:.2f} ms, {os.cpu_count()} cores: recorded / plain {found.value:.4f} [{found.low:.4f}, "
        f"{found.high:.4f}], {len(turns)} turns: at most {LIMIT} {found.at_most(LIMIT)}"
    )


if __name__ == "__main__":
    main()
