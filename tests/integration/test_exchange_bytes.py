"""The bytes that exchanges really send over gloo, counted by the kernel per TCP connection, against the cost formulas.

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

from scalestudy.strategies import cost
from scalestudy.strategies.base import World
from scalestudy.strategies.build import build
from scalestudy.strategies.catalogue import HalvingDoubling, Hierarchical, Ring, StrategySpec, TwoDimensional
from scalestudy.strategies.nodes import all_gather, reduce_scatter
from tests.integration.forked import on_processes

SIZE = 2**20
"""Bytes of the buffer."""
RANKS, EXCHANGES = 8, 5
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
STRATEGIES: dict[str, StrategySpec] = {
    "ring": Ring(name="ring"),
    "halving_doubling": HalvingDoubling(name="halving_doubling"),
    "hierarchical": Hierarchical(name="hierarchical"),
    "two_dimensional": TwoDimensional(name="two_dimensional"),
}


def _rank(rank: int, folder: Path) -> dict[str, torch.Tensor]:
    """By exchange, the bytes that this rank sent and received: medians of EXCHANGES.

    A few hundred bytes of barriers included. On a busy host a count may lack a connection that is there.
    """
    dist.init_process_group("gloo", store=dist.FileStore(str(folder / "store"), RANKS), rank=rank, world_size=RANKS)
    group = dist.new_group(list(range(RANKS)))
    world = World(rank, RANKS, 0, torch.device("cpu"), RANKS, group)  # type: ignore[arg-type]
    exchanges = {name: functools.partial(call, group) for name, call in COLLECTIVES.items()}
    exchanges |= {name: functools.partial(_summed, build(spec, world)) for name, spec in STRATEGIES.items()}
    return {name: _bytes_of(exchange) for name, exchange in exchanges.items()}


def _summed(strategy: Any, buffer: torch.Tensor) -> None:
    strategy.sum(buffer)
    assert bool((buffer == RANKS).all()), "summed wrongly"


def _bytes_of(exchange: Callable[[torch.Tensor], Any]) -> torch.Tensor:
    counts = []
    for _ in range(1 + EXCHANGES):  # the first also connects
        buffer = torch.ones(SIZE // 4)
        dist.barrier()
        before = tcp_bytes()
        exchange(buffer)
        dist.barrier()
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
    formula = getattr(cost, name)(SIZE, RANKS, ONE_BYTE_PER_S)

    assert busiest(counted, name) == pytest.approx(formula, rel=0.01)


def test_a_leader_receives_to_reduce_and_sends_to_broadcast_what_the_formula_of_the_hierarchy_adds(
    counted: Any,
) -> None:
    own_part_of_the_ring = (RANKS - 1) / RANKS * SIZE  # sent while the leader receives, so it takes no time of its own
    seconds = cost.hierarchical(SIZE, 1, RANKS, ONE_BYTE_PER_S, NO_TIME)
    assert int(counted[0]["hierarchical"].sum()) - own_part_of_the_ring == pytest.approx(seconds, rel=0.01)


def test_two_dimensions_send_inside_a_node_the_bytes_of_the_formula(counted: Any) -> None:
    formula = cost.two_dimensional(SIZE, 1, RANKS, ONE_BYTE_PER_S, NO_TIME)

    assert busiest(counted, "two_dimensional") == pytest.approx(formula, rel=0.01)
