"""What the training loop costs over the same model in a bare DistributedDataParallel loop.

    python benchmarks/overhead.py [--alternations 31] [--ranks 2]

Both loops run in the same processes, on the same DDP module, over the same samples in the same order, and take turns.
The bare one is what one would write by hand: index, normalise, forward, backward, step. Printed per case: milliseconds
per step of each, the median of the paired differences and ratios with a 95 % bootstrap interval, and the allowance: 2 %
of a step of 50 ms or more, 0.5 ms of a shorter one.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from scipy.stats import bootstrap

from scalestudy.data.prepare.datasets import prepare
from scalestudy.spec.config import Site
from scalestudy.spec.run import RunSpec
from scalestudy.training.job import Job, Resolved


@dataclass(frozen=True)
class Case:
    """A model and its data, and how many steps a turn has."""

    name: str
    spec: dict[str, object]
    steps: int


CASES = (
    Case(
        "resnet18, 3x32x32, batch 64",
        {
            "model": "resnet18",
            "data": {"source": "synthetic", "samples": 4096, "shape": [3, 32, 32]},
            "batch": {"per_rank": 32},
        },
        steps=10,
    ),
    Case(
        "small_cnn, digits, batch 32",
        {"model": "small_cnn", "data": {"source": "digits"}, "batch": {"per_rank": 16}},
        steps=200,
    ),
)


def rank_main(job: Job, rank: int, case: Case, alternations: int, results: Path) -> None:
    """One rank: warm up, then take turns; rank 0 writes seconds per step of each turn [alternations, 2]."""
    import torch
    import torch.distributed as dist

    from scalestudy.data.load.normalise import normalise
    from scalestudy.data.load.sampler import batches
    from scalestudy.training.replica import Replica
    from scalestudy.training.trainer import Trainer
    from scalestudy.training.training_data import TrainingData
    from scalestudy.training.world import join

    spec, world = job.spec, join(job, rank)
    data = TrainingData.open(job, rank)
    replica = Replica(job, world, data)
    samples = data.train.samples
    x_all, y_all = data.train.batch(np.arange(samples), size=None, augment="none", seed=0, epoch=0, train=True)
    optimiser = replica.strategy.optimiser
    loss_function = torch.nn.CrossEntropyLoss()

    def bare() -> float:
        order = [
            indices
            for epoch in range(-(-case.steps // data.steps_per_epoch))
            for indices in batches(samples, spec.global_batch, rank, spec.ranks, spec.seed, epoch)
        ]
        dist.barrier()
        begin = time.perf_counter()
        for indices in order[: case.steps]:
            x, y = normalise(x_all[indices], torch.float32, world.device), y_all[indices]
            optimiser.zero_grad()
            loss_function(replica.module(x), y).backward()
            optimiser.step()
        return (time.perf_counter() - begin) / case.steps

    def measured() -> float:
        trainer = Trainer(job, world, data, replica)
        trainer.train()
        return trainer.recorder.report.loop_s / case.steps

    turns = []
    for turn in range(alternations + 2):
        pair = (bare, measured) if turn % 2 else (measured, bare)
        seconds = {loop.__name__: loop() for loop in pair}
        if turn >= 2:
            turns.append((seconds["bare"], seconds["measured"]))
    if rank == 0:
        results.write_text(json.dumps(turns))
    os._exit(0)


def report(case: Case, turns: np.ndarray) -> bool:
    """Print a case; whether it keeps to its allowance."""
    bare, own = np.median(turns, axis=0) * 1e3
    difference, ratio = (turns[:, 1] - turns[:, 0]) * 1e3, turns[:, 1] / turns[:, 0]
    ranges = [
        bootstrap((values,), np.median, rng=np.random.default_rng(0)).confidence_interval
        for values in (difference, ratio)
    ]
    allowance = 0.02 * bare if bare >= 50 else 0.5
    print(f"{case.name}: {len(turns)} alternations of {case.steps} steps")
    print(f"  bare DistributedDataParallel {bare:8.3f} ms/step, this loop {own:8.3f} ms/step (medians)")
    print(
        f"  paired difference {np.median(difference):+.3f} ms [{ranges[0].low:+.3f} .. {ranges[0].high:+.3f}], allowed {allowance:.3f} ms"
    )
    print(f"  paired ratio      {np.median(ratio):.4f} [{ranges[1].low:.4f} .. {ranges[1].high:.4f}]", flush=True)
    return bool(np.median(difference) <= allowance)


def main() -> None:
    """All cases."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--alternations", type=int, default=31)
    parser.add_argument("--ranks", type=int, default=2)
    arguments = parser.parse_args()
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["torch", "torch._dynamo", "torch.distributed", "torch.nn.parallel"])
    kept = []
    for case in CASES:
        with tempfile.TemporaryDirectory() as folder:
            spec = RunSpec.model_validate_json(json.dumps({
                **case.spec, "strategy": "allreduce", "ranks": arguments.ranks,
                "train": {"epochs": 1000, "evaluate_every_epochs": 0}, "loader": {"workers": 0},
                "measure": {"warmup_steps": 0, "steps": case.steps},
            }))  # fmt: skip
            manifest = Path(folder) / "data" / "manifest.json"
            prepare(spec.data, manifest, None, Site())
            resolved = Resolved(1, arguments.ranks, 1, "cpu", os.cpu_count() or 1, None)
            job = Job("overhead", spec, resolved, manifest, Path(folder), Path("config/extensions"), None)
            results = Path(folder) / "turns.json"
            ranks = [
                context.Process(target=rank_main, args=(job, rank, case, arguments.alternations, results))
                for rank in range(arguments.ranks)
            ]
            for process in ranks:
                process.start()
            for process in ranks:
                process.join()
            kept.append(report(case, np.array(json.loads(results.read_text()))))
    raise SystemExit(0 if all(kept) else 1)


if __name__ == "__main__":
    main()
