"""The pipeline against training in one process, with real processes and real messages (gloo on loopback)."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional

from scalestudy.errors import Skipped
from scalestudy.measure.memory import MemoryLimit
from scalestudy.strategies.base import World
from scalestudy.strategies.build import build
from scalestudy.strategies.catalogue import Pipeline, Single
from scalestudy.training.world import NO_MEMORY_OF_CPU
from tests.integration.forked import on_processes
from tests.integration.trainings import (
    STEPS,
    STOP_AT,
    Case,
    begun,
    difference,
    make_batch,
    make_model,
    make_optimiser,
    make_step,
    reference,
    train_in_worlds,
    weights_of,
)

pytestmark = pytest.mark.usefixtures("one_thread")
WIDTH, LIMIT_MIB = 1024, 90.0
"""Eight layers of 4 MiB: weights, gradients and momenta take 96 MiB, and activations and the process come on top."""


CUTS = {
    1: [("mlp", 1, 4)],
    2: [("mlp", 1, 1), ("mlp", 2, 6), ("transformer", 2, 2)],
    3: [("mlp", 3, 3)],
    4: [("batchnorm", 2, 2), ("batchnorm", 4, 4), ("mlp", 4, 6)],
}
"""By number of ranks: model, stages, micro-batches. With replicas and without, with a number of stages that is odd, every
model cut in two, and one whose values pass through stages that do not use them."""
STOPPED = {3: ("mlp", 3, 3), 4: ("batchnorm", 2, 2)}


def split(stages: int, micro_batches: int) -> Pipeline:
    return Pipeline(name="pipeline", stages=stages, micro_batches=micro_batches)


def train(case: Case, world: World, _folder: Path) -> dict[str, Any]:
    """A rank's whole model after training, and its losses; between two steps it has the whole model once."""
    strategy, module = begun(case, world, seed=world.rank)  # only rank 0 has the right weights
    losses = [make_step(case, strategy, module, step) for step in range(STOP_AT)]
    weights_of(strategy)
    losses += [make_step(case, strategy, module, step) for step in range(STOP_AT, STEPS)]
    return {"weights": weights_of(strategy), "losses": torch.stack(losses)}


def train_in_two(case: Case, world: World, _folder: Path) -> dict[str, Any]:
    """As `train`, but a second strategy, which was split otherwise, resumes from the state of a first."""
    strategy, module = begun(case, world, seed=world.rank)
    for step in range(STOP_AT):
        make_step(case, strategy, module, step)
    box, others = [strategy.state()], world.ranks // strategy.plan.stages
    dist.broadcast_object_list(box, 0)
    strategy, _ = begun(replace(case, strategy=split(others, others)), world, seed=100 + world.rank)
    strategy.load_state(box[0])
    for step in range(STOP_AT, STEPS):
        make_step(case, strategy, strategy.module, step)
    return {"weights": weights_of(strategy), "stages": strategy.plan.stages}


def use_memory(case: Case, world: World, _folder: Path) -> dict[str, Any]:
    """What a rank's part of the wide model took, MiB; or why it cannot train. The model `limited` has LIMIT_MIB."""
    strategy: Any = build(case.strategy, world)  # type: ignore[arg-type]  # cases of this file have one
    strategy.memory_limit_mib = LIMIT_MIB if case.model == "limited" else None
    limit = MemoryLimit(world.device, int(LIMIT_MIB * 2**20)) if strategy.memory_limit_mib else nullcontext()
    torch.manual_seed(0)
    model = nn.Sequential(*(nn.Linear(WIDTH, WIDTH) for _ in range(8)))
    x, y = torch.randn(8, WIDTH), torch.randint(WIDTH, (8,))
    strategy.example = (x, y)
    try:
        module = strategy.prepare(model, make_optimiser)
        for _ in range(4):
            with limit:
                strategy.forward_backward(module, x, y, functional.cross_entropy)
                strategy.exchange()
                strategy.update()
    except (Skipped, RuntimeError) as error:
        return {"refused": str(error)}
    with strategy.full_parameters():
        return strategy.measured()


