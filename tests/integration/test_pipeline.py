"""The pipeline against training in one process, with real processes and real messages (gloo on loopback)."""

from __future__ import annotations

from dataclasses import dataclass
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
    CUT,
    GHOSTS,
    STEPS,
    difference,
    make_batch,
    make_model,
    make_optimiser,
    rate,
    reference,
    share_of,
)

pytestmark = pytest.mark.usefixtures("one_thread")
WIDTH, LIMIT_MIB = 1024, 90.0
"""Eight layers of 4 MiB: weights, gradients and momenta take 96 MiB, and activations and the process come on top."""


@dataclass(frozen=True)
class Case:
    """One short training as a pipeline of `stages` stages."""

    model: str
    stages: int
    micro_batches: int


RANKS = (1, 2, 3, 4)
MODELS_OF = {
    (1, 1): ("chain",),
    (2, 1): ("chain", "resnet"),
    (2, 2): tuple(CUT),
    (3, 3): ("chain",),
    (4, 2): ("chain", "resnet"),
    (4, 4): ("chain", "resnet"),
}
"""What is trained on so many ranks in so many stages: with replicas and without, with a number of stages that is odd, every
model cut in two, and one whose values pass through stages that do not use them."""


def cases_of(ranks: int) -> dict[str, Case]:
    """What is trained with so many ranks."""
    cuts = {stages: models for (of_ranks, stages), models in MODELS_OF.items() if of_ranks == ranks}
    cases = [Case(model, stages, stages) for stages, models in cuts.items() for model in models]
    cases += [Case("chain", ranks, 6)] if ranks in (2, 4) else []
    cases += [Case("chain", 1, 4)] if ranks == 1 else []
    return {f"{case.model} {case.stages} stages {case.micro_batches} micro-batches": case for case in cases}


STOPPED = {2: Case("resnet", 2, 2), 3: Case("chain", 3, 3), 4: Case("resnet", 2, 2)}


def begun(case: Case, world: World, seed: int) -> tuple[Any, nn.Module, nn.Module]:
    """A strategy that is ready for its first step, the module that it returned, and the model."""
    model = make_model(case.model, seed, torch.float64)
    strategy = build(Pipeline(name="pipeline", stages=case.stages, micro_batches=case.micro_batches), world)
    strategy.example = share_of(world.rank, world.ranks, case.model, 0, torch.float64)
    return strategy, strategy.prepare(model, make_optimiser), model


def take_steps(strategy: Any, module: nn.Module, name: str, steps: range) -> list[torch.Tensor]:
    """Some steps, each on this rank's share of the global batch; returns the losses."""
    world, losses = strategy.world, []
    for step in steps:
        x, y = share_of(world.rank, world.ranks, name, step, torch.float64)
        strategy.set_learning_rate(rate(step))
        losses.append(strategy.forward_backward(module, x, y, functional.cross_entropy))
        strategy.exchange()
        strategy.update()
    return losses


def weights_of(strategy: Any) -> list[torch.Tensor]:
    with strategy.full_parameters() as model:
        return [parameter.detach().clone() for parameter in model.parameters()]


def train(case: Case, world: World) -> dict[str, Any]:
    """A rank's whole model after training, its losses, and what it held of the model while it trained."""
    # Only rank 0 has the right weights.
    strategy, module, model = begun(case, world, seed=world.rank)
    losses = take_steps(strategy, module, case.model, range(2))
    with strategy.full_parameters() as whole:
        between = sum(parameter.numel() for parameter in whole.parameters())
    own = sum(parameter.numel() for parameter in model.parameters())
    losses += take_steps(strategy, module, case.model, range(2, STEPS))
    return {"weights": weights_of(strategy), "losses": torch.stack(losses), "own": own, "between": between}


