"""The training loop beside a bare one of plain torch, in one process, on the same module, in turns."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import time
from collections.abc import Iterator
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


@contextlib.contextmanager
def rank_of(
    suite: Suite, name: str, batch: int, settings: dict[str, Any], steps: int, network: tuple[str, int]
) -> Iterator[Any]:
    """A rank of a run that reads one made batch from memory again and again, in this process: job, world, data, replica.

    `network` is a model and the height and width of its pictures.
    """
    from scalestudy.data.prepare.datasets import prepare
    from scalestudy.spec.config import Site
    from scalestudy.spec.run import RunSpec
    from scalestudy.training.job import Job, Resolved
    from scalestudy.training.replica import Replica
    from scalestudy.training.training_data import TrainingData
    from scalestudy.training.world import join

    folder, (model, side) = suite.folder(f"loop-{name}"), network
    plain: dict[str, Any] = {
        "model": model, "data": {"source": "synthetic", "samples": 4 * batch, "shape": [3, side, side], "classes": 1000},
        "batch": {"per_rank": batch}, "loader": {"mode": "synthetic"}, "optimiser": {"learning_rate": 0.01},
        "train": {"epochs": 100_000, "evaluate_every_epochs": 0}, "measure": {"warmup_steps": 0, "steps": steps},
    }  # fmt: skip
    spec = RunSpec.model_validate_json(json.dumps({**plain, **settings}))
    manifest = folder / "data" / "manifest.json"
    prepare(spec.data, manifest, None, Site())
    (folder / "scratch").mkdir()
    resolved = Resolved(1, 1, torch.get_num_threads(), suite.device.type, 1, None, devices=1)
    job = Job("loop", spec, resolved, manifest, folder / "scratch", folder, None)
    world = join(job, 0)
    with contextlib.closing(TrainingData.open(job, 0)) as data:
        yield job, world, data, Replica(job, world, data)


def own_step_s(job: Any, world: Any, data: Any, replica: Any) -> float:
    """Seconds of a step of our loop, of so many as the run has, without the first ones."""
    from scalestudy.training.trainer import Trainer

    trainer = Trainer(job, world, data, replica)
    trainer.train()
    marks = trainer.recorder.timer.seconds()
    return float(marks[-1, -1] - marks[FIRST, 0]) / (len(marks) - FIRST)


def compared(suite: Suite, case: Case, steps: int, model: str, side: int) -> tuple[Estimate, float]:
    """Seconds of a step of ours over those of the bare loop, and samples/s of the bare one.

    Ours copies each batch to the device and normalises it there; the bare loop's is on the device and normalised.
    """
    from scalestudy.training.replica import DTYPES

    with rank_of(suite, case.name, case.batch, case.settings, steps, (model, side)) as (job, world, data, replica):
        x, y = data.train.batch(data.order(0)[0], size=None, augment="none", seed=0, epoch=0, train=True)
        x, y = replica.inputs(x).clone(memory_format=torch.preserve_format), y.to(world.device)
        optimiser, criterion = replica.strategy.optimiser, nn.CrossEntropyLoss()
        autocast = DTYPES[job.spec.autocast] if job.spec.autocast else None

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

        bare_s: list[float] = []
        found = paired(suite, lambda: own_step_s(job, world, data, replica), bare)
        return found, case.batch / min(bare_s)


def pageable_over_pinned(suite: Suite, batch: int, steps: int, model: str, side: int) -> Estimate:
    """Seconds of a step with batches in pageable memory, copied when they are needed, over those with pinned ones."""
    from scalestudy.training.training_data import TrainingData

    settings = {**PRECISIONS["bfloat16"], **LAST} if not suite.dry else {}
    with rank_of(suite, "pinned", batch, settings, steps, (model, side)) as (job, world, data, replica):
        loader = job.spec.loader.model_copy(update={"pin_memory": False})
        other = dataclasses.replace(job, spec=job.spec.model_copy(update={"loader": loader}))
        with contextlib.closing(TrainingData.open(other, 0)) as pageable:
            return paired(
                suite,
                lambda: own_step_s(other, world, pageable, replica),
                lambda: own_step_s(job, world, data, replica),
            )
