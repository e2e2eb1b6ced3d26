"""How often the decision rule decides wrongly, and how often rightly, for kinds of noise that machines have.

`python -m tests.soak.verdict_rule` prints the table of docs/measured/verdict_rule.txt, and with `--figure FILE` draws it.
Every draw goes through `estimate` and `Region`, as the runs of a claim do. *Before* is Student's t of the mean, by which
claims were decided until then; the limit is the mean of the noise for it, and the median for the rule.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.special import stdtr

from scalestudy.claims.estimate import NotJudged, estimate
from scalestudy.claims.inference import ERROR, Region
from scalestudy.claims.model import Direction, Equivalence, Quantity, Sampled
from scalestudy.claims.select import ClaimPart, Row

Draw = np.random.Generator
Sides = tuple[np.ndarray, np.ndarray]
"""Logarithms of a rate, or shares: [configurations, rounds] of the claim's side and of the one that it is compared with."""
LIMIT_OF_MACHINES = "neighbouring rounds alike (AR(1), 0.7)"
"""No rule sees it in five rounds: named in docs/explanation/verdicts.md."""


@dataclass(frozen=True)
class Kind:
    """A kind of noise. `truth` is the number that it is noise of: as a median, and as a mean."""

    name: str
    sides: Callable[[Draw, int], Sides]
    truth: tuple[float, float] = (0.0, 0.0)
    test: str = "direction"
    column: str = "throughput_samples_per_s"
    take: str | None = None
    apart: bool = False
    """The sides have no round in common."""


def normal(draw: Draw, n: int, spread: float = 0.03, configurations: int = 1) -> np.ndarray:
    return draw.normal(0, spread, (configurations, n))


def skewed(draw: Draw, n: int) -> np.ndarray:
    return np.log(1 + 0.1 * draw.exponential(1, (1, n)))


def two_states(draw: Draw, n: int, share: float, slow: float) -> np.ndarray:
    return normal(draw, n, 0.01) + np.log1p(slow) * (draw.random((1, n)) < share)


def alike(draw: Draw, n: int, correlation: float = 0.7) -> np.ndarray:
    values = normal(draw, n)
    for index in range(1, n):
        values[:, index] = correlation * values[:, index - 1] + (1 - correlation**2) ** 0.5 * values[:, index]
    return values


def disturbed(draw: Draw, n: int) -> Sides:
    rounds = normal(draw, n, 0.05)
    return rounds + normal(draw, n), rounds + normal(draw, n)


def drifting(draw: Draw, n: int) -> Sides:
    drift = np.linspace(0, 0.1, n)
    return drift + normal(draw, n), drift + normal(draw, n)


def counted(spread: float) -> Callable[[Draw, int], Sides]:
    """Shares of 360 samples; the difference of the true ones, 0.0011, is two fifths of a sample."""

    def sides(draw: Draw, n: int) -> Sides:
        true = 0.95 + draw.uniform(0, 1 / 360)
        of, against = (np.round((share + normal(draw, n, spread)) * 360) / 360 for share in (true + 0.0011, true))
        return of, against

    return sides


def quotient(draw: Draw, n: int) -> Sides:
    """Shares of one half: a part over a whole, each known to so much."""
    return (0.5 + normal(draw, n)) / (1 + normal(draw, n, 0.1)), np.zeros((1, n))


def against_steady(noise: Callable[[Draw, int], np.ndarray]) -> Callable[[Draw, int], Sides]:
    """One side varies, the other is as steady as an emulated accelerator."""
    return lambda draw, n: (noise(draw, n), normal(draw, n, 0.001))


def both(noise: Callable[[Draw, int], np.ndarray]) -> Callable[[Draw, int], Sides]:
    return lambda draw, n: (noise(draw, n), noise(draw, n))


def several(against: int) -> Callable[[Draw, int], Sides]:
    return lambda draw, n: (normal(draw, n, configurations=3), normal(draw, n, configurations=against))


def truth(noise: Callable[[Draw, int], np.ndarray]) -> tuple[float, float]:
    values = noise(np.random.default_rng(0), 1_000_000)
    return float(np.median(values)), float(values.mean())


