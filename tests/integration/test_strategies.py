"""Every strategy against training in one process, with real processes and real messages (gloo on loopback)."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
import torch

from scalestudy.strategies import fsdp
from scalestudy.strategies.catalogue import (
    FSDP,
    AllReduce,
    AnyStrategy,
    AsyncParameterServer,
    HalvingDoubling,
    Hierarchical,
    ParameterServer,
    Ring,
    TwoDimensional,
    Zero1,
)
from tests.integration.forked import on_processes
from tests.integration.trainings import (
    RANKS,
    STEPS,
    Case,
    difference,
    loss_of,
    make_model,
    make_optimiser,
    rate,
    reference,
    share_of,
    stop_and_resume,
    train_in_worlds,
)

pytestmark = pytest.mark.usefixtures("one_thread")
EXACT: dict[str, AnyStrategy] = {
    "allreduce": AllReduce(name="allreduce"),
    "allreduce in small buckets": AllReduce(name="allreduce", bucket_mib=0.005),
    "halving_doubling flat": HalvingDoubling(name="halving_doubling"),
    "halving_doubling per parameter": HalvingDoubling(name="halving_doubling", schedule="per_parameter"),
    "halving_doubling overlapped": HalvingDoubling(name="halving_doubling", schedule="overlapped", bucket_mib=0.005),
    "ring flat": Ring(name="ring"),
    "ring per parameter": Ring(name="ring", schedule="per_parameter"),
    "ring overlapped": Ring(name="ring", schedule="overlapped"),
    "hierarchical": Hierarchical(name="hierarchical"),
    "hierarchical overlapped": Hierarchical(
        name="hierarchical", outer="halving_doubling", schedule="overlapped", bucket_mib=0.005
    ),
    "two_dimensional": TwoDimensional(name="two_dimensional"),
    "two_dimensional halving_doubling per parameter": TwoDimensional(
        name="two_dimensional", outer="halving_doubling", schedule="per_parameter"
    ),
    "parameter_server with 1 server": ParameterServer(name="parameter_server", servers=1),
    "parameter_server with 2 servers": ParameterServer(name="parameter_server", servers=2),
    "zero1": Zero1(name="zero1"),
}
if fsdp.SUPPORTED:
    EXACT["fsdp"] = FSDP(name="fsdp", unit_mib=0)
ASYNC: dict[str, AnyStrategy] = {
    f"async with {servers} servers": AsyncParameterServer(name="async_parameter_server", servers=servers)
    for servers in (1, 2)
}
ROUNDED: dict[str, AnyStrategy] = {
    "fp16": AllReduce(name="allreduce", compression="fp16"),
    "bf16": AllReduce(name="allreduce", compression="bf16"),
}

STATEFUL = [
    *("halving_doubling overlapped", "parameter_server with 2 servers", "zero1"),
    *["fsdp"] * fsdp.SUPPORTED,
]
"""Strategies that keep or gather their state in their own way, and one that does not."""
VARIED: dict[str, Case] = {
    **{f"{name} in two parts": Case("mlp", EXACT[name], parts=2) for name in ("allreduce", "halving_doubling flat")},
    **{
        f"{name}, 3 ranks per node": Case("mlp", EXACT[name], per_node=3)
        for name in ("hierarchical", "two_dimensional")
    },
    **{f"{name} stopped": Case("batchnorm", EXACT[name], work=stop_and_resume) for name in STATEFUL},
    "async stopped": Case("mlp", ASYNC["async with 2 servers"], work=stop_and_resume),
}
"""What gives the weights of one process as well; an asynchronous training only of one rank."""
CASES = VARIED | {f"{name} mlp": Case("mlp", strategy) for name, strategy in (ROUNDED | ASYNC).items()}
STOPPED_RANKS = {"async stopped": (1,)} | {f"{name} stopped": (1, 3) for name in STATEFUL}


def models_of(ranks: int) -> list[str]:
    """An MLP everywhere, and a residual network on one rank and on two nodes: an exchange depends on ranks, not on models."""
    return [model for model, trained in {"mlp": RANKS, "batchnorm": (1, 2)}.items() if ranks in trained]


def cases_of(ranks: int) -> dict[str, Case]:
    """What is trained with so many ranks."""
    compared: dict[str, AnyStrategy | None] = {**EXACT, "no exchange": None}
    cases = {f"{name} {model}": Case(model, compared[name]) for name in compared for model in models_of(ranks)}
    cases |= CASES
    return {name: case for name, case in cases.items() if case.fits(ranks) and ranks in STOPPED_RANKS.get(name, RANKS)}


@pytest.fixture(scope="module")
def of_all_ranks(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> list[dict[int, Any]]:
    """Of every process the results by number of ranks: the same processes train in smaller and larger groups.

    Only numbers of ranks that a selected test asks for.
    """
    asked = {item.callspec.params.get("trained") for item in request.session.items if hasattr(item, "callspec")}
    folder, cases = tmp_path_factory.mktemp("ranks"), {ranks: cases_of(ranks) for ranks in RANKS if ranks in asked}
    count = max(ranks + case.servers for ranks, of_these in cases.items() for case in of_these.values())
    return on_processes(count, folder, train_in_worlds, folder, cases)


@pytest.fixture(scope="module", params=RANKS, ids=lambda ranks: f"{ranks} ranks")
def trained(request: pytest.FixtureRequest, of_all_ranks: list[dict[int, Any]]) -> tuple[int, Any]:
    """The number of ranks, and the result of every case by name and process."""
    return request.param, [results[request.param] for results in of_all_ranks]


@pytest.mark.parametrize("strategy", EXACT)
def test_an_exact_strategy_gives_the_weights_of_one_process(trained: Any, strategy: str) -> None:
    ranks, results = trained
    for model in models_of(ranks):
        for rank in range(ranks):
            assert difference(results[rank][f"{strategy} {model}"], reference(model, ranks)) < 1e-12, model


def test_nodes_of_three_ranks_batches_in_parts_and_stops_give_them_too(trained: Any) -> None:
    ranks, results = trained
    for name, case in cases_of(ranks).items():
        if name in VARIED:
            for rank in range(ranks):
                assert difference(results[rank][name], reference(case.model, ranks)) < 1e-12, name


def test_ranks_that_exchange_nothing_fail_the_same_comparison(trained: Any) -> None:
    ranks, results = trained
    for model in models_of(ranks):
        expected, alone = reference(model, ranks), [results[rank][f"no exchange {model}"] for rank in range(ranks)]
        differences = [difference(weights, expected) for weights in alone]
        assert min(differences) > 1e-4 if ranks > 1 else max(differences) < 1e-12, model


@pytest.mark.parametrize(("compression", "bound"), [("fp16", 1e-3), ("bf16", 1e-2)])
def test_compression_rounds_a_little_and_not_nothing(trained: Any, compression: str, bound: float) -> None:
    ranks, results = trained
    assert 1e-7 < difference(results[0][f"{compression} mlp"], reference("mlp", ranks)) < bound


def test_all_ranks_end_with_the_same_bits(trained: Any) -> None:
    ranks, results = trained
    for name, case in cases_of(ranks).items():
        for rank in range(ranks if case.strategy else 0):
            # Of an asynchronous training, workers compare what they fetched at the end.
            assert difference(results[rank][name], results[0][name]) == 0.0, name


def test_servers_serve_every_step_and_end_with_the_training(trained: Any) -> None:
    ranks, results = trained
    served = {
        results[server][name][0]
        for name, case in cases_of(ranks).items()
        for server in range(ranks, ranks + case.servers)
        if not case.work
    }
    assert served == {STEPS}


@pytest.mark.parametrize("servers", [1, 2])
def test_an_asynchronous_training_is_the_one_that_its_record_tells(trained: Any, servers: int) -> None:
    ranks, results = trained
    name = f"async with {servers} servers mlp"
    records = [results[ranks + server][name][1] for server in range(servers)]
    # Indices of each server's parameters: largest first, each to the server with the fewest elements.
    shares = {1: [list(range(13))], 2: [[0, 2, 3, 4, 5, 8, 9, 12], [1, 6, 7, 10, 11]]}[servers]
    assert difference(results[0][name], replayed(ranks, shares, [record["worker"] for record in records])) < 1e-12


@pytest.mark.parametrize("servers", [1, 2])
def test_staleness_counts_the_updates_that_others_made_meanwhile(trained: Any, servers: int) -> None:
    ranks, results = trained
    for server in range(servers):
        record = results[ranks + server][f"async with {servers} servers mlp"][1]
        workers = record["worker"]
        assert Counter(workers) == dict.fromkeys(range(ranks), STEPS)
        last = dict.fromkeys(range(ranks), -1)
        for update, (worker, staleness) in enumerate(zip(workers, record["staleness"], strict=True)):
            others = [other for other in workers[last[worker] + 1 : update] if other != worker]
            assert staleness == len(others)
            last[worker] = update
        assert sorted(record["time_s"]) == record["time_s"]


def replayed(ranks: int, shares: list[list[int]], orders: list[list[int]]) -> list[torch.Tensor]:
    """The weights that one process comes to, if worker after worker in each server's order updates its share.

    A worker computes each gradient on what the servers held when they had applied its last one.
    """
    model = make_model("mlp", 0, torch.float64)
    weights = list(model.parameters())
    optimisers = [make_optimiser([weights[index] for index in share]) for share in shares]
    seen = [[weight.detach().clone() for weight in weights] for _ in range(ranks)]
    gradients: dict[tuple[int, int], list[torch.Tensor]] = {}
    applied, done = [[0] * ranks for _ in shares], [0] * len(shares)
    while any(position < len(order) for position, order in zip(done, orders, strict=True)):
        for server, share in enumerate(shares):
            if done[server] == len(orders[server]):
                continue
            worker = int(orders[server][done[server]])
            push = applied[server][worker]
            if any(others[worker] < push for others in applied):
                continue  # another server has not answered this worker's last push
            if (worker, push) not in gradients:
                gradients[worker, push] = gradient_at(seen[worker], worker, ranks, push)
            for index in share:
                weights[index].grad = gradients[worker, push][index].clone()
            for group in optimisers[server].param_groups:
                group["lr"] = rate(done[server] // ranks)
            optimisers[server].step()
            applied[server][worker] += 1
            done[server] += 1
            for index in share:
                seen[worker][index] = weights[index].detach().clone()
    return [weight.detach() for weight in weights]


def gradient_at(weights: list[torch.Tensor], worker: int, ranks: int, step: int) -> list[torch.Tensor]:
    """The gradient of a worker's share of a step's batch at these weights."""
    model = make_model("mlp", 0, torch.float64)
    with torch.no_grad():
        for parameter, weight in zip(model.parameters(), weights, strict=True):
            parameter.copy_(weight)
    x, y = share_of(worker, ranks, "mlp", step, torch.float64)
    loss_of(model(x), y).backward()  # type: ignore[no-untyped-call]
    return [torch.zeros_like(p) if p.grad is None else p.grad for p in model.parameters()]
