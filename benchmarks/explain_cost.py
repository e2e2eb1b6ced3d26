"""What the hooks of `scalestudy explain` cost a script from which nothing is taken away, beside the script alone.

    python benchmarks/explain_cost.py [--turns 9]

The script times its own steps. A turn starts it twice, alone and under the hooks, in an order that changes; the first turn
does not count. Printed per script: its step alone, and the ratio hooked / alone with its 95 % interval over turns.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from scalestudy.measure.instrument import of_host
from scalestudy.program.observe import hooked

sys.path.insert(0, str(Path(__file__).parent.parent))

from benchmarks.ratios import ratio_of

LIMIT = 1.02
STEPS = 600
SCRIPT = f"""
import sys, time, torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
width, workers = map(int, sys.argv[1:])
torch.set_num_threads(1)
torch.manual_seed(0)
data = TensorDataset(torch.randn(32 * {STEPS + 50}, 64), torch.randint(10, (32 * {STEPS + 50},)))
model = nn.Sequential(nn.Linear(64, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, 10))
optimiser = torch.optim.SGD(model.parameters(), lr=0.01)
for step, (x, y) in enumerate(DataLoader(data, 32, num_workers=workers)):
    if step == 50:
        begin = time.perf_counter()
    optimiser.zero_grad()
    nn.functional.cross_entropy(model(x), y).backward()
    optimiser.step()
print((time.perf_counter() - begin) / {STEPS})
"""
SCRIPTS = {"a small step": (256, 0), "a larger step": (2048, 0), "a worker process": (1024, 1)}
"""Width of the network's layers, and workers of its DataLoader."""


def step_s(arguments: tuple[int, ...], is_hooked: bool) -> float:
    """Seconds of a step, by the script's own clock."""
    environment = dict(os.environ)
    with tempfile.TemporaryDirectory() as folder:
        if is_hooked:
            plain = {
                "name": "whole",
                "remove": (),
                "workers": 1,
                "pin": False,
                "warmup": 50,
                "steps": None,
                "leave": False,
            }
            environment = hooked({"out": folder, **plain})
        command = [sys.executable, "-c", SCRIPT, *map(str, arguments)]
        done = subprocess.run(command, env=environment, check=True, capture_output=True, text=True)
        if is_hooked:
            record = json.loads((Path(folder) / "rank.0.json").read_text(encoding="utf-8"))
            assert record["steps"] == STEPS, "the hooks did not see the steps"
    return float(done.stdout)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--turns", type=int, default=9)
    turns = parser.parse_args().turns
    print(", ".join(f"{key.replace('_', ' ')} {value}" for key, value in of_host().items()))
    for name, arguments in SCRIPTS.items():
        pairs = []
        for turn in range(turns + 1):
            order = (False, True) if turn % 2 else (True, False)
            times = {is_hooked: step_s(arguments, is_hooked) for is_hooked in order}
            pairs.append((times[True], times[False]))
        found = ratio_of([one / other for one, other in pairs[1:]])
        alone_ms = 1e3 * sum(other for _, other in pairs[1:]) / turns
        print(
            f"{name}: {alone_ms:.3f} ms alone; hooked / alone {found.value:.4f} [{found.low:.4f}, {found.high:.4f}], "
            f"{turns} turns: at most {LIMIT} {found.at_most(LIMIT)}",
            flush=True,
        )


if __name__ == "__main__":
    main()