SLOW_15 = lambda draw, n: two_states(draw, n, 0.15, 0.15)  # noqa: E731
SLOW_5 = lambda draw, n: two_states(draw, n, 0.05, 0.5)  # noqa: E731
HALF = lambda draw, n: two_states(draw, n, 0.5, 0.08)  # noqa: E731
KINDS = (
    Kind("normal, rounds disturbed together by 5 %", disturbed),
    Kind("drift of 10 % within the campaign", drifting),
    Kind("normal, an equivalence", both(normal), test="equivalence"),
    Kind("normal, a quantity", both(normal), test="quantity"),
    Kind("skewed on both sides", both(skewed)),
    Kind("two states 8 % apart on both sides", both(HALF)),
    Kind("one side skewed", against_steady(skewed), truth(skewed)),
    Kind("one side in two states, 15 % of runs slow", against_steady(SLOW_15), truth(SLOW_15)),
    Kind("one side in two states, half of runs slow", against_steady(HALF), truth(HALF)),
    Kind("one side 1.5 times as slow in 5 % of runs", against_steady(SLOW_5), truth(SLOW_5)),
    Kind("shares of 360 samples that vary by 0.05 points", counted(0.0005), (0.0011, 0.0011), column="accuracy"),
    Kind("shares of 360 samples that vary by 0.2 points", counted(0.002), (0.0011, 0.0011), column="accuracy"),
    Kind("a share of a difference that varies by 10 %", quotient, (0.5, 0.5), column="data_stall"),
    Kind("the least of three against one", several(1), take="least"),
    Kind("the least of three against that of three", several(3), take="least"),
    Kind("sides of unlike rounds, 3 % against 1 %", lambda draw, n: (normal(draw, n), normal(draw, n, 0.01)), apart=True),
    Kind("sides of unlike rounds, one skewed", against_steady(skewed), truth(skewed), apart=True),
    Kind(LIMIT_OF_MACHINES, both(alike)),
)  # fmt: skip


def rows(side: np.ndarray, column: str, name: str, first: int = 0) -> tuple[Row, ...]:
    """The rows of valid runs with these numbers, of the rounds from `first` on."""
    return tuple(
        {"configuration": f"{name}{index}", "repeat": first + number, "status": "valid", column: float(value)}
        for index, values in enumerate(side)
        for number, value in enumerate(values)
    )


def claim_of(kind: Kind, limit: float, looks: tuple[int, ...] = ()) -> Sampled:
    """A claim whose limit is `limit`; at the upper end of its margin, which is a factor of 1.05, for the kinds that have one."""
    told = {"id": "c", "statement": "s", "source": "s", "place": "p", "margin_reason": "r", "against": {"side": "b"}}
    test: dict[str, Any] = {
        "direction": {"below": limit},
        "equivalence": {"within": 0.05},
        "quantity": {"value": 1, "within": 0.05},
    }[kind.test]
    model = {"direction": Direction, "equivalence": Equivalence, "quantity": Quantity}[kind.test]
    return model(**told, kind=kind.test, column=kind.column, take=kind.take, looks=looks, **test)


def judged(claim: Sampled, kind: Kind, sides: Sides, looks: int = 1) -> tuple[bool, bool]:
    """Whether the rule decides for the claim, and whether against it."""
    of, against = sides
    logs = claim.is_log
    part = ClaimPart(
        None,
        rows(np.exp(of) if logs else of, kind.column, "of"),
        rows(np.exp(against) if logs else against, kind.column, "against", first=of.shape[1] if kind.apart else 0),
    )
    try:
        found = estimate(claim, part)
    except NotJudged:
        return False, False
    region = Region(*claim.bounds, one_sided=kind.test == "equivalence")
    return region.p_inside(found) <= ERROR, region.p_outside(found) <= ERROR


def by_t(kind: Kind, limit: float, sides: Sides) -> tuple[bool, bool]:
    """The same by Student's t of the mean, and of unlike rounds by Welch's with the degrees of freedom of the smaller sample."""
    of, against = (side[side.mean(axis=1).argmin()] for side in sides)
    n = len(of)
    spread = (of - against).var(ddof=1) if not kind.apart else of.var(ddof=1) + against.var(ddof=1)
    distance = of.mean() - against.mean() - limit
    p = float(stdtr(n - 1, -abs(distance) / np.sqrt(spread / n))) if spread > 1e-20 else 0.0
    decided = p <= (ERROR if kind.test == "equivalence" else ERROR / 2)
    return decided and distance < 0, decided and distance > 0


def judged_shares(kind: Kind, n: int, draws: int) -> dict[str, tuple[float, float]]:
    """False decisions each way where the true number is the limit: before, by the rule, and by the rule about the mean."""
    draw = np.random.default_rng(n)
    shift = 0.0 if kind.test == "direction" else float(np.log(1.05))
    back = np.exp if kind.column == "throughput_samples_per_s" else float
    median, mean = (claim_of(kind, float(back(number)), (n,)) for number in kind.truth)
    found: dict[str, list[tuple[bool, bool]]] = {"before": [], "rule": [], "rule, mean": []}
    for _ in range(draws):
        of, against = kind.sides(draw, n)
        sides = of + shift, against
        found["before"].append(by_t(kind, kind.truth[1] + shift, sides))
        found["rule"].append(judged(median, kind, sides))
        if kind.truth[0] != kind.truth[1]:
            found["rule, mean"].append(judged(mean, kind, sides))
    return {name: tuple(np.mean(each, axis=0)) for name, each in found.items() if each}


if __name__ == "__main__":
    for kind in KINDS:
        for n in (5, 8):
            print(
                f"{kind.name:50} {n}",
                {k: f"{a:.3f}/{b:.3f}" for k, (a, b) in judged_shares(kind, n, int(sys.argv[1])).items()},
            )
