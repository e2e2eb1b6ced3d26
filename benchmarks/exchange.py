"""Exchanges against their like, as paired ratios; and against their formulas on emulated networks.

    python benchmarks/exchange.py peers     allreduce and horovod against the bare libraries, halving-doubling against gloo
    python benchmarks/exchange.py nodes     all-reduces on 4 and 8 emulated nodes against strategies/cost.py
    python benchmarks/exchange.py all       both; their tables go to docs/measured/exchange.txt

A set is 15 alternations of both sides in the same processes, in an order that flips; its ratio is their median. The ratio
differs between processes, and from minute to minute, by more than within them: so only sets count as independent, the peers
take turns set after set, and the interval is Student's t over the logarithms of the sets' ratios. What is built second is
some 2 % faster, and of two like sides too: in one set of processes ours is built first, in the next the other's. It continues
until half the width of the interval is at most 3 %, and for at least ten sets; `--cap` ends it later. A limit holds where
the whole interval lies below it. The ratio of every set is printed, so that the interval can be computed again.
`nodes` needs Linux, and root or user namespaces.
"""

from __future__ import annotations

import argparse
import datetime
import itertools
import json
import multiprocessing
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any, Literal

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from scalestudy.emulation.network import EmulatedNode, emulated_nodes
from scalestudy.errors import Skipped
from scalestudy.strategies import cost
from scalestudy.strategies.allreduce.halving_doubling import SumByHalvingDoubling
from scalestudy.strategies.base import Strategy, World
from scalestudy.strategies.build import build, missing_build
from scalestudy.strategies.catalogue import AllReduce, Hierarchical, Horovod, TwoDimensional
from scalestudy.strategies.catalogue import HalvingDoubling as HalvingDoublingStrategy
from scalestudy.strategies.catalogue import Ring as RingStrategy
from scalestudy.strategies.nodes import everyone

sys.path.insert(0, str(Path(__file__).parent.parent))

from benchmarks.ratios import ratio_of_sets

ALTERNATIONS, LEAST_SETS, HALF_WIDTH = 15, 10, 0.03
STEPS_PER_SIDE = 5
ETHERNET_PAYLOAD = 1448 / 1514
"""Share of an Ethernet frame (1500 bytes of IP, 14 of header, as Linux counts them) that TCP with timestamps carries."""
MIB_PER_S_OF_ALL = 64.0
"""Shared out evenly among the nodes: a few cores move what all of them send."""
NODE_SIZES_MIB = (4.0, 8.0)
LATENCY_S, SIZES_OF_LATENCY_MIB, WAYS = 0.01, (1 / 256,), 2
"""A latency that is far longer than a message's way through the kernel; a size that TCP sends at once, though it begins
slowly after each pause; and how often a message of gloo crosses the link, since its receiver announces itself first."""
SUMS = 10
"""Sums one after the other where there is a latency, since ranks leave a barrier up to one latency apart."""
REPEATS = 5
Side = Callable[[], None]


# Processes


def on_ranks(ranks: int, target: Callable[..., Any], *arguments: Any, nodes: Sequence[EmulatedNode] = ()) -> Any:
    """What rank 0 returns: `target(world, *arguments)` in one process per rank, on these nodes where there are any."""
    with tempfile.TemporaryDirectory(prefix="scalestudy-exchange-") as name:
        folder = Path(name)
        context = multiprocessing.get_context("fork")
        processes: list[BaseProcess] = [
            context.Process(target=_rank, args=(rank, ranks, folder, target, arguments, nodes)) for rank in range(ranks)
        ]
        for process in processes:
            process.start()
        for process in processes:
            process.join()
        if any(process.exitcode for process in processes):
            raise SystemExit(f"a rank failed: {[process.exitcode for process in processes]}")
        return json.loads((folder / "answer.json").read_text(encoding="utf-8"))


