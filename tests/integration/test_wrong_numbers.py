"""Wrong numbers that were brought about on purpose: each makes its run invalid, with its reason. Real ranks and messages.

docs/explanation/wrong_numbers.md lists them all, with the tests that are elsewhere.
"""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass
from functools import partial
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
from scalestudy.results.records import read_reports
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


# Faults: those of data are told the rank that they happen on


def replaced(of: Any, method: str, other: Callable[..., Any]) -> None:
    """`other` is called in the place of a method, which is its first argument."""
    setattr(of, method, partial(other, getattr(of, method)))


def of_data(rank: int, change: Callable[[Plan], Plan]) -> Callable[[int, TrainingData], None]:
    """The plan of one rank is another one."""

    def inject(here: int, data: TrainingData) -> None:
        if here == rank:
            replaced(data, "plan", lambda plan, first, last: iter(change(list(plan(first, last)))))

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


def once_the_cache_is_ready(change: Callable[[list[Path]], Any]) -> Callable[[int, TrainingData], None]:
    """Another program reads, or has dropped, the files of the data before the first step."""

    def inject(here: int, data: TrainingData) -> None:
        def prepare_cache(prepare: Callable[[], float | None]) -> float | None:
            share = prepare()
            if here == 0:
                change(data.files)
            return share

        replaced(data, "prepare_cache", prepare_cache)

    return inject


def after_the_last_update(change: Callable[[torch.Tensor], object]) -> Callable[[Trainer], None]:
    """Rank 1's first parameter changes once all steps are made."""

    def inject(trainer: Trainer) -> None:
        def checked(check: Callable[[Replica], None], replica: Replica) -> None:
            if trainer.world.rank == 1:
                with torch.no_grad():
                    change(next(replica.model.parameters()).detach().view(-1)[:1])
            check(replica)

        replaced(trainer.recorder, "check", checked)

    return inject


def flip_a_bit(value: torch.Tensor) -> None:
    value.view(torch.int32).bitwise_xor_(1)


def make_nan(value: torch.Tensor) -> None:
    value.fill_(float("nan"))


def one_loss_is_nan(trainer: Trainer) -> None:
    def recorded(step: Callable[..., None], loss: torch.Tensor, *more: Any) -> None:
        wrong = trainer.world.rank == 0 and trainer.recorder.report.steps_done == 3
        step(loss * float("nan") if wrong else loss, *more)

    replaced(trainer.recorder, "step", recorded)


def sixteen_threads(trainer: Trainer) -> None:
    def train(train: Callable[[], str]) -> str:
        torch.set_num_threads(16)
        return train()

    replaced(trainer, "train", train)


def alike_on_all_ranks(change: Callable[[torch.Tensor, int], object]) -> Callable[[Trainer], None]:
    """The exchange is followed by a change of each gradient, which is told the step, on every rank."""

    def inject(trainer: Trainer) -> None:
        strategy, steps = trainer.replica.strategy, iter(range(STEPS))

        def exchanged(exchange: Callable[[], None]) -> None:
            exchange()
            step = next(steps)
            for gradient in strategy.gradients():
                change(gradient, step)

        replaced(strategy, "exchange", exchanged)

    return inject


def not_divided(gradient: torch.Tensor, _step: int) -> None:
    gradient.mul_(RANKS)


def zero_in_every_second_step(gradient: torch.Tensor, step: int) -> None:
    gradient.mul_(1 - step % 2)


def zero_in_biases(gradient: torch.Tensor, _step: int) -> None:
    """Half of the tensors."""
    if gradient.dim() == 1:
        gradient.zero_()


def rank_0s_only(trainer: Trainer) -> None:
    strategy = trainer.replica.strategy

    def exchanged(_: Callable[[], None]) -> None:
        for gradient in strategy.gradients():
            dist.broadcast(gradient, 0)

    replaced(strategy, "exchange", exchanged)


@dataclass(frozen=True)
class Fault:
    """A fault, and a part of the reason for which its run is invalid; None: it is valid."""

    reason: str | None
    of_data: Callable[[int, TrainingData], None] = lambda rank, data: None
    of_training: Callable[[Trainer], None] = lambda trainer: None
    strategy: str = "allreduce"
    cache: str | None = None
    """What is claimed of the page cache."""


