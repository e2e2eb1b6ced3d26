"""Wrong numbers that were brought about on purpose: each makes its run invalid, with its reason. Real ranks and messages.

docs/explanation/wrong_numbers.md lists them all, with the tests that are elsewhere.
"""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist

from scalestudy.data.load.dataset import open_dataset
from scalestudy.data.manifest import read_manifest
from scalestudy.data.pagecache import drop, read_bytes, resident_bytes, warm
from scalestudy.data.prepare.datasets import prepare
from scalestudy.results.metrics import metrics
from scalestudy.results.reports import read_reports
from scalestudy.results.validity import RunEvidence, invalid_reason
from scalestudy.spec.config import Site
from scalestudy.spec.run import RunSpec
from scalestudy.training.job import Job, Resolved
from scalestudy.training.replica import Replica
from scalestudy.training.trainer import Trainer
from scalestudy.training.training_data import TrainingData
from scalestudy.training.world import join
from tests.integration.forked import on_processes
from tests.integration.tries import attempt, result

RANKS, PER_RANK, STEPS = 2, 4, 16
"""8 steps in each of 2 epochs."""
SMALL = {
    "model": {"name": "mlp", "hidden": 4, "layers": 1},
    "strategy": "allreduce",
    "ranks": RANKS,
    "data": {"source": "synthetic", "samples": RANKS * PER_RANK * STEPS // 2, "shape": [1, 4, 4]},
    "batch": {"per_rank": PER_RANK},
    "train": {"epochs": 2},
    "measure": {"whole_program": True},  # a window as short as these would be invalid by itself
    "loader": {"workers": 0},
}
PICTURES = {
    **SMALL,
    "data": {"source": "synthetic_jpeg", "samples": 80, "width": 900, "height": 650, "mean_kib": 300},
    "train": {"epochs": 1},
}
"""23 MiB of files: below 16 MiB, reads beside a warm cache are allowed."""
Plan = list[tuple[int, np.ndarray]]


# Faults: each is told the rank that it happens on, and does nothing on the other


def of_data(rank: int, change: Callable[[Plan], Plan]) -> Callable[[int, TrainingData], None]:
    """The plan of one rank is another one."""

    def inject(here: int, data: TrainingData) -> None:
        if here == rank:
            plan = data.plan
            data.plan = lambda first, last: iter(change(list(plan(first, last))))  # type: ignore[method-assign]

    return inject


def another_ranks_data(rank: int, data: TrainingData) -> None:
    if rank == 1:
        data.rank = 0


def one_sample_lost(plan: Plan) -> Plan:
    """In one batch, one sample stands in the place of another."""
    epoch, samples = plan[5]
    wrong = samples.copy()
    wrong[0] = wrong[1]
    return [*plan[:5], (epoch, wrong), *plan[6:]]


def order_changed(plan: Plan) -> Plan:
    """The negative control: what is seen stays the same."""
    return [plan[1], plan[0], *plan[2:]]


def smaller_batches(plan: Plan) -> Plan:
    return [(epoch, samples[: PER_RANK // 2]) for epoch, samples in plan]


def after_the_last_update(change: Callable[[torch.Tensor], None]) -> Callable[[Trainer], None]:
    """Rank 1's first parameter changes once all steps are made."""

    def inject(trainer: Trainer) -> None:
        check = trainer.recorder.check

        def changed(replica: Replica, *more: Any) -> None:
            if trainer.world.rank == 1:
                with torch.no_grad():
                    change(next(replica.model.parameters()).detach().view(-1)[:1])
            check(replica, *more)

        trainer.recorder.check = changed  # type: ignore[method-assign]

    return inject


def flip_a_bit(value: torch.Tensor) -> None:
    value.view(torch.int32).bitwise_xor_(1)


def make_nan(value: torch.Tensor) -> None:
    value.fill_(float("nan"))


def one_loss_is_nan(trainer: Trainer) -> None:
    step = trainer.recorder.step

    def changed(loss: torch.Tensor, *more: Any) -> None:
        wrong = trainer.world.rank == 0 and trainer.recorder.report.steps_done == 3
        step(loss * float("nan") if wrong else loss, *more)

    trainer.recorder.step = changed  # type: ignore[method-assign]


def alike_on_all_ranks(change: Callable[[list[torch.Tensor], int], None]) -> Callable[[Trainer], None]:
    """The exchange is followed by a change of the gradients, which is told the step, on every rank."""

    def inject(trainer: Trainer) -> None:
        strategy = trainer.replica.strategy
        exchange, steps = strategy.exchange, iter(range(STEPS))

        def changed() -> None:
            exchange()
            change(strategy.gradients(), next(steps))

        strategy.exchange = changed  # type: ignore[method-assign]

    return inject


def not_divided(gradients: list[torch.Tensor], _step: int) -> None:
    for gradient in gradients:
        gradient.mul_(RANKS)


def zero_in_every_second_step(gradients: list[torch.Tensor], step: int) -> None:
    for gradient in gradients if step % 2 else ():
        gradient.zero_()


def sixteen_threads(trainer: Trainer) -> None:
    train = trainer.train

    def changed() -> str:
        torch.set_num_threads(16)
        return train()

    trainer.train = changed  # type: ignore[method-assign]


def once_the_cache_is_ready(change: Callable[[list[Path]], Any]) -> Callable[[int, TrainingData], None]:
    """Another program reads, or has dropped, the files of the data before the first step."""

    def inject(here: int, data: TrainingData) -> None:
        prepare_cache = data.prepare_cache

        def changed() -> float | None:
            share = prepare_cache()
            if here == 0:
                change(data.files)
            return share

        data.prepare_cache = changed  # type: ignore[method-assign]

    return inject


DATA: dict[str, Callable[[int, TrainingData], None]] = {
    "another rank's data": another_ranks_data,
    "one sample lost": of_data(0, one_sample_lost),
    "another order": of_data(1, order_changed),
    "a smaller batch": of_data(1, smaller_batches),
    "cold claimed, warm read": once_the_cache_is_ready(warm),
    "warm claimed, cold read": once_the_cache_is_ready(drop),
}
READS: dict[str, tuple[str, str | None]] = {
    "cold": ("cold", None),
    "warm": ("warm", None),
    "cold claimed, warm read": ("cold", "MiB were expected: the data was cached"),
    "warm claimed, cold read": ("warm", "were read from storage though the page cache was filled before"),
}
"""What is claimed of the page cache, and the end of the reason."""
TRAINING: dict[str, Callable[[Trainer], None]] = {
    "nothing": lambda trainer: None,
    "one bit at the end": after_the_last_update(flip_a_bit),
    "one parameter": after_the_last_update(make_nan),
    "one loss": one_loss_is_nan,
    "sixteen threads": sixteen_threads,
}
EXCHANGES: dict[str, tuple[str, Callable[[Trainer], None]]] = {
    **{f"nothing, {name}": (name, TRAINING["nothing"]) for name in ("ring", "halving_doubling", "zero1")},
    "a sum, not a mean": ("ring", alike_on_all_ranks(not_divided)),
    "a sum, not a mean, inside backward": ("allreduce", alike_on_all_ranks(not_divided)),
    "every second step": ("ring", alike_on_all_ranks(zero_in_every_second_step)),
}
"""Strategy and fault, wrong alike on all ranks; with the same momentum there is no other sign of it."""
REASONS: dict[str, str | None] = {
    "nothing": None,
    "another order": None,
    "another rank's data": "rank 1 saw other samples than were planned for it",
    "one sample lost": "rank 0 saw other samples than were planned for it",
    "a smaller batch": "rank 1 saw 32 samples, 64 were planned",
    "one bit at the end": "those of rank 1 are not those of rank 0",
    "one parameter": "the loss or a weight is not finite on rank 1: lower optimiser.learning_rate",
    "one loss": "the loss or a weight is not finite on rank 0: lower optimiser.learning_rate",
    "sixteen threads": "rank 0 ended with 16 threads of torch, 1 were planned",
}
"""A part of the reason."""


def job_of(folder: Path, name: str) -> Job:
    """One short run of two ranks, in a folder of its own."""
    plain = {**PICTURES, "loader": {"workers": 0, "size": 32, "cache": READS[name][0]}} if name in READS else SMALL
    if name in EXCHANGES:
        plain = {**plain, "strategy": EXCHANGES[name][0]}
    spec = RunSpec.model_validate_json(json.dumps(plain))
    own = folder / re.sub(r"\W", "_", name)
    own.mkdir(exist_ok=True)
    resolved = Resolved(1, RANKS, 1, "cpu", 2, None)
    manifest = folder / spec.data.source / "manifest.json"
    return Job("r", spec, resolved, manifest, own, folder, log=own, run_folder=own)


def train_all(rank: int, folder: Path) -> None:
    """One rank of all the runs, one after the other, each with its fault."""
    for name in [*REASONS, *EXCHANGES, *READS]:
        job = job_of(folder, name)
        world = join(job, rank)
        with closing(TrainingData.open(job, rank)) as data:
            if name in DATA:
                DATA[name](rank, data)
            trainer = Trainer(Replica(job, world, data))
            EXCHANGES.get(name, ("", TRAINING.get(name, TRAINING["nothing"])))[1](trainer)
            trainer.run()
        dist.barrier()
        dist.destroy_process_group()


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The folder in which both ranks have made all runs."""
    folder = tmp_path_factory.mktemp("wrong")
    for name in ("nothing", "cold"):
        job = job_of(folder, name)
        prepare(job.spec.data, job.manifest, None, Site())
    on_processes(RANKS, folder, train_all, folder)
    yield folder


def assert_judged(job: Job, reason: str | None) -> None:
    """What the ranks of a run left makes it invalid for this reason; None: it is valid."""
    manifest, measured = read_manifest(job.manifest), read_reports(job)
    found = invalid_reason(RunEvidence(job, measured, metrics(job, measured, manifest, 1.0, None), manifest))
    assert found is None if reason is None else reason in str(found), found


@pytest.mark.parametrize("name", REASONS)
def test_a_fault_on_one_of_two_ranks_makes_the_run_invalid_and_is_named(trained: Path, name: str) -> None:
    assert_judged(job_of(trained, name), REASONS[name])


@pytest.mark.parametrize("name", EXCHANGES)
def test_an_exchange_that_is_wrong_alike_on_all_ranks_is_not_that_of_the_mean_gradient(
    trained: Path, name: str
) -> None:
    reason = None if name.startswith("nothing") else "does not exchange the mean gradient"
    assert_judged(job_of(trained, name), reason)


def storage_is_counted(files: list[Path]) -> bool:
    """Whether pages can be dropped here, and the kernel counts what is read then."""
    drop(files)
    before, dropped = read_bytes(), resident_bytes(files) == 0
    return dropped and before is not None and warm(files) <= (read_bytes() or 0) - before


@pytest.mark.parametrize("name", READS)
def test_what_is_claimed_of_the_page_cache_is_held_against_what_was_read(trained: Path, name: str) -> None:
    if not storage_is_counted(open_dataset(job_of(trained, name).manifest, "train").files):
        pytest.skip("PAGE CACHE NOT TESTED: this file system keeps pages that are dropped, or reads go uncounted")
    assert_judged(job_of(trained, name), READS[name][1])


def test_ranks_that_fell_back_to_the_cpu_are_named(trained: Path) -> None:
    job = job_of(trained, "nothing")
    asked_for_gpus = dataclasses.replace(job, resolved=dataclasses.replace(job.resolved, device="cuda"))
    assert_judged(
        asked_for_gpus, "rank 0 computed on cpu, but the run is on cuda: see where the model puts its parameters"
    )


# Code of the user's own, as `scalestudy try` makes a run of it

EXTENSION = """
import numpy as np


class Stripes:
    "Two classes that differ in their rows; with `shuffled`, labels that say nothing of them."

    classes = 2

    def __init__(self, train, shuffled=False):
        self.samples, self.first, self.shuffled = (512, 0, shuffled) if train else (256, 512, shuffled)

    def __len__(self):
        return self.samples

    def __getitem__(self, index):
        draws = np.random.default_rng(self.first + index)
        image = draws.random((1, 8, 8), dtype=np.float32)
        label = (self.first + index) % 2
        image[0, label::2] += 0.5
        return image, int(draws.integers(2)) if self.shuffled else label

"""
CHANGES_ITSELF = """
import pathlib
import torch


class Net(torch.nn.Linear):
    "Its file changes while the run is made, as by somebody who edits it meanwhile."

    def __init__(self, classes, channels):
        super().__init__(64 * channels, classes)
        file = pathlib.Path(__file__)
        file.write_text(file.read_text() + "# edited\\n")

    def forward(self, x):
        return super().forward(x.flatten(1))
"""


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A folder with code of the user's own."""
    extensions = tmp_path / "config" / "extensions"
    extensions.mkdir(parents=True)
    (extensions / "my_code.py").write_text(EXTENSION)
    (extensions / "edited.py").write_text(CHANGES_ITSELF)
    return tmp_path


def tried(project: Path, *settings: str) -> dict[str, Any]:
    """The result of a run with code of the user's own."""
    out = project / f"out{len(list(project.glob('out*')))}"
    done = attempt(out, *settings, cwd=project)
    assert (out / "result.json").exists(), done.stdout
    return result(out)


SHORT = ("measure.whole_program=true", "train.epochs=6", "optimiser.learning_rate=0.05")


def test_with_shuffled_labels_the_accuracy_falls_to_chance(project: Path) -> None:
    accuracy, learnt = {}, {}
    for shuffled in ("false", "true"):
        data = f"data={{import: 'my_code:Stripes', kwargs: {{shuffled: {shuffled}}}}}"
        found = tried(project, data, "model={name: mlp, hidden: 16, layers: 1}", *SHORT)
        assert found["status"] == "valid"
        accuracy[shuffled], learnt[shuffled] = (found["metrics"][name] for name in ("accuracy", "training_accuracy"))
    assert accuracy["false"] > 0.9 and learnt["false"] > 0.9
    assert learnt["true"] > accuracy["true"] + 0.05, "labels that nothing foretells are learnt by heart"
    assert 0.35 < accuracy["true"] < 0.65  # 256 held-out samples: 5 standard deviations


def test_code_that_was_edited_after_the_run_was_named_makes_it_invalid(project: Path) -> None:
    found = tried(project, "model.import=edited:Net", *SHORT)
    assert found["status"] == "invalid"
    assert found["reason"].startswith("rank 0 trained with a different edited.py than the one in the run's id")