CASES = {ranks: {str(cut): Case(cut[0], split(*cut[1:]), work=train) for cut in cuts} for ranks, cuts in CUTS.items()}
ALL = {ranks: dict(cases) for ranks, cases in CASES.items()}
for ranks, (model, *cut) in STOPPED.items():
    ALL[ranks]["in two"] = Case(model, split(*cut), work=train_in_two)


@pytest.fixture(scope="module")
def of_all_ranks(tmp_path_factory: pytest.TempPathFactory) -> list[dict[int, Any]]:
    """Of every process the results by number of ranks: the same processes train in smaller and larger groups."""
    folder = tmp_path_factory.mktemp("pipeline")
    return on_processes(max(CUTS), folder, train_in_worlds, folder, ALL)


@pytest.fixture(scope="module", params=CUTS, ids=lambda ranks: f"{ranks} ranks")
def trained(request: pytest.FixtureRequest, of_all_ranks: list[dict[int, Any]]) -> tuple[int, Any]:
    """The number of ranks, and the result of every case by process and name."""
    return request.param, [results[request.param] for results in of_all_ranks[: request.param]]


def test_every_split_gives_the_weights_of_one_process(trained: Any) -> None:
    ranks, results = trained
    for name, stages, micro_batches in CUTS[ranks]:
        parts = ranks // stages * micro_batches if name == "batchnorm" else 1
        for rank in range(ranks):
            weights = results[rank][str((name, stages, micro_batches))]["weights"]
            assert difference(weights, reference(name, parts)) < 1e-12, (name, stages, rank)


def test_every_rank_has_the_loss_of_its_replica(trained: Any) -> None:
    ranks, results = trained
    for name, case in CASES[ranks].items():
        if case.model != "batchnorm":
            x, y = make_batch(case.model, 0, torch.float64)
            expected = functional.cross_entropy(make_model(case.model, 0, torch.float64)(x), y).item()
            mean = sum(results[rank][name]["losses"][0].item() for rank in range(ranks)) / ranks
            assert mean == pytest.approx(expected, abs=1e-12), name


@pytest.mark.parametrize("trained", STOPPED, indirect=True)
def test_a_resumed_run_is_split_as_before_and_makes_the_same_bits(trained: Any) -> None:
    ranks, results = trained
    for rank in range(ranks):
        assert results[rank]["in two"]["stages"] == STOPPED[ranks][1]
        assert difference(results[rank]["in two"]["weights"], results[rank][str(STOPPED[ranks])]["weights"]) == 0.0


def test_a_model_too_large_for_one_process_is_refused_by_the_kernel_and_trained_by_two(tmp_path: Path) -> None:
    def tried(ranks: int, *tries: tuple[Any, str]) -> list[list[dict[str, Any]]]:
        """Results of each try, by process. Limits come first: memory that is kept after a try is under no later limit."""
        cases = {f"{strategy.name} {model}": Case(model, strategy, work=use_memory) for strategy, model in tries}
        (folder := tmp_path / str(ranks)).mkdir()
        done = on_processes(ranks, folder, train_in_worlds, folder, {ranks: cases})
        return [[*results[ranks].values()] for results in done]

    single, pipeline = Single(name="single"), Pipeline(name="pipeline")
    limited = (single, "limited"), (pipeline, "limited")
    ((refused, planned, alone, whole),) = tried(1, *limited, (single, "whole"), (pipeline, "whole"))
    assert NO_MEMORY_OF_CPU in refused["refused"]
    assert "90 MiB on each of 1 device: 2 devices as one pipeline" in planned["refused"]
    assert alone == {} and whole["device_memory_mib"] > LIMIT_MIB
    for (stage,) in tried(2, (pipeline, "limited")):
        assert stage["stages"] == 2 and 40.0 < stage["device_memory_mib"] <= LIMIT_MIB