OTHERS = "saw other samples than were planned for it"
NO_MEAN = "does not exchange the mean gradient"
"""Of gradients that are wrong alike on all ranks; with the same momentum there is no other sign of it."""
FAULTS = {
    "nothing": Fault(None),
    "another order": Fault(None, of_data(1, order_changed)),
    "another rank's data": Fault(f"rank 1 {OTHERS}", another_ranks_data),
    "one sample lost": Fault(f"rank 0 {OTHERS}", of_data(0, one_sample_lost)),
    "a smaller batch": Fault("rank 1 saw 32 samples, 64 were planned", of_data(1, smaller_batches)),
    "one bit at the end": Fault("those of rank 1 are not", of_training=after_the_last_update(flip_a_bit)),
    "one parameter": Fault("a weight is not finite on rank 1", of_training=after_the_last_update(make_nan)),
    "one loss": Fault("the loss or a weight is not finite on rank 0", of_training=one_loss_is_nan),
    "sixteen threads": Fault("rank 0 ended with 16 threads of torch, 1 were planned", of_training=sixteen_threads),
    **{f"nothing, {name}": Fault(None, strategy=name) for name in ("ring", "halving_doubling", "zero1")},
    "half of the gradients": Fault(NO_MEAN, of_training=alike_on_all_ranks(zero_in_biases), strategy="ring"),
    "rank 0's gradients": Fault(NO_MEAN, of_training=rank_0s_only, strategy="ring"),
    "a sum, not a mean": Fault(NO_MEAN, of_training=alike_on_all_ranks(not_divided), strategy="ring"),
    "a sum, not a mean, inside backward": Fault(NO_MEAN, of_training=alike_on_all_ranks(not_divided)),
    "every second step": Fault(NO_MEAN, of_training=alike_on_all_ranks(zero_in_every_second_step), strategy="ring"),
    "cold": Fault(None, cache="cold"),
    "warm": Fault(None, cache="warm"),
    "cold claimed, warm read": Fault(
        "MiB were expected: the data was cached", once_the_cache_is_ready(warm), cache="cold"
    ),
    "warm claimed, cold read": Fault(
        "were read from storage though the page cache was filled before", once_the_cache_is_ready(drop), cache="warm"
    ),
}


def job_of(folder: Path, name: str) -> Job:
    """One short run of two ranks, in a folder of its own."""
    fault = FAULTS[name]
    loader = {"workers": 0, "size": 32, "cache": fault.cache}
    plain = {**SMALL, "strategy": fault.strategy} if fault.cache is None else {**PICTURES, "loader": loader}
    spec = RunSpec.model_validate_json(json.dumps(plain))
    own = folder / re.sub(r"\W", "_", name)
    own.mkdir(exist_ok=True)
    resolved = Resolved(1, RANKS, 1, "cpu", 2, None)
    manifest = folder / spec.data.source / "manifest.json"
    return Job("r", spec, resolved, manifest, own, folder, log=own, run_folder=own)


def train_all(rank: int, folder: Path) -> None:
    """One rank of all the runs, one after the other, each with its fault."""
    for name, fault in FAULTS.items():
        job = job_of(folder, name)
        world = join(job, rank)
        with closing(TrainingData.open(job, rank)) as data:
            fault.of_data(rank, data)
            trainer = Trainer(Replica(job, world, data))
            fault.of_training(trainer)
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


def storage_is_counted(files: list[Path]) -> bool:
    """Whether pages can be dropped here, and the kernel counts what is read then."""
    drop(files)
    before, dropped = read_bytes(), resident_bytes(files) == 0
    return dropped and before is not None and warm(files) <= (read_bytes() or 0) - before


@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_makes_the_run_invalid_and_is_named(trained: Path, name: str) -> None:
    job, fault = job_of(trained, name), FAULTS[name]
    if fault.cache is not None and not storage_is_counted(open_dataset(job.manifest, "train").files):
        pytest.skip("PAGE CACHE NOT TESTED: this file system keeps pages that are dropped, or reads go uncounted")
    assert_judged(job, fault.reason)


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
