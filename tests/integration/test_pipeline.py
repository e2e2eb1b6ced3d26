"""The pipeline against training in one process, with real processes and real messages (gloo on loopback)."""

from __future__ import annotations

import functools
import gc
import multiprocessing
import os
import socket
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torchvision
from torch import nn
from torch.nn import functional

from scalestudy.strategies.base import World
from scalestudy.strategies.build import build
from scalestudy.strategies.catalogue import Pipeline

STEPS, GLOBAL_BATCH, CLASSES = 4, 24, 5
PRELOAD = ["torch", "torch.distributed", "torch._dynamo", "torch.export", "torchvision"]
LAUNCH_LIMIT_S = 200.0


class MLP(nn.Module):
    """Linear layers, one of them used twice, and a parameter that no loss depends on."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.twice, self.last = nn.Linear(12, 16), nn.Linear(16, 16), nn.Linear(16, CLASSES)
        self.between = nn.Sequential(*(nn.Linear(16, 16) for _ in range(4)))
        self.unused = nn.Parameter(torch.randn(5))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = torch.tanh(self.twice(torch.tanh(self.twice(torch.tanh(self.first(x))))))
        logits: torch.Tensor = self.last(torch.tanh(self.between(x)))
        return logits


class Transformer(nn.Module):
    """torch's own encoder, unmodified; its input is no tensor of numbers but of words."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(11, 8)
        layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True)
        self.encoder, self.head = nn.TransformerEncoder(layer, 3), nn.Linear(8, CLASSES)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        logits: torch.Tensor = self.head(self.encoder(self.words(x.long().remainder(11))).mean(1))
        return logits


def resnet() -> nn.Module:
    """torchvision's, cut short before it gets wide."""
    model = torchvision.models.ResNet(torchvision.models.resnet.BasicBlock, [1, 1, 1, 1])
    model.layer3, model.layer4, model.fc = nn.Identity(), nn.Identity(), nn.Linear(128, CLASSES)
    return model


def densenet() -> nn.Module:
    return torchvision.models.DenseNet(4, (2, 2), 8, 2, num_classes=CLASSES)


def vgg() -> nn.Module:
    features = torchvision.models.vgg.make_layers([8, "M", 16, 16, "M"], batch_norm=False)
    model = torchvision.models.VGG(features, num_classes=CLASSES, init_weights=False)
    model.avgpool = nn.AdaptiveAvgPool2d(2)
    model.classifier = nn.Sequential(nn.Linear(64, 32), nn.ReLU(True), nn.Dropout(0.0), nn.Linear(32, CLASSES))
    return model


MODELS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "mlp": (MLP, (12,)),
    "transformer": (Transformer, (6,)),
    "resnet": (resnet, (3, 16, 16)),
    "densenet": (densenet, (3, 16, 16)),
    "vgg": (vgg, (3, 16, 16)),
}
GHOST = ("resnet", "densenet")
"""With BatchNorm, which sees one micro-batch at a time."""


@dataclass(frozen=True)
class Case:
    """One short training as a pipeline of `stages` stages."""

    model: str
    stages: int
    micro_batches: int
    schedule: str = "1f1b"

    @property
    def options(self) -> Pipeline:
        return Pipeline(name="pipeline", stages=self.stages, micro_batches=self.micro_batches, schedule=self.schedule)


def cases_of(ranks: int) -> dict[str, Case]:
    """What is trained with so many ranks: every number of stages that divides them."""
    cases = [
        Case(model, stages, stages)
        for stages in range(1, ranks + 1)
        if ranks % stages == 0
        for model in (MODELS if stages > 1 or ranks == 1 else ("mlp", "resnet"))
    ]
    cases += [Case("mlp", stages, 6, "gpipe") for stages in range(2, ranks + 1) if ranks % stages == 0]
    cases += [Case("mlp", 1, 4)] if ranks == 1 else []
    return {
        f"{case.schedule} {case.model} {case.stages} stages {case.micro_batches} micro-batches": case for case in cases
    }


def make_model(name: str, seed: int) -> nn.Module:
    torch.manual_seed(seed)
    return MODELS[name][0]().double()


def make_batch(name: str, step: int) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(1000 + step)
    x = torch.randn(GLOBAL_BATCH, *MODELS[name][1], generator=generator, dtype=torch.float64)
    return 10 * x if name == "transformer" else x, torch.randint(CLASSES, (GLOBAL_BATCH,), generator=generator)


def make_optimiser(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=99.0, momentum=0.9, weight_decay=0.01)


def rate(step: int) -> float:
    return 0.1 / (1 + step)


@functools.cache
def reference(model_name: str, parts: int) -> dict[str, torch.Tensor]:
    """Parameters after training in one process on the global batch, which BatchNorm sees in so many parts, in order."""
    model = make_model(model_name, 0)
    optimiser = make_optimiser(model.parameters())
    for step in range(STEPS):
        optimiser.zero_grad()
        x, y = make_batch(model_name, step)
        for xs, ys in zip(x.chunk(parts), y.chunk(parts), strict=True):
            (functional.cross_entropy(model(xs), ys) / parts).backward()  # type: ignore[no-untyped-call]
        for parameter in model.parameters():
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
        for group in optimiser.param_groups:
            group["lr"] = rate(step)
        optimiser.step()
    return {name: parameter.detach() for name, parameter in model.named_parameters()}