def train_in_two(case: Case, world: World) -> dict[str, Any]:
    """As `train`, but a second strategy, which was split otherwise, resumes from the state of a first."""
    strategy, module, _ = begun(case, world, seed=world.rank)
    take_steps(strategy, module, case.model, range(2))
    box = [strategy.state()]
    dist.broadcast_object_list(box, 0)
    other = Case(case.model, world.ranks // case.stages, world.ranks // case.stages)
    strategy, _, _ = begun(other, world, seed=100 + world.rank)
    strategy.load_state(box[0])
    take_steps(strategy, strategy.module, case.model, range(2, STEPS))
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


def train_all(index: int, folder: Path) -> dict[int, Any]:
    """One process: by number of ranks all its cases, one number after the other. Only the first processes have a part."""
    results = {}
    for ranks in RANKS[index:]:
        (folder / str(ranks)).mkdir(exist_ok=True)
        results[ranks] = process_main(index, ranks, folder / str(ranks), "train")
    return results


def process_main(index: int, ranks: int, folder: Path, work: str) -> dict[str, Any]:
    """One process: all cases of a number of ranks, or the memory that one with or without a limit takes."""
    store = dist.FileStore(str(folder / "rendezvous"), ranks)
    dist.init_process_group("gloo", store=store, rank=index, world_size=ranks)
    world = World(index, ranks, 0, torch.device("cpu"), ranks, dist.new_group(list(range(ranks))))  # type: ignore[arg-type]
    if work == "train":
        results: dict[str, Any] = {name: train(case, world) for name, case in cases_of(ranks).items()}
        if ranks > 1:
            results["in two"] = train_in_two(STOPPED[ranks], world)
    else:
        results = use_memory(world, LIMIT_MIB if work == "limited" else None)
    dist.barrier()
    dist.destroy_process_group()
    return results


def results_of(ranks: int, folder: Path, work: str) -> list[Any]:
    """What each of `ranks` fresh processes found."""
    return on_processes(ranks, folder, process_main, ranks, folder, work)


@pytest.fixture(scope="module")
def of_all_ranks(tmp_path_factory: pytest.TempPathFactory) -> list[dict[int, Any]]:
    """Of every process the results by number of ranks: the same processes train in smaller and larger groups."""
    folder = tmp_path_factory.mktemp("pipeline")
    return on_processes(max(RANKS), folder, train_all, folder)


@pytest.fixture(scope="module", params=RANKS, ids=lambda ranks: f"{ranks} ranks")
def trained(request: pytest.FixtureRequest, of_all_ranks: list[dict[int, Any]]) -> tuple[int, Any]:
    """The number of ranks, and the result of every case by process and name."""
    return request.param, [results[request.param] for results in of_all_ranks[: request.param]]


def test_every_split_gives_the_weights_of_one_process(trained: Any) -> None:
    ranks, results = trained
    for name, case in cases_of(ranks).items():
        parts = ranks // case.stages * case.micro_batches if case.model in GHOSTS else 1
        for rank in range(ranks):
            assert difference(results[rank][name]["weights"], reference(case.model, parts)) < 1e-12, (name, rank)


def test_a_rank_holds_its_stage_while_it_trains_and_everything_inside_full_parameters(trained: Any) -> None:
    ranks, results = trained
    for name, case in cases_of(ranks).items():
        whole = sum(tensor.numel() for tensor in make_model(case.model, 0, torch.float64).parameters())
        held = [results[rank][name]["own"] for rank in range(ranks)]
        assert sum(held) == whole * ranks // case.stages, name
        assert {results[rank][name]["between"] for rank in range(ranks)} == {whole}, name


def test_every_rank_has_the_loss_of_its_replica(trained: Any) -> None:
    ranks, results = trained
    for name, case in cases_of(ranks).items():
        if case.model not in GHOSTS:
            x, y = make_batch(case.model, 0, torch.float64)
            expected = functional.cross_entropy(make_model(case.model, 0, torch.float64)(x), y).item()
            mean = sum(results[rank][name]["losses"][0].item() for rank in range(ranks)) / ranks
            assert mean == pytest.approx(expected, abs=1e-12), name


@pytest.mark.parametrize("trained", (2, 3, 4), indirect=True)
def test_a_resumed_run_is_split_as_before_and_makes_the_same_bits(trained: Any) -> None:
    ranks, results = trained
    case = STOPPED[ranks]
    name = next(name for name, other in cases_of(ranks).items() if other == case)
    for rank in range(ranks):
        assert results[rank]["in two"]["stages"] == case.stages
        assert difference(results[rank]["in two"]["weights"], results[rank][name]["weights"]) == 0.0


def test_a_memory_limit_that_the_whole_model_exceeds_is_kept_by_its_stages(tmp_path: Path) -> None:
    for name in ("whole", "split", "refused"):
        (tmp_path / name).mkdir()
    (whole,) = results_of(1, tmp_path / "whole", "unlimited")
    assert whole["device_memory_mib"] > LIMIT_MIB
    for stage in results_of(2, tmp_path / "split", "limited"):
        assert (stage["stages"], stage["invalid_reason"]) == (2, None)
        assert 40.0 < stage["device_memory_mib"] <= LIMIT_MIB
    (refused,) = results_of(1, tmp_path / "refused", "limited")
    assert "90 MiB on each of 1 device: 2 devices as one pipeline" in refused["refused"]
