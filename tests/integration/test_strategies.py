"""Every strategy against training in one process, with real processes and real messages (gloo on loopback)."""

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
from torch import nn
from torch.nn import functional

from scalestudy.models.emulated import emulate
from scalestudy.strategies.base import Strategy, World
from scalestudy.strategies.build import build
from scalestudy.strategies.catalogue import AllReduce, AnyStrategy, HalvingDoubling, ParameterServer, Single

RANKS = (1, 2, 3, 4, 6)
SERVERS = (0, 1, 2)
STEPS, GLOBAL_BATCH, CLASSES = 5, 24, 7
PRELOAD = ["torch", "torch.distributed", "torch.nn.parallel", "torch._dynamo"]
LAUNCH_LIMIT_S = 120.0

EXACT: dict[str, AnyStrategy] = {
    "allreduce": AllReduce(name="allreduce"),
    "allreduce in small buckets": AllReduce(name="allreduce", bucket_mib=0.005),
    "halving_doubling flat": HalvingDoubling(name="halving_doubling"),
    "halving_doubling per parameter": HalvingDoubling(name="halving_doubling", schedule="per_parameter"),
    "parameter_server with 1 server": ParameterServer(name="parameter_server", servers=1),
    "parameter_server with 2 servers": ParameterServer(name="parameter_server", servers=2),
}
ROUNDED: dict[str, AnyStrategy] = {
    "fp16": AllReduce(name="allreduce", compression="fp16"),
    "bf16": AllReduce(name="allreduce", compression="bf16"),
}


class MLP(nn.Module):
    """A bias of one element, shorter than any vector can be halved; and a parameter that no loss depends on."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.narrow, self.last = nn.Linear(12, 40), nn.Linear(40, 1), nn.Linear(41, CLASSES)
        self.unused = nn.Parameter(torch.randn(5))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = torch.tanh(self.first(x.flatten(1)))
        logits: torch.Tensor = self.last(torch.cat([x, self.narrow(x)], dim=1))
        return logits


class Residual(nn.Module):
    """A small residual network; `norm` makes a normalisation for a number of channels."""

    def __init__(self, norm: Callable[[int], nn.Module]) -> None:
        super().__init__()
        self.stem, self.norm = nn.Conv2d(3, 8, 3, padding=1, bias=False), norm(8)
        self.conv1, self.norm1 = nn.Conv2d(8, 8, 3, padding=1, bias=False), norm(8)
        self.conv2, self.norm2 = nn.Conv2d(8, 8, 3, padding=1, bias=False), norm(8)
        self.head = nn.Linear(8, CLASSES)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = torch.relu(self.norm(self.stem(x)))
        x = torch.relu(x + self.norm2(self.conv2(torch.relu(self.norm1(self.conv1(x))))))
        logits: torch.Tensor = self.head(x.mean((2, 3)))
        return logits


MODELS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "mlp": (MLP, (12,)),
    "groupnorm": (lambda: Residual(lambda channels: nn.GroupNorm(2, channels)), (3, 6, 6)),
    "batchnorm": (lambda: Residual(nn.BatchNorm2d), (3, 6, 6)),
}


class NoExchange(Strategy):
    """The negative control: every rank trains alone."""

    def exchange(self) -> None:
        self.gradients()


@dataclass(frozen=True)
class Case:
    """One short training; `strategy` None is the negative control."""

    model: str
    strategy: AnyStrategy | None
    dtype: torch.dtype = torch.float64
    emulated: bool = False

    @property
    def servers(self) -> int:
        return self.strategy.servers_beside if self.strategy else 0


CASES: dict[str, Case] = {
    **{f"{name} {model}": Case(model, strategy) for name, strategy in EXACT.items() for model in MODELS},
    **{f"{name} mlp": Case("mlp", strategy) for name, strategy in ROUNDED.items()},
    **{f"no exchange {model}": Case(model, None) for model in MODELS},
}
FURTHER_RANKS = 3
FURTHER_CASES: dict[str, Case] = {
    **{f"{name} float32": Case("mlp", strategy, torch.float32) for name, strategy in EXACT.items()},
    **{f"{name} bfloat16": Case("mlp", strategy, torch.bfloat16) for name, strategy in EXACT.items()},
    **{f"{name} emulated": Case("groupnorm", strategy, emulated=True) for name, strategy in EXACT.items()},
}


def cases_of(ranks: int) -> dict[str, Case]:
    """What is trained with so many ranks."""
    return CASES | FURTHER_CASES if ranks == FURTHER_RANKS else CASES


def make_model(name: str, seed: int, dtype: torch.dtype) -> nn.Module:
    torch.manual_seed(seed)
    return MODELS[name][0]().to(dtype)


def make_batch(name: str, step: int, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(1000 + step)
    x = torch.randn(GLOBAL_BATCH, *MODELS[name][1], generator=generator, dtype=torch.float64)
    return x.to(dtype), torch.randint(CLASSES, (GLOBAL_BATCH,), generator=generator)


def make_optimiser(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=99.0, momentum=0.9, weight_decay=0.01)


def rate(step: int) -> float:
    return 0.1 / (1 + step)


@functools.cache
def reference(model_name: str, ranks: int) -> list[torch.Tensor]:
    """Parameters after training in one process on the global batch, in float64.

    BatchNorm sees one rank's share at a time ("ghost batches"), as on a rank.
    """
    model = make_model(model_name, 0, torch.float64)
    optimiser = make_optimiser(model.parameters())
    shares = ranks if model_name == "batchnorm" else 1
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


def train(case: Case, world: World) -> Any:
    """A rank's parameters after training, or the number of steps that a server served."""
    model = make_model(case.model, seed=world.rank, dtype=case.dtype)  # only rank 0 has the right weights
    strategy = build(case.strategy, world) if case.strategy else NoExchange(None, world)
    module = strategy.prepare(emulate(model, 0.01) if case.emulated else model, make_optimiser)
    if world.is_server:
        return strategy.serve(rate)
    for step in range(STEPS):
        x, y = (part.chunk(world.ranks)[world.rank] for part in make_batch(case.model, step, case.dtype))
        strategy.set_rate(rate(step))
        strategy.optimiser.zero_grad(set_to_none=True)
        functional.cross_entropy(module(x).float() if case.dtype == torch.bfloat16 else module(x), y).backward()
        strategy.exchange()
        strategy.update()
    strategy.finish()
    return [parameter.detach().clone() for parameter in model.parameters()]


