"""A training with one cause of slowness of a stated size: `slow_training.py [--cause NAME --seconds S] [--took FOLDER]`.

`seconds` is what the cause shall take of each step on average. In `took`, each process writes what its cause took and what it
was asked to take, in seconds: a short sleep lasts longer than asked. One process, or several under torchrun (gloo).
"""

import argparse
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader, Dataset, default_collate

parser = argparse.ArgumentParser()
parser.add_argument("--cause", default="")
parser.add_argument("--seconds", type=float, default=0.0)
parser.add_argument("--took", type=Path)
cause = parser.parse_args()
BATCH, EVERY, WIDTH = 256, 5, 512
BYTES_PER_S, MESSAGES_PER_S = 4e8, 2000
"""Of an all-reduce on loopback, roughly: a large table and many messages take about so long."""


spent = {"took": 0.0, "asked": 0.0, "noted": 0.0}
"""Seconds of this process's cause until now, and when they were last written."""


@contextmanager
def timed(seconds: float) -> Iterator[None]:
    """Add up what a cause takes, and what it was asked to take; write both sums once a second."""
    begun = time.perf_counter()
    yield
    now = time.perf_counter()
    spent["took"] += now - begun
    spent["asked"] += seconds
    if cause.took and now > spent["noted"] + 1:
        spent["noted"] = now
        (cause.took / str(os.getpid())).write_text(f"{spent['took']} {spent['asked']}\n")


def slow_down(name: str, seconds: float = cause.seconds) -> None:
    """Wait where the cause has this name."""
    if cause.cause == name:
        with timed(seconds):
            time.sleep(seconds)


def compute(seconds: float) -> None:
    """Keep a core busy."""
    end = time.thread_time() + seconds
    while time.thread_time() < end:
        pass


class Items(Dataset):
    """Random vectors of ten classes."""

    def __len__(self) -> int:
        return 1 << 16

    def __getitem__(self, number: int) -> tuple[torch.Tensor, int]:
        if number % BATCH == 0:  # one of each batch: a sleep is some 80 us longer than asked
            slow_down("slow item")
        if cause.cause == "busy item":
            with timed(cause.seconds / BATCH):
                compute(cause.seconds / BATCH)
        return torch.full((64,), number % 7.0), number % 10


def collate(items: list) -> list:
    """Make a batch."""
    slow_down("slow collate")
    slow_down("late worker")
    return default_collate(items)


class Net(nn.Module):
    """A perceptron; with a table of parameters that costs nothing but the exchange of its gradient."""

    def __init__(self) -> None:
        super().__init__()
        width = 2 * WIDTH if cause.cause == "larger model" else WIDTH
        self.layers = nn.Sequential(
            nn.Linear(64, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, 10)
        )
        self.table = nn.Parameter(torch.zeros(int(cause.seconds * BYTES_PER_S / 4) if "table" in cause.cause else 1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Scores of classes, [samples, 10]."""
        return self.layers(x) + self.table[0]


torch.set_num_threads(1)
torch.manual_seed(0)
ranks = int(os.environ.get("WORLD_SIZE", "1"))
model: nn.Module = Net()
trained = [parameter for name, parameter in model.named_parameters() if name != "table"]
if ranks > 1:
    dist.init_process_group("gloo")
    model = nn.parallel.DistributedDataParallel(model)
optimiser = torch.optim.SGD(trained, lr=0.01)
workers = 1 if cause.cause == "late worker" else 0
step = 0
for _epoch in range(1000):
    for x, y in DataLoader(Items(), BATCH, num_workers=workers, collate_fn=collate):
        loss = nn.functional.cross_entropy(model(x), y)
        slow_down("slow line")
        if ranks > 1 and dist.get_rank() == 1:
            slow_down("slow rank")
        optimiser.zero_grad()
        loss.backward()
        if cause.cause == "many messages":
            for _ in range(int(cause.seconds * MESSAGES_PER_S)):
                dist.all_reduce(torch.ones(1))
        optimiser.step()
        step += 1
        slow_down("slow logging")
        if step % EVERY == 0:
            slow_down("slow checkpoint", EVERY * cause.seconds)
            if cause.cause == "slow evaluation":
                with timed(EVERY * cause.seconds), torch.no_grad():
                    for held_out, _ in DataLoader(Items(), BATCH, sampler=range(BATCH)):
                        model(held_out)
                        time.sleep(EVERY * cause.seconds)
