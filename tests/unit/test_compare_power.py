"""On recorded runs, equal ones are seldom called different, and slower ones are found.

Both sides of a comparison are drawn from the recorded runs, so that nothing differs; then the speed of one configuration is
divided on one side. Drawn are distances from the mean of a configuration's runs, of all configurations of one kind together.
The recordings hold the throughput of every run of five configurations, measured round by round: 20 rounds on a quiet
machine, and 20 beside a dozen other processes on the same two cores.
"""

from __future__ import annotations

import json
import math
import random
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from scalestudy.analysis.comparison import judged

QUIET, BUSY = (Path(__file__).parents[1] / f"data/repeats_{name}.json" for name in ("quiet", "busy"))
CONFIGURATIONS = 5
"""Compared together in every drawn comparison."""
COMPARISONS, REPEATS = 200, (3, 5, 10)


def recorded(file: Path) -> dict[str, list[float]]:
    """The logarithm of each run's speed, by configuration, in the order of measurement."""
    found = json.loads(file.read_text())["throughput_samples_per_s"]
    return {name: [math.log(value) for value in values] for name, values in found.items()}


def kind_of(name: str) -> str:
    """What of a run is real on this machine, by its configuration's name."""
    if ".on_" not in name:
        return "trained on the CPU"
    return "emulated compute, one rank" if ".x1 " in name else "emulated compute, real exchange"


def pools(runs: Mapping[str, Sequence[float]]) -> dict[str, list[float]]:
    """By kind, how far each run lies from the mean of its configuration, in logarithms."""
    found: dict[str, list[float]] = {}
    for name, logs in runs.items():
        mean = math.fsum(logs) / len(logs)
        # Distances from the mean of n values are too small by this.
        stretch = math.sqrt(len(logs) / (len(logs) - 1))
        found.setdefault(kind_of(name), []).extend(stretch * (value - mean) for value in logs)
    return found


def drawn(pool: Sequence[float], n: int, rng: random.Random) -> list[float]:
    """Log-ratios of `n` pairs of runs between which there is no difference."""
    return [after - before for before, after in zip(rng.choices(pool, k=n), rng.choices(pool, k=n), strict=True)]


def false_alarms(pool: Sequence[float], n: int, margin: float, comparisons: int = COMPARISONS) -> int:
    """In how many comparisons of the same with the same any configuration is called slower or faster."""
    rng = random.Random(f"{n} {margin}")
    count = 0
    for _ in range(comparisons):
        changes = judged([drawn(pool, n, rng) for _ in range(CONFIGURATIONS)], margin)
        count += any(change.verdict in ("slower", "faster") for change in changes)
    return count


def found_slower(pool: Sequence[float], slower: float, n: int, margin: float, comparisons: int = COMPARISONS) -> float:
    """The share of comparisons in which the one whose steps take `slower` more is called slower; the others are unchanged."""
    rng = random.Random(f"{slower} {n} {margin}")
    count = 0
    for _ in range(comparisons):
        ratios = [drawn(pool, n, rng) for _ in range(CONFIGURATIONS)]
        ratios[0] = [ratio - math.log1p(slower) for ratio in ratios[0]]
        count += judged(ratios, margin)[0].verdict == "slower"
    return count / comparisons


POOLS = [(file, kind) for file in (QUIET, BUSY) for kind in pools(recorded(file))]


@pytest.mark.slow
@pytest.mark.parametrize("n", REPEATS)
@pytest.mark.parametrize(("file", "kind"), POOLS, ids=[f"{file.stem}, {kind}" for file, kind in POOLS])
def test_at_most_5_percent_of_200_comparisons_of_equal_runs_are_false_alarms(file: Path, kind: str, n: int) -> None:
    alarms = false_alarms(pools(recorded(file))[kind], n, margin=0.03)
    assert alarms <= COMPARISONS * 5 // 100


def test_steps_that_take_a_tenth_more_are_found_on_a_quiet_machine_with_ten_repeats() -> None:
    pool = pools(recorded(QUIET))["emulated compute, one rank"]
    assert found_slower(pool, 0.10, n=10, margin=0.03) >= 0.85


def test_more_repeats_and_larger_slow_downs_are_found_more_often() -> None:
    pool = pools(recorded(QUIET))["emulated compute, one rank"]
    by_repeats = [found_slower(pool, 0.10, n, margin=0.03) for n in REPEATS]
    assert by_repeats == sorted(by_repeats)
    assert found_slower(pool, 0.03, n=10, margin=0.03) <= 0.05


def test_on_a_machine_as_noisy_as_the_busy_one_nothing_is_found_and_nothing_is_called_the_same() -> None:
    logs = next(logs for name, logs in recorded(BUSY).items() if "digits" in name)
    ratios = [after - before for before, after in zip(logs[:10], logs[10:], strict=True)]
    assert judged([ratios], margin=0.03)[0].verdict == "undecided"
