"""Time of an exchange, by formula: latency and bandwidth of each algorithm. Imports no torch.

Throughout, `size` is the buffer in bytes, of which every rank has one, and all formulas are in seconds. A link carries
both directions at the same time. Nothing here is fitted. The bytes exchanged inside a node are those that
gloo sends (tests/integration/test_exchange_bytes.py counts them); NCCL's trees and rings send fewer. Over gloo a message
takes two latencies, since its receiver announces itself first (benchmarks/exchange.py). Summing takes no time.

- Thakur, Rabenseifner, Gropp: Optimization of Collective Communication Operations in MPICH, IJHPCA 19(1), 2005
- Patarasuk, Yuan: Bandwidth Optimal All-reduce Algorithms for Clusters of Workstations, JPDC 69(2), 2009
- Akiba et al.: ChainerMN, arXiv 1710.11351
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True)
class Link:
    """The link between two ranks, or two nodes."""

    bytes_per_s: float
    """In each direction."""
    latency_s: float = 0.0
    """Per message."""

    def time(self, messages: float, sent: float) -> float:
        """Seconds for so many messages one after the other, and so many bytes sent."""
        return messages * self.latency_s + sent / self.bytes_per_s

    def message_s(self, size: float) -> float:
        """Seconds for one message of `size` bytes; nothing takes no time."""
        return self.time(1, size) if size else 0.0


AllReduce = Callable[[float, int, Link], float]
"""Seconds of an all-reduce: size, ranks, link."""


def ring(size: float, ranks: int, link: Link) -> float:
    """2 (p-1) messages, 2 (p-1)/p of the buffer (Patarasuk and Yuan; Thakur et al., 4.5)."""
    share = (ranks - 1) / ranks
    return link.time(2 * (ranks - 1), 2 * share * size)


def halving_doubling(size: float, ranks: int, link: Link) -> float:
    """2 log2 p messages, 2 (p-1)/p of the buffer (Thakur et al., 4.5, "Rabenseifner").

    Where p is not a power of two, the pairs that act as one first and last send a whole buffer.
    """
    power = 1 << (ranks.bit_length() - 1)
    folded = link.time(2, 2 * size) if ranks > power else 0.0
    share = (power - 1) / power
    return folded + link.time(2 * math.log2(power), 2 * share * size)


def parameter_server(size: float, workers: int, servers: int, link: Link) -> float:
    """A push and a pull; the servers' links carry every worker's gradients, unless the workers' own are the narrower."""
    load = max(workers / servers, 1.0) * size
    return link.time(2, 2 * load)


def flat_ring(size: float, nodes: int, per_node: int, inside: Link, between: Link) -> float:
    """A ring through all ranks, node by node: each node's link is one edge of it, at the pace of the slower link."""
    ranks = nodes * per_node
    slower = between if nodes > 1 and between.bytes_per_s <= inside.bytes_per_s else inside
    return ring(size, ranks, slower)


def flat_halving_doubling(size: float, nodes: int, per_node: int, inside: Link, between: Link) -> float:
    """The first rounds, with the largest parts, stay in the node; in later ones its ranks share the node's link.

    Each round r (from 0) sends size / 2^(r+1), in the node while 2^r < `per_node`. Where ranks are no power of two, pairs
    act as one, as in `halving_doubling`.
    """
    ranks = nodes * per_node
    power = 1 << (ranks.bit_length() - 1)
    seconds = (between if nodes > 1 else inside).time(2, 2 * size) if ranks > power else 0.0
    for round_ in range(round(math.log2(power))):
        part = size / 2 ** (round_ + 1)
        if 2**round_ < per_node:
            seconds += inside.time(2, 2 * part)
        else:
            seconds += between.time(2, 2 * part * per_node)
    return seconds


def reduce_to_leader(size: float, ranks: int, link: Link) -> float:
    """gloo's: a ring that leaves each rank one part of the sum, then all parts to the leader, which has the busiest link."""
    return ring(size, ranks, link)


def broadcast(size: float, ranks: int, link: Link) -> float:
    """gloo's: a binomial tree, in which the leader sends the whole buffer ⌈log2 p⌉ times."""
    rounds = math.ceil(math.log2(ranks))
    return link.time(rounds, rounds * size)


def reduce_scatter(size: float, ranks: int, link: Link) -> float:
    """gloo's: an all-reduce of which each rank keeps its part, so twice the bytes of a ring's first half."""
    return ring(size, ranks, link)


def all_gather(size: float, ranks: int, link: Link) -> float:
    """Each part once around the ring: p-1 messages, (p-1)/p of the buffer."""
    return link.time(ranks - 1, (ranks - 1) / ranks * size)


def hierarchical(size: float, nodes: int, per_node: int, inside: Link, between: Link, outer: AllReduce = ring) -> float:
    """Reduce to the leader, all-reduce between leaders, broadcast (Akiba et al.)."""
    within = reduce_to_leader(size, per_node, inside) + broadcast(size, per_node, inside)
    return within + (outer(size, nodes, between) if nodes > 1 else 0.0)


def two_dimensional(
    size: float, nodes: int, per_node: int, inside: Link, between: Link, outer: AllReduce = ring
) -> float:
    """Reduce-scatter, all-reduce of each part, all-gather (Akiba et al.); a node's ranks share its link."""
    within = reduce_scatter(size, per_node, inside) + all_gather(size, per_node, inside)
    shared = Link(between.bytes_per_s / per_node, between.latency_s)
    return within + (outer(size / per_node, nodes, shared) if nodes > 1 else 0.0)
