"""Short trainings by any strategy on real processes, and the same training in one process to compare with."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torchvision
from torch import nn
from torch.nn import functional

from scalestudy.strategies.base import Strategy, World
from scalestudy.strategies.build import build
from scalestudy.strategies.catalogue import AnyStrategy

RANKS = (1, 2, 3, 4, 6)
PER_NODE = {1: 1, 2: 1, 3: 3, 4: 2, 6: 2}
"""Logical nodes: one of one rank, two of one, one of three, two of two, three of two."""
STEPS, STOP_AT, GLOBAL_BATCH, CLASSES = 4, 2, 24, 7


class MLP(nn.Module):
    """A layer that is used twice, a bias of one element, shorter than any vector can be halved, and a parameter that no loss
    depends on.
    """

    def __init__(self) -> None:
        super().__init__()
        self.first, self.twice, self.narrow = nn.Linear(12, 16), nn.Linear(16, 16), nn.Linear(16, 1)
        self.between = nn.Sequential(nn.Linear(16, 16), nn.Linear(16, 16))
        self.last, self.unused = nn.Linear(17, CLASSES), nn.Parameter(torch.randn(5))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = torch.tanh(self.twice(torch.tanh(self.twice(torch.tanh(self.first(x))))))
        x = torch.tanh(self.between(x))
        logits: torch.Tensor = self.last(torch.cat([x, self.narrow(x)], dim=1))
        return logits


class Transformer(nn.Module):
    """torch's own encoder, unmodified; its input is a tensor of words, not of numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(11, 8)
        layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True)
        self.encoder, self.head = nn.TransformerEncoder(layer, 1), nn.Linear(8, CLASSES)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        logits: torch.Tensor = self.head(self.encoder(self.words((10 * x).long().remainder(11))).mean(1))
        return logits


class ResNet(torchvision.models.ResNet):
    """torchvision's, a quarter as wide and cut short; its BatchNorm normalises over the batch of one rank."""

    def __init__(self) -> None:
        super().__init__(torchvision.models.resnet.BasicBlock, [1, 1, 1, 1])
        self.fc = nn.Linear(32, CLASSES)

    def _make_layer(self, block: Any, planes: int, *arguments: Any, **named: Any) -> Any:
        return super()._make_layer(block, planes // 4, *arguments, **named) if planes <= 128 else nn.Identity()


MODELS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "mlp": (MLP, (12,)),
    "batchnorm": (ResNet, (3, 16, 16)),
    "transformer": (Transformer, (6,)),
}
"""With the shapes of their samples. `batchnorm` normalises over the part of a batch that it sees at a time."""


@dataclass(frozen=True)
class Case:
    """One short training; `strategy` None is the negative control: every rank trains alone."""

    model: str
    strategy: AnyStrategy | None
    dtype: torch.dtype = torch.float64
    per_node: int | None = None
    """Ranks per logical node; None: as PER_NODE has it."""
    parts: int = 1
    """Equal parts in which a rank computes its batch."""
    work: Callable[[Case, World, Path], Any] | None = None
    """What each process does; None: `train`."""

    @property
    def servers(self) -> int:
        return self.strategy.servers_beside if self.strategy else 0

    def fits(self, ranks: int) -> bool:
        """Whether the ranks fill the nodes."""
        return ranks % (self.per_node or 1) == 0


def make_model(name: str, seed: int, dtype: torch.dtype) -> nn.Module:
    torch.manual_seed(seed)
    return MODELS[name][0]().to(dtype)


