"""The training loop beside a bare one of plain torch, in one process, on the same module, in turns."""

from __future__ import annotations

import contextlib
import json
import time
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from tests.gpu.suite import Estimate, Suite, paired, synchronise


@dataclass(frozen=True)
class Case:
    """What both loops train."""

    name: str
    batch: int
    settings: dict[str, Any]
    """Keys of a run; `tf32`, `autocast` and the like hold for both loops."""


LAST = {"memory_format": "channels_last"}
PRECISIONS: dict[str, dict[str, Any]] = {
    "float32": {"tf32": False},
    "tf32": {"tf32": True},
    "bfloat16": {"autocast": "bfloat16", "tf32": True},
}
CASES = (
    *(Case(f"{name}_{batch}", batch, {**settings, **LAST}) for batch in (256, 64) for name, settings in
      reversed(PRECISIONS.items())),
    Case("bfloat16_64_contiguous", 64, PRECISIONS["bfloat16"]),
    Case("bfloat16_64_compiled", 64, {**PRECISIONS["bfloat16"], **LAST, "compile": True}),
)  # fmt: skip
"""ResNet-50; what is looked at first comes first, for time may end before all were measured."""
FIRST = 2
"""Steps of a turn of ours that do not count: the loader makes its first batches."""


def compared(suite: Suite, case: Case, steps: int, model: str, side: int) -> tuple[Estimate, float]:
    """Seconds of a step of ours over those of the bare loop, and samples/s of the bare one.

    Ours reads one made batch from memory again and again, copies it to the device and normalises it there; the bare loop's
    batch is on the device and normalised.
    """
    from scalestudy.data.prepare.datasets import prepare
    from scalestudy.spec.config import Site
    from scalestudy.spec.run import RunSpec
    from scalestudy.training.job import Job, Resolved
    from scalestudy.training.replica import DTYPES, Replica
    from scalestudy.training.trainer import Trainer
    from scalestudy.training.training_data import TrainingData
    from scalestudy.training.world import join

    folder = suite.folder(f"loop-{case.name}")
    spec = RunSpec.model_validate_json(json.dumps({
        "model": model, "data": {"source": "synthetic", "samples": 4 * case.batch, "shape": [3, side, side], "classes": 1000},
        "batch": {"per_rank": case.batch}, "loader": {"mode": "synthetic"}, "optimiser": {"learning_rate": 0.01},
        "train": {"epochs": 100_000, "evaluate_every_epochs": 0}, "measure": {"warmup_steps": 0, "steps": steps},
        **case.settings,
    }))  # fmt: skip
    manifest = folder / "data" / "manifest.json"
    prepare(spec.data, manifest, None, Site())
    (folder / "scratch").mkdir()
    resolved = Resolved(1, 1, torch.get_num_threads(), suite.device.type, 1, None, devices=1)
    job = Job("loop", spec, resolved, manifest, folder / "scratch", folder, None)
    world = join(job, 0)
    with contextlib.closing(TrainingData.open(job, 0)) as data:
        replica = Replica(job, world, data)
        x, y = data.train.batch(data.order(0)[0], size=None, augment="none", seed=0, epoch=0, train=True)
        x, y = replica.inputs(x).clone(memory_format=torch.preserve_format), y.to(world.device)
        optimiser, criterion = replica.strategy.optimiser, nn.CrossEntropyLoss()
        autocast = DTYPES[spec.autocast] if spec.autocast else None

        def bare() -> float:
            synchronise(world.device)
            begin = time.perf_counter()
            for _ in range(steps):
                optimiser.zero_grad(set_to_none=True)
                with torch.autocast(world.device.type, autocast) if autocast else contextlib.nullcontext():
                    loss = criterion(replica.module(x), y)
                loss.backward()
                optimiser.step()
            synchronise(world.device)
            bare_s.append((time.perf_counter() - begin) / steps)
            return bare_s[-1]

        def measured() -> float:
            trainer = Trainer(job, world, data, replica)
            trainer.train()
            marks = trainer.recorder.timer.seconds()
            return float(marks[-1, -1] - marks[FIRST, 0]) / (steps - FIRST)

        bare_s: list[float] = []
        found = paired(suite, measured, bare)
        return found, case.batch / min(bare_s)
