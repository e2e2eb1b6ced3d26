"""The bytes that exchanges and steps really send over gloo, counted by the kernel per TCP connection, against formulas.

Latency and summing are not tested: messages over loopback have no latency to speak of, and gloo cuts buffers as it likes.
"""

from __future__ import annotations

import functools
import os
import socket
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional

from scalestudy.strategies import cost
from scalestudy.strategies.base import World
from scalestudy.strategies.build import build
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
from scalestudy.strategies.fsdp import SUPPORTED
from scalestudy.strategies.nodes import all_gather, reduce_scatter
from tests.integration.forked import on_processes
from tests.integration.trainings import Case, make_optimiser, rate, train_in_worlds

SIZE = 2**20
"""Bytes of the buffer."""
RANKS, EXCHANGES = 8, 5
LAYERS, WIDTH = 4, 256
"""Of the model that is trained: as large."""
pytestmark = pytest.mark.slow
ONE_BYTE_PER_S = cost.Link(bytes_per_s=1.0)
NO_TIME = cost.Link(bytes_per_s=1e30)
BYTES_RECEIVED, BYTES_SENT, BYTES_SENT_AGAIN = 128, 200, 208
"""Where `struct tcp_info` (linux/tcp.h) has tcpi_bytes_received, tcpi_bytes_sent and tcpi_bytes_retrans, these two since
Linux 4.19. What is sent again, as on a busy host, counts in bytes_sent too."""


def tcp_bytes() -> dict[str, tuple[int, int]]:
    """Bytes sent and received by each TCP connection of this process; what was sent again counts once."""
    found = {}
    for link in Path("/proc/self/fd").iterdir():
        try:
            name = str(link.readlink())
            if not name.startswith("socket:"):
                continue
            connection = socket.socket(fileno=os.dup(int(link.name)))
        except OSError:
            continue
        with connection:
            if connection.family not in (socket.AF_INET, socket.AF_INET6) or connection.type != socket.SOCK_STREAM:
                continue
            info = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 256)
            if len(info) >= BYTES_SENT_AGAIN + 8:
                sent, received, again = (
                    struct.unpack_from("Q", info, place)[0] for place in (BYTES_SENT, BYTES_RECEIVED, BYTES_SENT_AGAIN)
                )
                found[name] = (sent - again, received)
    return found