def train(case: Case, world: World) -> dict[str, Any]:
    """A rank's whole model after training, its losses, and how large its own stage was."""
    model = make_model(case.model, seed=world.rank)  # only rank 0 has the right weights
    strategy = build(case.options, world)
    shares = [[part.chunk(world.ranks)[world.rank] for part in make_batch(case.model, step)] for step in range(STEPS)]
    strategy.example = (shares[0][0], shares[0][1])
    module = strategy.prepare(model, make_optimiser)
    own = sum(parameter.numel() for parameter in model.parameters())
    losses = []
    for step, (x, y) in enumerate(shares):
        strategy.set_rate(rate(step))
        losses.append(strategy.forward_backward(module, x, y, functional.cross_entropy))
        strategy.exchange()
        strategy.update()
        if step == 1:
            with strategy.whole() as whole:
                assert all(parameter.numel() for parameter in whole.parameters())
    strategy.finish()
    weights = {name: parameter.detach().clone() for name, parameter in model.named_parameters()}
    return {"weights": weights, "losses": torch.stack(losses), "own": own}


def train_in_two(case: Case, world: World) -> dict[str, Any]:
    """As `train`, but another process's worth of objects makes the second half, from a state, and had other plans."""
    first = begun(case, world, seed=world.rank)
    take_steps(*first, range(STEPS // 2))
    box = [first[0].state()]
    assert bool(box[0]) == (world.rank == 0)
    dist.broadcast_object_list(box, 0)
    other = Case(case.model, world.ranks // case.stages, 2, case.schedule)
    second = begun(other, world, seed=100 + world.rank)
    second[0].load_state(box[0])
    take_steps(second[0], second[0].module, second[2], range(STEPS // 2, STEPS))
    second[0].finish()
    return {"weights": weights_of(second[2]), "names": sorted(box[0]), "stages": second[0].plan.stages}


def begun(case: Case, world: World, seed: int) -> tuple[Any, nn.Module, nn.Module]:
    """A strategy that is ready for its first step, its module, and the model."""
    model = make_model(case.model, seed)
    strategy = build(case.options, world)
    x, y = make_batch(case.model, 0)
    strategy.example = (x.chunk(world.ranks)[world.rank], y.chunk(world.ranks)[world.rank])
    return strategy, strategy.prepare(model, make_optimiser), model


def take_steps(strategy: Any, module: nn.Module, model: nn.Module, steps: range) -> None:
    """Some steps, each on this rank's share of the global batch."""
    world, name = strategy.world, next(name for name, (kind, _) in MODELS.items() if isinstance(model, kind))
    for step in steps:
        x, y = (part.chunk(world.ranks)[world.rank] for part in make_batch(name, step))
        strategy.set_rate(rate(step))
        strategy.forward_backward(module, x, y, functional.cross_entropy)
        strategy.exchange()
        strategy.update()


def weights_of(model: nn.Module) -> dict[str, torch.Tensor]:
    """Copies of all parameters by name."""
    return {name: parameter.detach().clone() for name, parameter in model.named_parameters()}


def process_main(index: int, ranks: int, folder: Path) -> None:
    """One process: all cases of a number of ranks."""
    gc.freeze()
    torch.set_num_threads(1)
    if "lo" in [name for _, name in socket.if_nameindex()]:
        os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    store = dist.FileStore(str(folder / "rendezvous"), ranks)
    dist.init_process_group("gloo", store=store, rank=index, world_size=ranks)
    world = World(index, ranks, 0, torch.device("cpu"), ranks, dist.new_group(list(range(ranks))))  # type: ignore[arg-type]
    results = {name: train(case, world) for name, case in cases_of(ranks).items()}
    dist.barrier()
    dist.destroy_process_group()
    torch.save(results, folder / f"{index}.pt")


@pytest.fixture(scope="module", params=(1, 2, 3, 4), ids=lambda ranks: f"{ranks} ranks")
def trained(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[int, Any]]:
    """The number of ranks, and the result of every case by process and name."""
    ranks: int = request.param
    folder = tmp_path_factory.mktemp(f"pipeline{ranks}")
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(PRELOAD)
    processes: list[BaseProcess] = [
        context.Process(target=process_main, args=(index, ranks, folder)) for index in range(ranks)
    ]
    try:
        for process in processes:
            process.start()
        deadline = time.monotonic() + LAUNCH_LIMIT_S
        while any(process.is_alive() for process in processes) and not any(process.exitcode for process in processes):
            assert time.monotonic() < deadline, "the processes hang"
            time.sleep(0.02)
        assert [process.exitcode for process in processes] == [0] * len(processes)
        yield ranks, [torch.load(folder / f"{index}.pt") for index in range(len(processes))]
    finally:
        for process in processes:
            if process.is_alive():
                process.kill()
            process.join()
        torch.set_num_threads(threads)


def difference(left: dict[str, torch.Tensor], right: dict[str, torch.Tensor]) -> float:
    """The largest absolute difference of any parameter."""
    assert list(left) == list(right)
    return max(float((left[name] - right[name]).abs().max()) for name in left)


@pytest.mark.parametrize("model", MODELS)
def test_every_split_gives_the_weights_of_one_process(trained: Any, model: str) -> None:
    ranks, results = trained
    for name, case in cases_of(ranks).items():
        if case.model == model:
            parts = ranks // case.stages * case.micro_batches if model in GHOST else 1
            for rank in range(ranks):
                assert difference(results[rank][name]["weights"], reference(model, parts)) < 1e-12, (name, rank)
