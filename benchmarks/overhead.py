"""What the training loop costs over the same model in a bare DistributedDataParallel loop.

    python benchmarks/overhead.py [--sets 8] [--alternations 7] [--ranks 2]

Both loops run in the same processes, on the same DDP module, over the same samples in the same order, and take turns.
The bare one is what one would write by hand: index, normalise, forward, backward, step. Processes differ by more than the
turns within them: so this is done in several sets of processes, of which each gives one difference and one ratio, the
medians of its turns. Printed per case: milliseconds per step of each, the mean difference and ratio with a 95 % interval
(Student's t over sets), and the allowance, which holds where the whole interval lies below it: 2 % of a step of 50 ms or
more, 0.5 ms of a shorter one.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from scalestudy.data.prepare.datasets import prepare
from scalestudy.spec.config import Site
from scalestudy.spec.run import RunSpec
from scalestudy.training.job import Job, Resolved

sys.path.insert(0, str(Path(__file__).parent.parent))

from benchmarks.ratios import mean_of, ratio_of

WARMUP_STEPS = 5
"""Steps of each turn before those that count, as in a run: the first ones are checked."""


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
        steps=20,
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
    x_all, y_all = data.train.batch(np.arange(samples), size=None, augment="none", seed=0, epoch=0)
    optimiser = replica.strategy.optimiser
    loss_function = torch.nn.CrossEntropyLoss()

    def bare() -> float:
        steps = WARMUP_STEPS + case.steps
        order = [
            indices
            for epoch in range(-(-steps // data.steps_per_epoch))
            for indices in batches(samples, spec.global_batch, rank, spec.ranks, spec.seed, epoch)
        ]
        dist.barrier()
        begin = 0.0
        for step, indices in enumerate(order[:steps]):
            if step == WARMUP_STEPS:
                begin = time.perf_counter()
            x, y = normalise(x_all[indices], torch.float32, world.device), y_all[indices]
            optimiser.zero_grad()
            loss_function(replica.module(x), y).backward()
            optimiser.step()
        return (time.perf_counter() - begin) / case.steps

    def measured() -> float:
        trainer = Trainer(replica)
        trainer.train()
        begin, end = trainer.recorder.report.window_clock
        return (end - begin) / case.steps

    turns = []
    for turn in range(alternations + 2):
        pair = (bare, measured) if turn % 2 else (measured, bare)
        seconds = {loop.__name__: loop() for loop in pair}
        if turn >= 2:
            turns.append((seconds["bare"], seconds["measured"]))
    if rank == 0:
        results.write_text(json.dumps(turns))
    os._exit(0)


def report(case: Case, sets: list[np.ndarray]) -> bool:
    """Print a case, of which each set has seconds per step [alternations, 2]; whether it keeps to its allowance."""
    bare, own = np.median(np.concatenate(sets), axis=0) * 1e3
    difference = mean_of([float(np.median(turns[:, 1] - turns[:, 0])) * 1e3 for turns in sets])
    ratio = ratio_of([float(np.median(turns[:, 1] / turns[:, 0])) for turns in sets])
    allowance = 0.02 * bare if bare >= 50 else 0.5
    verdict = difference.at_most(allowance)
    print(f"{case.name}: {len(sets)} sets of {len(sets[0])} alternations of {case.steps} steps")
    print(f"  bare DistributedDataParallel {bare:8.3f} ms/step, this loop {own:8.3f} ms/step (medians)")
    print(
        f"  paired difference {difference.value:+.3f} ms [{difference.low:+.3f} .. {difference.high:+.3f}], "
        f"allowed {allowance:.3f} ms: {verdict}"
    )
    print(f"  paired ratio      {ratio.value:.4f} [{ratio.low:.4f} .. {ratio.high:.4f}]", flush=True)
    return verdict == "holds"


def one_set(case: Case, ranks: int, alternations: int) -> np.ndarray:
    """Seconds per step of each turn [alternations, 2], of ranks that are started for it."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["torch", "torch._dynamo", "torch.distributed", "torch.nn.parallel"])
    with tempfile.TemporaryDirectory() as folder:
        spec = RunSpec.model_validate_json(json.dumps({
            **case.spec, "strategy": "allreduce", "ranks": ranks,
            "train": {"epochs": 1000, "evaluate_every_epochs": 0}, "loader": {"workers": 0},
            "measure": {"warmup_steps": WARMUP_STEPS, "steps": case.steps},
        }))  # fmt: skip
        manifest = Path(folder) / "data" / "manifest.json"
        prepare(spec.data, manifest, None, Site())
        resolved = Resolved(1, ranks, 1, "cpu", os.cpu_count() or 1, None)
        job = Job("overhead", spec, resolved, manifest, Path(folder), Path("config/extensions"))
        results = Path(folder) / "turns.json"
        processes = [
            context.Process(target=rank_main, args=(job, rank, case, alternations, results)) for rank in range(ranks)
        ]
        for process in processes:
            process.start()
        for process in processes:
            process.join()
        return np.array(json.loads(results.read_text()))


def main() -> None:
    """All cases, set after set."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sets", type=int, default=8)
    parser.add_argument("--alternations", type=int, default=7)
    parser.add_argument("--ranks", type=int, default=2)
    arguments = parser.parse_args()
    sets: dict[str, list[np.ndarray]] = {case.name: [] for case in CASES}
    for _ in range(arguments.sets):
        for case in CASES:
            sets[case.name].append(one_set(case, arguments.ranks, arguments.alternations))
    kept = [report(case, sets[case.name]) for case in CASES]
    raise SystemExit(0 if all(kept) else 1)


if __name__ == "__main__":
    main()
