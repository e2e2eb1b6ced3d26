"""A user's training script that stops before its deadline, or on SIGTERM, and goes on from its state; any number of ranks.

`resuming.py STEPS` sleeps in each step; starts.txt gets the step at which each start of rank 0 begins.
"""

import os
import signal
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist

from scalestudy import report

STEP_S, MARGIN_S = 0.05, 3.0

asked = []
signal.signal(signal.SIGTERM, lambda number, frame: asked.append(number))
state, deadline = Path(os.environ["SCALESTUDY_STATE"]), float(os.environ.get("SCALESTUDY_DEADLINE", "inf"))
torch.set_num_threads(1)
dist.init_process_group("gloo")
model = torch.nn.Linear(16, 4)
first = 0
if state.exists():
    saved = torch.load(state)
    model.load_state_dict(saved["model"])
    first = saved["step"]
if dist.get_rank() == 0:
    with open("starts.txt", "a") as starts:
        starts.write(f"{first}\n")
model = torch.nn.parallel.DistributedDataParallel(model)
optimiser = torch.optim.SGD(model.parameters(), lr=0.01)
for step in range(first, int(sys.argv[1])):
    time.sleep(STEP_S)
    loss = model(torch.randn(8, 16)).square().mean()
    optimiser.zero_grad()
    loss.backward()
    optimiser.step()
    report(step=step + 1, samples=8, loss=loss)
    stops = torch.tensor(bool(asked) or time.time() > deadline - MARGIN_S, dtype=torch.int)
    dist.all_reduce(stops)
    if stops:
        if dist.get_rank() == 0:
            torch.save({"model": model.module.state_dict(), "step": step + 1}, state.with_suffix(".part"))
            state.with_suffix(".part").replace(state)
        dist.barrier()
        sys.exit(75)
