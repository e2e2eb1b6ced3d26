"""The pipeline against training in one process, with real processes and real messages (gloo on loopback)."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional

from scalestudy.errors import Skipped
from scalestudy.strategies.base import World
from scalestudy.strategies.build import build
from scalestudy.strategies.catalogue import Pipeline
from tests.integration.forked import on_processes
from tests.integration.trainings import (
    GHOSTS,
    STEPS,
    Case,
    difference,
    make_batch,
    make_model,
    make_optimiser,
    make_step,
    reference,
    share_of,
)

pytestmark = pytest.mark.usefixtures("one_thread")
WIDTH, LIMIT_MIB = 1024, 90.0
"""Eight layers of 4 MiB: weights, gradients and momenta take 96 MiB, and activations and the process come on top."""


def case_of(model: str, stages: int, micro_batches: int) -> Case:
    """One short training as a pipeline."""
    return Case(model, Pipeline(name="pipeline", stages=stages, micro_batches=micro_batches))


CUTS = {
    1: [("chain", 1, 4)],
    2: [("chain", 1, 1), ("chain", 2, 6), ("transformer", 2, 2), ("resnet", 2, 2)],
    3: [("chain", 3, 3)],
    4: [("resnet", 2, 2), ("resnet", 4, 4), ("chain", 4, 6)],
}
"""By number of ranks: model, stages, micro-batches. With replicas and without, with a number of stages that is odd, every
model cut in two, and one whose values pass through stages that do not use them."""
CASES = {ranks: {str(cut): case_of(*cut) for cut in cuts} for ranks, cuts in CUTS.items()}
STOPPED = {2: ("resnet", 2, 2), 3: ("chain", 3, 3), 4: ("resnet", 2, 2)}


def begun(case: Case, world: World, seed: int) -> tuple[Any, nn.Module, nn.Module]:
    """A strategy that is ready for its first step, the module that it returned, and the model."""
    model = make_model(case.model, seed, torch.float64)
    strategy: Any = build(case.strategy, world)  # type: ignore[arg-type]  # cases of this file have one
    strategy.example = share_of(world.rank, world.ranks, case.model, 0, torch.float64)
    return strategy, strategy.prepare(model, make_optimiser), model


def weights_of(strategy: Any) -> list[torch.Tensor]:
    with strategy.full_parameters() as model:
        return [parameter.detach().clone() for parameter in model.parameters()]


def train(case: Case, world: World) -> dict[str, Any]:
    """A rank's whole model after training, its losses, and what it held of the model while it trained."""
    # Only rank 0 has the right weights.
    strategy, module, model = begun(case, world, seed=world.rank)
    losses = [make_step(case, strategy, module, step) for step in range(2)]
    with strategy.full_parameters() as whole:
        between = sum(parameter.numel() for parameter in whole.parameters())
    own = sum(parameter.numel() for parameter in model.parameters())
    losses += [make_step(case, strategy, module, step) for step in range(2, STEPS)]
    return {"weights": weights_of(strategy), "losses": torch.stack(losses), "own": own, "between": between}