def process_main(index: int, ranks: int, folder: Path) -> None:
    """One process: all cases with no server, then with one, then with two, each number in a process group of its own."""
    # A collection of all that the fork server has imported would copy it page by page, for half a second.
    gc.freeze()
    torch.set_num_threads(1)
    if "lo" in [name for _, name in socket.if_nameindex()]:
        os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    results: dict[str, Any] = {}
    for servers in SERVERS:
        if index >= ranks + servers:
            continue
        store = dist.FileStore(str(folder / f"rendezvous{servers}"), ranks + servers)
        dist.init_process_group("gloo", store=store, rank=index, world_size=ranks + servers)
        workers = dist.new_group(list(range(ranks)))
        world = World(index, ranks, servers, torch.device("cpu"), ranks, workers)  # type: ignore[arg-type]
        for name, case in cases_of(ranks).items():
            if case.servers == servers:
                results[name] = train(case, world)
        dist.barrier()
        dist.destroy_process_group()
    torch.save(results, folder / f"{index}.pt")


@pytest.fixture(scope="module", params=RANKS, ids=lambda ranks: f"{ranks} ranks")
def trained(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[int, Any]]:
    """The number of ranks, and the result of every case by name and process."""
    ranks: int = request.param
    folder = tmp_path_factory.mktemp(f"ranks{ranks}")
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(PRELOAD)
    processes: list[BaseProcess] = [
        context.Process(target=process_main, args=(index, ranks, folder)) for index in range(ranks + max(SERVERS))
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


def difference(left: list[torch.Tensor], right: list[torch.Tensor]) -> float:
    """The largest absolute difference of any parameter."""
    return max(float((a.detach().double() - b.detach().double()).abs().max()) for a, b in zip(left, right, strict=True))


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("strategy", EXACT)
def test_an_exact_strategy_gives_the_weights_of_one_process(trained: Any, strategy: str, model: str) -> None:
    ranks, results = trained
    for rank in range(ranks):
        assert difference(results[rank][f"{strategy} {model}"], reference(model, ranks)) < 1e-12


@pytest.mark.parametrize("model", MODELS)
def test_ranks_that_exchange_nothing_fail_the_same_comparison(trained: Any, model: str) -> None:
    ranks, results = trained
    differences = [difference(results[rank][f"no exchange {model}"], reference(model, ranks)) for rank in range(ranks)]
    assert min(differences) > 1e-4 if ranks > 1 else max(differences) < 1e-12


@pytest.mark.parametrize(("compression", "bound"), [("fp16", 1e-3), ("bf16", 1e-2)])
def test_compression_rounds_a_little_and_not_nothing(trained: Any, compression: str, bound: float) -> None:
    ranks, results = trained
    assert 1e-7 < difference(results[0][f"{compression} mlp"], reference("mlp", ranks)) < bound


@pytest.mark.parametrize("trained", [FURTHER_RANKS], indirect=True)
@pytest.mark.parametrize(("dtype", "bound"), [("float32", 1e-5), ("bfloat16", 0.1)])
@pytest.mark.parametrize("strategy", EXACT)
def test_narrower_models_come_as_near_as_their_type_allows(
    trained: Any, strategy: str, dtype: str, bound: float
) -> None:
    ranks, results = trained
    assert difference(results[0][f"{strategy} {dtype}"], reference("mlp", ranks)) < bound


def test_all_ranks_end_with_the_same_bits(trained: Any) -> None:
    ranks, results = trained
    for name, case in cases_of(ranks).items():
        for rank in range(ranks if case.strategy else 0):
            assert difference(results[rank][name], results[0][name]) == 0.0, name


def test_servers_serve_every_step_and_end_when_told(trained: Any) -> None:
    ranks, results = trained
    served = {
        results[server][name] for name, case in cases_of(ranks).items() for server in range(ranks, ranks + case.servers)
    }
    assert served == {STEPS}


@pytest.mark.parametrize("trained", [FURTHER_RANKS], indirect=True)
@pytest.mark.parametrize("strategy", EXACT)
def test_a_stand_in_for_compute_leaves_nothing_but_weight_decay(trained: Any, strategy: str) -> None:
    ranks, results = trained
    model = make_model("groupnorm", 0, torch.float64)
    optimiser = make_optimiser(model.parameters())
    for step in range(STEPS):
        for group in optimiser.param_groups:
            group["lr"] = rate(step)
        for parameter in model.parameters():
            parameter.grad = torch.zeros_like(parameter)
        optimiser.step()
    assert difference(results[ranks - 1][f"{strategy} emulated"], list(model.parameters())) < 1e-12


@pytest.mark.parametrize("model", MODELS)
def test_single_is_training_in_one_process(model: str) -> None:
    world = World(0, 1, 0, torch.device("cpu"), 1, None)
    assert difference(train(Case(model, Single(name="single")), world), reference(model, 1)) < 1e-12