def parts(buffer: torch.Tensor, group: Any) -> torch.Tensor:
    return buffer.new_empty(len(buffer) // dist.get_world_size(group))


COLLECTIVES: dict[str, Callable[[Any, torch.Tensor], Any]] = {
    "reduce_to_leader": lambda group, x: dist.reduce(x, group=group, group_dst=0),
    "broadcast": lambda group, x: dist.broadcast(x, group=group, group_src=0),
    "reduce_scatter": lambda group, x: reduce_scatter(parts(x, group), x, group=group),
    "all_gather": lambda group, x: all_gather(x, parts(x, group), group=group),
}
"""torch's collectives that have a formula in cost.py, by its name."""
STRATEGIES: dict[str, AnyStrategy] = {
    "ring": Ring(name="ring"),
    "halving_doubling": HalvingDoubling(name="halving_doubling"),
    "hierarchical": Hierarchical(name="hierarchical"),
    "two_dimensional": TwoDimensional(name="two_dimensional"),
}
STEPS: dict[str, tuple[AnyStrategy, float]] = {
    "allreduce": (AllReduce(name="allreduce"), 6),
    "allreduce in half precision": (AllReduce(name="allreduce", compression="fp16"), 3),
    "ring overlapped": (Ring(name="ring", schedule="overlapped"), 6),
    # In each of two nodes 1 to reduce-scatter, a half to the leader, 1 to broadcast; 2 between them.
    "hierarchical": (STRATEGIES["hierarchical"], 7),
    # In each of two nodes 2 to scatter, 1 to gather; 2 halves between them.
    "two_dimensional": (STRATEGIES["two_dimensional"], 8),
    "parameter_server": (ParameterServer(name="parameter_server"), 8),
    "parameter_server with 2 servers": (ParameterServer(name="parameter_server", servers=2), 8),
    "async_parameter_server": (AsyncParameterServer(name="async_parameter_server"), 8),
    # 2 (p - 1) to scatter, p - 1 to gather.
    "zero1": (Zero1(name="zero1"), 9),
}
"""A strategy, and how many buffers of all gradients 4 ranks and their servers send in a step: an all-reduce 2 (p - 1)."""
if SUPPORTED:
    # p - 1 to gather in forward and in backward; gloo scatters by an all-reduce.
    STEPS["fsdp"] = (FSDP(name="fsdp", unit_mib=0), 12)


def _rank(rank: int, folder: Path) -> dict[str, torch.Tensor]:
    """By exchange, and by strategy of a step, the bytes that this rank sent and received: medians of EXCHANGES.

    A few hundred bytes of barriers included. On a busy host a count may lack a connection that is there.
    """
    dist.init_process_group("gloo", store=dist.FileStore(str(folder / "store"), RANKS), rank=rank, world_size=RANKS)
    group = dist.new_group(list(range(RANKS)))
    world = World(rank, RANKS, 0, torch.device("cpu"), RANKS, group)  # type: ignore[arg-type]
    exchanges = {name: functools.partial(call, group) for name, call in COLLECTIVES.items()}
    exchanges |= {name: functools.partial(_summed, build(spec, world)) for name, spec in STRATEGIES.items()}
    counted = {name: _bytes_of(exchange, group) for name, exchange in exchanges.items()}
    dist.destroy_process_group()
    steps = {f"step of {name}": Case("", strategy, work=_bytes_of_a_step) for name, (strategy, _) in STEPS.items()}
    return counted | train_in_worlds(rank, folder, {4: steps})[4]


def _bytes_of_a_step(case: Case, world: World, _folder: Path) -> Any:
    strategy: Any = build(case.strategy, world)  # type: ignore[arg-type]  # cases of this file have one
    model = nn.Sequential(*(nn.Linear(WIDTH, WIDTH) for _ in range(LAYERS)))
    module = strategy.prepare(model, make_optimiser)
    if world.is_server:
        return strategy.serve(rate)

    def step(_buffer: torch.Tensor) -> None:
        strategy.forward_backward(module, torch.ones(2, WIDTH), torch.arange(2), functional.cross_entropy)
        strategy.exchange()
        strategy.update()

    counted = _bytes_of(step, world.workers)
    strategy.finish()
    return counted


def _summed(strategy: Any, buffer: torch.Tensor) -> None:
    strategy.sum(buffer)
    assert bool((buffer == RANKS).all()), "summed wrongly"


def _bytes_of(exchange: Callable[[torch.Tensor], Any], group: Any) -> torch.Tensor:
    counts = []
    for _ in range(1 + EXCHANGES):  # the first also connects
        buffer = torch.ones(SIZE // 4)
        dist.barrier(group=group)
        before = tcp_bytes()
        exchange(buffer)
        dist.barrier(group=group)
        after = tcp_bytes()
        each = [[now - then for now, then in zip(after[key], before.get(key, (0, 0)), strict=True)] for key in after]
        counts.append(torch.tensor(each).sum(dim=0))
    return torch.stack(counts[1:]).median(dim=0).values


@pytest.fixture(scope="module")
def counted(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, torch.Tensor]]:
    """What each rank counted."""
    folder = tmp_path_factory.mktemp("bytes")
    return on_processes(RANKS, folder, _rank, folder)


def busiest(counted: list[dict[str, torch.Tensor]], name: str) -> int:
    """Bytes of the busiest rank in its busier direction."""
    return max(int(counts[name].max()) for counts in counted)


@pytest.mark.parametrize("name", ["ring", "halving_doubling", *COLLECTIVES])
def test_the_busiest_rank_sends_or_receives_the_bytes_of_the_formula(counted: Any, name: str) -> None:
    assert busiest(counted, name) == pytest.approx(getattr(cost, name)(SIZE, RANKS, ONE_BYTE_PER_S), rel=0.01)


def test_inside_a_node_two_levels_send_the_bytes_of_their_formulas(counted: Any) -> None:
    own_part_of_the_ring = (RANKS - 1) / RANKS * SIZE  # sent while the leader receives, so it takes no time of its own
    leader_bytes = int(counted[0]["hierarchical"].sum()) - own_part_of_the_ring
    assert leader_bytes == pytest.approx(cost.hierarchical(SIZE, 1, RANKS, ONE_BYTE_PER_S, NO_TIME), rel=0.01)
    formula = cost.two_dimensional(SIZE, 1, RANKS, ONE_BYTE_PER_S, NO_TIME)
    assert busiest(counted, "two_dimensional") == pytest.approx(formula, rel=0.01)


@pytest.mark.parametrize("name", STEPS)
def test_a_step_sends_what_its_algorithm_sends_and_nothing_beside(counted: Any, name: str) -> None:
    strategy, buffers = STEPS[name]
    of_ranks = sum(counts[f"step of {name}"] for counts in counted[:4])
    # A rank that talks to servers alone sends and receives all that there is.
    total = int(of_ranks.sum()) if strategy.servers_beside else int(of_ranks[0])
    assert total / (4 * LAYERS * WIDTH * (WIDTH + 1)) == pytest.approx(buffers, rel=0.02)