def train_in_two(cut: tuple[str, int, int], world: World) -> dict[str, Any]:
    """As `train`, but a second strategy, which was split otherwise, resumes from the state of a first."""
    (name, stages, _), case = cut, case_of(*cut)
    strategy, module, _ = begun(case, world, seed=world.rank)
    for step in range(2):
        make_step(case, strategy, module, step)
    box = [strategy.state()]
    dist.broadcast_object_list(box, 0)
    strategy, _, _ = begun(case_of(name, world.ranks // stages, world.ranks // stages), world, seed=100 + world.rank)
    strategy.load_state(box[0])
    for step in range(2, STEPS):
        make_step(case, strategy, strategy.module, step)
    return {"weights": weights_of(strategy), "stages": strategy.plan.stages}


def use_memory(world: World, limit_mib: float | None) -> dict[str, Any]:
    """What a stage of the wide model took, MiB; or why there is none."""
    strategy = build(Pipeline(name="pipeline", memory_limit_mib=limit_mib), world)
    torch.manual_seed(0)
    model = nn.Sequential(*(nn.Linear(WIDTH, WIDTH) for _ in range(8)))
    x, y = torch.randn(8, WIDTH), torch.randint(WIDTH, (8,))
    strategy.example = (x, y)
    try:
        module = strategy.prepare(model, make_optimiser)
    except Skipped as error:
        return {"refused": str(error)}
    for _ in range(4):
        strategy.forward_backward(module, x, y, functional.cross_entropy)
        strategy.exchange()
        strategy.update()
    with strategy.full_parameters():
        return {"stages": strategy.plan.stages, "invalid_reason": strategy.invalid_reason(), **strategy.measured()}


def train_cases(world: World) -> dict[str, Any]:
    """All cases of a number of ranks."""
    results: dict[str, Any] = {name: train(case, world) for name, case in CASES[world.ranks].items()}
    return results | ({"in two": train_in_two(STOPPED[world.ranks], world)} if world.ranks > 1 else {})


def train_all(index: int, folder: Path) -> dict[int, Any]:
    """One process: by number of ranks all its cases, one number after the other. Only the first processes have a part."""
    return {ranks: in_world(index, ranks, folder, train_cases) for ranks in CUTS if index < ranks}


def in_world(index: int, ranks: int, folder: Path, work: Callable[[World], Any]) -> Any:
    """Some work of one process of several."""
    store = dist.FileStore(str(folder / f"rendezvous{ranks}"), ranks)
    dist.init_process_group("gloo", store=store, rank=index, world_size=ranks)
    world = World(index, ranks, 0, torch.device("cpu"), ranks, dist.new_group(list(range(ranks))))  # type: ignore[arg-type]
    results = work(world)
    dist.barrier()
    dist.destroy_process_group()
    return results


@pytest.fixture(scope="module")
def of_all_ranks(tmp_path_factory: pytest.TempPathFactory) -> list[dict[int, Any]]:
    """Of every process the results by number of ranks: the same processes train in smaller and larger groups."""
    folder = tmp_path_factory.mktemp("pipeline")
    return on_processes(max(CUTS), folder, train_all, folder)


@pytest.fixture(scope="module", params=CUTS, ids=lambda ranks: f"{ranks} ranks")
def trained(request: pytest.FixtureRequest, of_all_ranks: list[dict[int, Any]]) -> tuple[int, Any]:
    """The number of ranks, and the result of every case by process and name."""
    return request.param, [results[request.param] for results in of_all_ranks[: request.param]]


def test_every_split_gives_the_weights_of_one_process(trained: Any) -> None:
    ranks, results = trained
    for name, stages, micro_batches in CUTS[ranks]:
        parts = ranks // stages * micro_batches if name in GHOSTS else 1
        for rank in range(ranks):
            weights = results[rank][str((name, stages, micro_batches))]["weights"]
            assert difference(weights, reference(name, parts)) < 1e-12, (name, stages, rank)


def test_a_rank_holds_its_stage_while_it_trains_and_everything_inside_full_parameters(trained: Any) -> None:
    ranks, results = trained
    for name, case in CASES[ranks].items():
        whole = sum(tensor.numel() for tensor in make_model(case.model, 0, torch.float64).parameters())
        held = [results[rank][name]["own"] for rank in range(ranks)]
        assert sum(held) == whole * ranks // case.strategy.stages, name
        assert {results[rank][name]["between"] for rank in range(ranks)} == {whole}, name


def test_every_rank_has_the_loss_of_its_replica(trained: Any) -> None:
    ranks, results = trained
    for name, case in CASES[ranks].items():
        if case.model not in GHOSTS:
            x, y = make_batch(case.model, 0, torch.float64)
            expected = functional.cross_entropy(make_model(case.model, 0, torch.float64)(x), y).item()
            mean = sum(results[rank][name]["losses"][0].item() for rank in range(ranks)) / ranks
            assert mean == pytest.approx(expected, abs=1e-12), name


@pytest.mark.parametrize("trained", (2, 3, 4), indirect=True)
def test_a_resumed_run_is_split_as_before_and_makes_the_same_bits(trained: Any) -> None:
    ranks, results = trained
    for rank in range(ranks):
        assert results[rank]["in two"]["stages"] == STOPPED[ranks][1]
        assert difference(results[rank]["in two"]["weights"], results[rank][str(STOPPED[ranks])]["weights"]) == 0.0


def test_a_memory_limit_that_the_whole_model_exceeds_is_kept_by_its_stages(tmp_path: Path) -> None:
    def stages_of(ranks: int, limit_mib: float | None) -> list[dict[str, Any]]:
        folder = tmp_path / f"{ranks}{limit_mib}"
        folder.mkdir()
        return on_processes(ranks, folder, in_world, ranks, folder, partial(use_memory, limit_mib=limit_mib))

    (whole,) = stages_of(1, None)
    assert whole["device_memory_mib"] > LIMIT_MIB
    for stage in stages_of(2, LIMIT_MIB):
        assert (stage["stages"], stage["invalid_reason"]) == (2, None)
        assert 40.0 < stage["device_memory_mib"] <= LIMIT_MIB
    (refused,) = stages_of(1, LIMIT_MIB)
    assert "90 MiB on each of 1 device: 2 devices as one pipeline" in refused["refused"]
