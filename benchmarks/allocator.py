"""What glibc's allocator as it is shipped costs a training on a CPU, beside freed memory kept, which is how runs are made.

    python benchmarks/allocator.py [--turns 5]

Each turn trains the small CNN on 28x28 images in two fresh processes, one after the other, with one thread. Printed per
batch: milliseconds of a step by the clock and by CPU time, in the program and in the kernel, and page faults; then the
ratios kept / shipped with their 95 % intervals over turns. CPU time is what other work on the machine changes least.
"""

from __future__ import annotations

import argparse
import multiprocessing
import sys
import time
from pathlib import Path

import torch
from torch.nn.functional import cross_entropy

from scalestudy.measure import allocator
from scalestudy.measure.instrument import of_host
from scalestudy.models.build import build
from scalestudy.models.catalogue import SmallCNN
from scalestudy.training.report import KernelUsage

sys.path.insert(0, str(Path(__file__).parent.parent))

from benchmarks.ratios import Estimate, ratio_of

STEPS = {1024: 5, 64: 50}
"""By batch."""
WARM_UP = 2
Turn = tuple[float, KernelUsage]
"""Seconds and usage of one step."""


def trained(batch: int, keep: bool) -> Turn:
    """One turn, in a process of its own."""
    if keep:
        allocator.keep_freed_memory()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    model = build(SmallCNN(name="small_cnn"), classes=10, channels=1, image_size=28, task="classification")
    optimiser = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    x, y = torch.randn(batch, 1, 28, 28), torch.randint(0, 10, (batch,))
    for step in range(WARM_UP + STEPS[batch]):
        if step == WARM_UP:
            begin, before = time.perf_counter(), KernelUsage.now()
        optimiser.zero_grad()
        cross_entropy(model(x), y).backward()
        optimiser.step()
    used = KernelUsage.now().since(before)
    return (time.perf_counter() - begin) / STEPS[batch], used


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--turns", type=int, default=5)
    turns = parser.parse_args().turns
    host = of_host()
    print(", ".join(f"{key.replace('_', ' ')} {value}" for key, value in host.items()))
    context = multiprocessing.get_context("spawn")
    for batch, steps in STEPS.items():
        found: dict[bool, list[Turn]] = {False: [], True: []}
        for _ in range(turns):
            for keep, made in found.items():
                with context.Pool(1) as pool:
                    made.append(pool.apply(trained, (batch, keep)))
        print(f"small CNN, 1x28x28, batch {batch}, {steps} steps a turn, {turns} turns")
        for keep, name in ((False, "as shipped"), (True, "kept")):
            for seconds, used in found[keep]:
                print(
                    f"  {name:10}  step {1000 * seconds:8.1f} ms   program {1000 * used.user_s / steps:7.1f} ms   "
                    f"kernel {1000 * used.system_s / steps:7.1f} ms   page faults {used.minor_faults / steps:10,.0f}"
                )
        both = list(zip(found[True], found[False], strict=True))
        _print("step time", ratio_of([kept[0] / old[0] for kept, old in both]))
        _print("CPU time", ratio_of([cpu_s(kept[1]) / cpu_s(old[1]) for kept, old in both]))


def cpu_s(used: KernelUsage) -> float:
    """In the program and in the kernel."""
    return used.user_s + used.system_s


def _print(name: str, found: Estimate) -> None:
    print(f"  kept / as shipped, {name:9}  {found.value:.3f} [{found.low:.3f} .. {found.high:.3f}]")


if __name__ == "__main__":
    main()
