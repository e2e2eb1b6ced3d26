"""What the hooks of `scalestudy explain` cost a step from which nothing is taken away.

    python benchmarks/explain_cost.py [--turns 9]

Two processes of one script differ by more than hooks of microseconds: each has its own layout of memory. So the hooks are
switched on and off within a process, block by block, each block with a new iterator over the DataLoader. A turn is a
process of its own; its ratio is the sum of its hooked blocks over that of the others. Printed per script: its step
without hooks, and the ratio hooked / plain with its 95 % interval over turns.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path

from scalestudy.measure.instrument import of_host
from scalestudy.program.observe import INJECTED

sys.path.insert(0, str(Path(__file__).parent.parent))

from benchmarks.ratios import ratio_of

LIMIT = 1.02
BLOCK_S, BLOCKS = 0.25, 24
"""Length of a block, and blocks of a turn: as many with hooks as without."""
SCRIPT = f"""
import json, sys, time, torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
import torch.optim.optimizer as optimizers
from scalestudy_hooks.steps import Steps

width, workers, folder = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
torch.set_num_threads(1)
torch.manual_seed(0)
plain = DataLoader.__iter__
steps = Steps({{"out": folder, "warmup": 1, "steps": None, "leave": False, "remove": []}}, torch)
hooked, after_step = DataLoader.__iter__, dict(optimizers._global_optimizer_post_hooks)
data = TensorDataset(torch.randn(1 << 18, 64), torch.randint(10, (1 << 18,)))
model = nn.Sequential(nn.Linear(64, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, 10))
optimiser = torch.optim.SGD(model.parameters(), lr=0.01)


def block(is_hooked, count):
    DataLoader.__iter__ = hooked if is_hooked else plain
    optimizers._global_optimizer_post_hooks.clear()
    optimizers._global_optimizer_post_hooks.update(after_step if is_hooked else {{}})
    for step, (x, y) in enumerate(DataLoader(data, 32, num_workers=workers)):
        if step == 4:
            begin = time.perf_counter()
        optimiser.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        optimiser.step()
        if step == count + 3:
            return (time.perf_counter() - begin) / count


block(True, 20)
count = max(8, round({BLOCK_S} / block(False, 20)))
order = [False, True, True, False] * ({BLOCKS} // 4)
times = [block(is_hooked, count) for is_hooked in order]
assert steps.done == (count + 4) * {BLOCKS} // 2 + 24, "the hooks did not see the steps"
print(json.dumps([sum(t for t, on in zip(times, order) if on == kind) / ({BLOCKS} // 2) for kind in (True, False)]))
"""
SCRIPTS = {"a small step": (256, 0), "a larger step": (2048, 0), "a worker process": (1024, 1)}
"""Width of the network's layers, and workers of its DataLoader."""


def step_s(arguments: tuple[int, ...]) -> tuple[float, float]:
    """Seconds of a step with hooks and without, in one process."""
    with tempfile.TemporaryDirectory() as folder:
        path = f"import sys; sys.path.insert(0, {str(INJECTED)!r})\n"
        command = [sys.executable, "-c", path + SCRIPT, *map(str, arguments), folder]
        done = subprocess.run(command, check=True, capture_output=True, text=True)
    hooked, plain = json.loads(done.stdout)
    return hooked, plain


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--turns", type=int, default=9)
    turns = parser.parse_args().turns
    print(", ".join(f"{key.replace('_', ' ')} {value}" for key, value in of_host().items()))
    for name, arguments in SCRIPTS.items():
        pairs = [step_s(arguments) for _ in range(turns)]
        found = ratio_of([hooked / plain for hooked, plain in pairs])
        plain_ms = 1e3 * sum(plain for _, plain in pairs) / turns
        print(
            f"{name}: {plain_ms:.3f} ms without hooks; hooked / plain {found.value:.4f} [{found.low:.4f}, "
            f"{found.high:.4f}], {turns} turns: at most {LIMIT} {found.at_most(LIMIT)}",
            flush=True,
        )


if __name__ == "__main__":
    main()