def make_batch(name: str, step: int, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(1000 + step)
    x = torch.randn(GLOBAL_BATCH, *MODELS[name][1], generator=generator, dtype=torch.float64)
    return x.to(dtype), torch.randint(CLASSES, (GLOBAL_BATCH,), generator=generator)


def share_of(rank: int, ranks: int, model: str, step: int, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    """A rank's part of a step's batch."""
    x, y = make_batch(model, step, dtype)
    return x.chunk(ranks)[rank], y.chunk(ranks)[rank]


def make_optimiser(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=99.0, momentum=0.9, weight_decay=0.01)


def rate(step: int) -> float:
    return 0.1 / (1 + step)


def loss_of(output: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return functional.cross_entropy(output.float() if output.dtype == torch.bfloat16 else output, y)


@functools.cache
def reference(model_name: str, parts: int) -> list[torch.Tensor]:
    """Parameters after training in one process on the global batch, in float64.

    BatchNorm sees it in so many parts, one after the other ("ghost batches"), as ranks or micro-batches do.
    """
    model = make_model(model_name, 0, torch.float64)
    optimiser = make_optimiser(model.parameters())
    shares = parts if model_name == "batchnorm" else 1
    for step in range(STEPS):
        optimiser.zero_grad()
        x, y = make_batch(model_name, step, torch.float64)
        for xs, ys in zip(x.chunk(shares), y.chunk(shares), strict=True):
            (functional.cross_entropy(model(xs), ys) / shares).backward()  # type: ignore[no-untyped-call]
        for parameter in model.parameters():
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
        for group in optimiser.param_groups:
            group["lr"] = rate(step)
        optimiser.step()
    return [parameter.detach() for parameter in model.parameters()]


def begun(case: Case, world: World, seed: int) -> tuple[Any, nn.Module]:
    """A strategy that is ready for its first step, and the module that it returned."""
    strategy = build(case.strategy, world) if case.strategy else Strategy(None, world)
    strategy.accumulation_steps = case.parts
    if strategy.wants_example:
        strategy.example = share_of(world.rank, world.ranks, case.model, 0, case.dtype)
    return strategy, strategy.prepare(make_model(case.model, seed, case.dtype), make_optimiser)


def weights_of(strategy: Strategy) -> list[torch.Tensor]:
    """All parameters of the training, as a rank has them."""
    with strategy.full_parameters() as model:
        return [parameter.detach().clone() for parameter in model.parameters()]


def train(case: Case, world: World, _folder: Path) -> Any:
    """A rank's parameters after training; of a server the number of steps served, and its records."""
    strategy, module = begun(case, world, seed=world.rank)  # only rank 0 has the right weights
    if world.is_server:
        return strategy.serve(rate), strategy.records
    for step in range(STEPS):
        make_step(case, strategy, module, step)
    weights = weights_of(strategy)
    strategy.finish()
    return weights


def stop_and_resume(case: Case, world: World, folder: Path) -> Any:
    """A rank's parameters after STOP_AT steps, a stop, and the other steps by a new strategy and model; of a server nothing."""
    file = folder / "state.pt"
    first, module = begun(case, world, seed=world.rank)
    if world.is_server:
        first.serve(rate)
    else:
        for step in range(STOP_AT):
            make_step(case, first, module, step)
        state = first.state()
        first.finish()
        if world.rank == 0:
            torch.save(state, file)
    dist.barrier()
    state = torch.load(file)
    second, module = begun(case, world, seed=100 + world.rank)
    second.load_state(state)
    if world.is_server:
        second.serve(lambda step: rate(STOP_AT + step))
        return None
    for step in range(STOP_AT, STEPS):
        make_step(case, second, module, step)
    weights = weights_of(second)
    second.finish()
    dist.barrier(group=world.workers)
    return weights


def make_step(case: Case, strategy: Strategy, module: nn.Module, step: int) -> torch.Tensor:
    """One step as the training loop makes it; returns the loss."""
    world = strategy.world
    strategy.set_learning_rate(rate(step))
    share = share_of(world.rank, world.ranks, case.model, step, case.dtype)
    loss = strategy.forward_backward(module, *share, loss_of)
    strategy.exchange()
    strategy.update()
    return loss


def train_all(index: int, ranks: int, folder: Path, cases: dict[str, Case]) -> dict[str, Any]:
    """One process: all cases with no server, then with one, and so on, each number in its own process group."""
    results: dict[str, Any] = {}
    for servers in sorted({case.servers for case in cases.values()}):
        if index >= ranks + servers:
            continue
        store = dist.FileStore(str(folder / f"rendezvous{servers}"), ranks + servers)
        dist.init_process_group("gloo", store=store, rank=index, world_size=ranks + servers)
        workers = dist.new_group(list(range(ranks)))
        for name, case in cases.items():
            if case.servers == servers:
                per_node = case.per_node or PER_NODE[ranks]
                world = World(index, ranks, servers, torch.device("cpu"), per_node, workers)  # type: ignore[arg-type]
                results[name] = (case.work or train)(case, world, folder)
        dist.barrier()
        dist.destroy_process_group()
    return results


def train_in_worlds(index: int, folder: Path, cases: dict[int, dict[str, Case]]) -> dict[int, dict[str, Any]]:
    """One process: by number of ranks all its cases, one number after the other. Only the first processes have a part."""
    results = {}
    for ranks, of_ranks in cases.items():
        (folder / str(ranks)).mkdir(exist_ok=True)
        results[ranks] = train_all(index, ranks, folder / str(ranks), of_ranks)
    return results


def difference(left: list[torch.Tensor], right: list[torch.Tensor]) -> float:
    """The largest absolute difference of any parameter."""
    return max(float((a.detach().double() - b.detach().double()).abs().max()) for a, b in zip(left, right, strict=True))