def _rank(
    rank: int,
    ranks: int,
    folder: Path,
    target: Callable[..., Any],
    arguments: tuple[Any, ...],
    nodes: Sequence[EmulatedNode],
) -> None:
    per_node = ranks // len(nodes) if nodes else ranks
    if nodes:
        nodes[rank // per_node].enter()
    else:
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    torch.set_num_threads(1)
    dist.init_process_group("gloo", store=dist.FileStore(str(folder / "store"), ranks), rank=rank, world_size=ranks)
    group = dist.new_group(list(range(ranks)))
    assert isinstance(group, dist.ProcessGroup)
    answer = target(World(rank, ranks, 0, torch.device("cpu"), per_node, group), *arguments)
    if rank == 0:
        (folder / "answer.json").write_text(json.dumps(answer), encoding="utf-8")
    dist.barrier()
    sys.stdout.flush()
    os._exit(0)  # threads of libraries are not waited for


# Paired ratios


def alternate(world: World, ours: Side, other: Side) -> list[float]:
    """Time of ours over time of the other, alternation by alternation, on the slowest rank's clock."""
    pairs: list[float] = []
    for side in (ours, other):
        _timed(world, side)
    for number in range(ALTERNATIONS):
        times = [_timed(world, side) for side in ((other, ours) if number % 2 else (ours, other))]
        pairs.append(times[1] / times[0] if number % 2 else times[0] / times[1])
    return pairs


def _timed(world: World, side: Side) -> float:
    dist.barrier(group=world.workers)
    begin = time.perf_counter()
    for _ in range(STEPS_PER_SIDE):
        side()
    seconds = torch.tensor(time.perf_counter() - begin)
    dist.all_reduce(seconds, dist.ReduceOp.MAX, group=world.workers)
    return float(seconds)


# Against peers


def small_network() -> nn.Module:
    """2.6 million parameters in ten layers."""
    torch.manual_seed(0)
    return nn.Sequential(*(nn.Linear(512, 512) for _ in range(10)))


def make_optimiser(parameters: Any) -> torch.optim.Optimizer:
    """SGD with momentum."""
    return torch.optim.SGD(parameters, lr=1e-3, momentum=0.9)


def step_of(strategy: Strategy, x: torch.Tensor) -> Side:
    """A step as the training loop makes it."""
    module = strategy.prepare(small_network(), make_optimiser)

    def step() -> None:
        strategy.forward_backward(module, x, x, nn.functional.mse_loss)
        strategy.exchange()
        strategy.update()

    return step


def plain_step(module: nn.Module, optimiser: Any, x: torch.Tensor) -> Side:
    """A step as the libraries' documentation has it."""

    def step() -> None:
        optimiser.zero_grad()
        nn.functional.mse_loss(module(x), x).backward()
        optimiser.step()

    return step


def both(ours_first: bool, ours: Callable[[], Side], other: Callable[[], Side]) -> tuple[Side, Side]:
    """Our side and the other, built in this order or the reverse."""
    if ours_first:
        return ours(), other()
    second = other()
    return ours(), second


def against_ddp(world: World, ours_first: bool) -> list[float]:
    """`allreduce` over bare DistributedDataParallel."""
    x = torch.randn(32, 512)

    def other() -> Side:
        module = DistributedDataParallel(small_network(), process_group=world.workers, gradient_as_bucket_view=True)
        return plain_step(module, make_optimiser(module.parameters()), x)

    return alternate(world, *both(ours_first, lambda: step_of(build(AllReduce(name="allreduce"), world), x), other))


def against_horovod(world: World, ours_first: bool) -> list[float]:
    """`horovod` over bare Horovod, in one Horovod of the same settings, which `build` starts."""
    x = torch.randn(32, 512)
    strategy = build(Horovod(name="horovod"), world)
    import horovod.torch as hvd

    def other() -> Side:
        module = small_network()
        names = [(f"bare.{name}", parameter) for name, parameter in module.named_parameters()]
        optimiser = hvd.DistributedOptimizer(make_optimiser(module.parameters()), named_parameters=names)
        hvd.broadcast_parameters(module.state_dict(), root_rank=0)
        return plain_step(module, optimiser, x)

    return alternate(world, *both(ours_first, lambda: step_of(strategy, x), other))


def against_gloo(world: World, ours_first: bool) -> list[float]:
    """`halving_doubling` over gloo's ring, 25 MB of float32."""
    group = world.workers
    assert group is not None

    def side(algorithm: Callable[[torch.Tensor], None]) -> Side:
        buffer = torch.zeros(6_250_000)
        return lambda: algorithm(buffer)

    halving, ring = (
        lambda: side(SumByHalvingDoubling(group, everyone(world))),
        lambda: side(partial(dist.all_reduce, group=group)),
    )
    return alternate(world, *both(ours_first, halving, ring))


PEERS: list[tuple[str, int, Callable[..., Any], float]] = [
    ("allreduce / DistributedDataParallel", 2, against_ddp, 1.03),
    ("horovod / bare Horovod", 2, against_horovod, 1.03),
    ("halving_doubling / gloo's ring, 4 ranks, 25 MB", 4, against_gloo, 1.15),
]


def peers(cap: int) -> list[str]:
    """Two lines per ratio: what it is, and the ratios of its sets."""
    reason = missing_build(Horovod(name="horovod"))
    measured = [peer for peer in PEERS if not (reason and peer[2] is against_horovod)]
    sets: dict[str, list[list[float]]] = {name: [] for name, *_ in measured}
    for number in itertools.count(1):
        going_on = [peer for peer in measured if not told(sets[peer[0]], cap)]
        if not going_on:
            break
        for name, ranks, target, _ in going_on:
            sets[name].append(on_ranks(ranks, target, number % 2 == 1))
    lines = [f"{'ours / theirs':48} {'ratio':>6} {'95 % interval':>16} {'sets':>4} {'limit':>6}"]
    for name, _, _, limit in PEERS:
        lines += lines_of_ratio(name, sets[name], limit) if name in sets else [f"{name:48} left out: {reason}"]
    print("\n".join(lines), flush=True)
    return lines


def told(sets: Sequence[Sequence[float]], cap: int) -> bool:
    """Whether these sets of alternations are enough: as many began with ours as with the other's."""
    if len(sets) < LEAST_SETS or len(sets) % 2:
        return False
    return len(sets) >= cap or ratio_of_sets(sets).half_width <= HALF_WIDTH


def lines_of_ratio(name: str, sets: Sequence[Sequence[float]], limit: float) -> list[str]:
    """Ratio, interval and verdict; then the ratio of each set."""
    ratio = ratio_of_sets(sets)
    span = f"{ratio.low:.3f} to {ratio.high:.3f}"
    each = " ".join(f"{statistics.median(pairs):.3f}" for pairs in sets)
    return [
        f"{name:48} {ratio.value:6.3f} {span:>16} {ratio.count:4} {limit:6.2f}  {ratio.at_most(limit)}",
        f"    of each set: {each}",
    ]


# On emulated nodes


@dataclass(frozen=True)
class Algorithm:
    """What is measured, and what it should take: size, nodes, ranks per node, link inside, link between."""

    name: str
    make: Callable[[World], Callable[[torch.Tensor], None]]
    formula: Callable[[float, int, int, cost.Link, cost.Link], float]
    like: str | None = None
    """Where gloo's own collective moves the bytes between nodes: the same with ours in its place, to tell the cause."""


def _strategy(options: Any) -> Callable[[World], Callable[[torch.Tensor], None]]:
    return lambda world: build(options, world).sum  # type: ignore[attr-defined, no-any-return]


def _with_halving(formula: Callable[..., float]) -> Callable[[float, int, int, cost.Link, cost.Link], float]:
    return lambda *sizes: formula(*sizes, outer=cost.halving_doubling)


HALVING: Literal["halving_doubling"] = "halving_doubling"
ALGORITHMS = [
    Algorithm("ring", _strategy(RingStrategy(name="ring")), cost.flat_ring, HALVING),
    Algorithm(HALVING, _strategy(HalvingDoublingStrategy(name=HALVING)), cost.flat_halving_doubling),
    Algorithm("hierarchical, ring between", _strategy(Hierarchical(name="hierarchical")), cost.hierarchical,
              "hierarchical, halving_doubling between"),
    Algorithm("hierarchical, halving_doubling between", _strategy(Hierarchical(name="hierarchical", outer=HALVING)),
              _with_halving(cost.hierarchical)),
    Algorithm("two_dimensional, ring between", _strategy(TwoDimensional(name="two_dimensional")), cost.two_dimensional,
              "two_dimensional, halving_doubling between"),
    Algorithm("two_dimensional, halving_doubling between", _strategy(TwoDimensional(name="two_dimensional", outer=HALVING)),
              _with_halving(cost.two_dimensional)),
]  # fmt: skip


def sums_on_nodes(world: World, sizes_mib: Sequence[float], sums: int) -> dict[str, float]:
    """Median seconds of each algorithm and size; and `inside`, bytes/s between two ranks of a node."""
    found: dict[str, float] = {}
    for algorithm in ALGORITHMS:
        sum_over_ranks = algorithm.make(world)
        for size_mib in sizes_mib:
            buffer = torch.ones(round(size_mib * 2**18))
            sum_over_ranks(buffer)
            assert bool((buffer == world.ranks).all()), f"{algorithm.name} sums wrongly"
            found[f"{algorithm.name} {size_mib}"] = statistics.median(
                _one(world, sum_over_ranks, buffer, sums) for _ in range(REPEATS)
            )
    found["inside"] = _inside(world)
    return found


def _one(world: World, sum_over_ranks: Callable[[torch.Tensor], None], buffer: torch.Tensor, sums: int) -> float:
    buffer.fill_(1.0)
    dist.barrier(group=world.workers)
    begin = time.perf_counter()
    for _ in range(sums):
        sum_over_ranks(buffer)
    dist.barrier(group=world.workers)
    return (time.perf_counter() - begin) / sums


def _inside(world: World) -> float:
    """Bytes/s from one rank to the next on node 0, while the others wait; 0 with one rank per node."""
    if world.ranks_per_node < 2:
        return 0.0
    buffer, best = torch.ones(2 * 2**20), 0.0
    for _ in range(REPEATS):
        dist.barrier(group=world.workers)
        begin = time.perf_counter()
        if world.rank == 0:
            dist.send(buffer, 1)
        elif world.rank == 1:
            dist.recv(buffer, 0)
        dist.barrier(group=world.workers)
        best = max(best, buffer.nbytes / (time.perf_counter() - begin))
    return best


def nodes_against_formulas(counts: Sequence[int], latency_s: float = 0.0) -> list[str]:
    """A line per algorithm, geometry and size."""
    lines = [
        f"links of {MIB_PER_S_OF_ALL:g} MiB/s over the number of nodes (token bucket); formulas with "
        f"{ETHERNET_PAYLOAD:.1%} of it as payload, {1000 * latency_s:g} ms of latency, of which "
        f"a message takes {WAYS} over gloo, no time to sum",
        f"{'algorithm':42} {'nodes':>5} {'ranks':>5} {'MiB':>6} {'measured':>9} {'formula':>9} {'ratio':>6}",
    ]
    sizes_mib, sums = (SIZES_OF_LATENCY_MIB, SUMS) if latency_s else (NODE_SIZES_MIB, 1)
    for count in counts:
        mib_per_s = MIB_PER_S_OF_ALL / count
        between = cost.Link(mib_per_s * 2**20 * ETHERNET_PAYLOAD, WAYS * latency_s)
        try:
            with emulated_nodes(count, mib_per_s, latency_s) as nodes:
                for per_node in (1, 2):
                    found = on_ranks(count * per_node, sums_on_nodes, sizes_mib, sums, nodes=nodes)
                    lines += _lines_of(found, count, per_node, between, sizes_mib)
        except Skipped as reason:
            lines.append(f"{count} nodes: left out: {reason}")
    return lines


def _lines_of(
    found: dict[str, float], nodes: int, per_node: int, between: cost.Link, sizes_mib: Sequence[float]
) -> list[str]:
    inside = cost.Link(found["inside"] or 1e12)
    limit = 0.15 if per_node == 1 else 0.25
    lines = []
    if found["inside"]:
        lines.append(f"inside a node: {inside.bytes_per_s / 2**20:,.0f} MiB/s, measured")
    times: dict[tuple[str, float], tuple[float, float]] = {}
    for algorithm in ALGORITHMS:
        for size_mib in sizes_mib:
            measured = found[f"{algorithm.name} {size_mib}"]
            formula = algorithm.formula(size_mib * 2.0**20, nodes, per_node, inside, between)
            times[algorithm.name, size_mib] = measured, formula
    for algorithm in ALGORITHMS:
        for size_mib in sizes_mib:
            measured, formula = times[algorithm.name, size_mib]
            verdict = "holds" if _holds(times, algorithm.name, size_mib, limit) else "MISSED"
            if verdict == "MISSED" and algorithm.like and _holds(times, algorithm.like, size_mib, limit):
                verdict = "gloo's own collective is the cause: with halving_doubling it holds"
            lines.append(
                f"{algorithm.name:42} {nodes:5} {nodes * per_node:5} {size_mib:6g} {measured:8.3f}s {formula:8.3f}s "
                f"{measured / formula:6.2f}  {verdict}"
            )
    if per_node > 1:
        lines += _gain(times, sizes_mib)
    print("\n".join(lines), flush=True)
    return lines


def _holds(times: dict[tuple[str, float], tuple[float, float]], name: str, size_mib: float, limit: float) -> bool:
    measured, formula = times[name, size_mib]
    return abs(measured / formula - 1) <= limit


def _gain(times: dict[tuple[str, float], tuple[float, float]], sizes_mib: Sequence[float]) -> list[str]:
    """How far hierarchical is ahead of the flat ring, and how far it should be."""
    lines = []
    for size_mib in sizes_mib:
        (flat, flat_formula), (two, two_formula) = (
            times["ring", size_mib],
            times["hierarchical, ring between", size_mib],
        )
        lines.append(
            f"flat ring / hierarchical, {size_mib:g} MiB: {flat / two:.2f} measured, {flat_formula / two_formula:.2f} by formula"
        )
    return lines


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["peers", "nodes", "all"])
    parser.add_argument("--cap", type=int, default=40, help="sets after which a ratio is left as it is (40)")
    parser.add_argument("--nodes", type=int, nargs="+", default=[4, 8], help="numbers of emulated nodes (4 8)")
    parser.add_argument("--out", type=Path, help="file for the tables; of `all`: docs/measured/exchange.txt")
    arguments = parser.parse_args()
    lines = [f"exchange, {datetime.date.today()}, torch {torch.__version__}, {len(os.sched_getaffinity(0))} cores", ""]
    if arguments.what in ("peers", "all"):
        lines += [*peers(arguments.cap), ""]
    if arguments.what in ("nodes", "all"):
        lines += [*nodes_against_formulas(arguments.nodes), *nodes_against_formulas(arguments.nodes, LATENCY_S), ""]
    out = arguments.out or (Path("docs/measured/exchange.txt") if arguments.what == "all" else None)
    if out:
        out.parent.mkdir(parents=True, exist_ok=True)
        out.write_text("\n".join(lines), encoding="utf-8")
        print(out)


if __name__ == "__main__":
    main()
