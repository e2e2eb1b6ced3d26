"""How often the decision rule decides wrongly, and how often rightly, for kinds of noise that machines have.

`python -m tests.soak.verdict_rule` prints docs/measured/verdict_rule.txt and draws docs/measured/verdict_rule.svg.
Every draw goes through `estimate` and `Region`, as the runs of a claim do. *Before* is Student's t of the mean, by which
claims were decided until then; the limit is the mean of the noise for it, and the median for the rule.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from scipy.special import stdtr

from scalestudy.analysis.compare import MARGIN, of_campaigns
from scalestudy.claims.estimate import NotJudged, estimate
from scalestudy.claims.inference import ERROR, Estimate, Region
from scalestudy.claims.model import Direction, Equivalence, Quantity, Sampled
from scalestudy.claims.select import ClaimPart, Row

Draw = np.random.Generator
Sides = tuple[np.ndarray, np.ndarray]
"""Logarithms of a rate, or shares: [configurations, rounds] of the claim's side and of the one that it is compared with."""
COLUMNS = ("before", "rule", "rule, mean")
BUSY = Path(__file__).parents[1] / "data/repeats_busy.json"
MEASURED = Path(__file__).parents[2] / "docs/measured"
LEGEND = (
    ("t of the mean, n = 5", "o", "#b1361e", "white"), ("t of the mean, n = 8", "s", "#b1361e", "white"),
    ("the rule, n = 5", "o", "#1c5c8a", "#1c5c8a"), ("the rule, n = 8", "s", "#1c5c8a", "#1c5c8a"),
)  # fmt: skip
LIMIT_OF_MACHINES = "each side alike from round to round (AR(1), 0.7)"
"""No rule sees it in five rounds: named in docs/explanation/verdicts.md."""
FIXED_ORDER = "alike in time, a round's first slow: fixed order"
"""What the drawn order of a round protects against; no study is measured so."""


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


def in_time(draws_order: bool) -> Callable[[Draw, int], Sides]:
    """Noise of a machine that drifts: runs made one after the other are alike, and the first of each round is 3 % slower."""

    def sides(draw: Draw, n: int) -> Sides:
        of, against = alike(draw, 2 * n).reshape(n, 2).T + np.array([[0.03], [0.0]])
        turned = (draw.random(n) < 0.5) & draws_order
        return np.where(turned, against, of)[None], np.where(turned, of, against)[None]

    return sides


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
    Kind("alike in time, a round's first slow: drawn order", in_time(draws_order=True)),
    Kind(FIXED_ORDER, in_time(draws_order=False)),
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
    left = rows(np.exp(of) if logs else of, kind.column, "of")
    first = of.shape[1] if kind.apart else 0
    right = rows(np.exp(against) if logs else against, kind.column, "against", first)
    part = ClaimPart(None, (left, right))
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


CONFIGURATIONS = 5
"""Compared together."""
NIGHT, RUNS = 0.02, 0.01
"""Standard deviations between campaigns, and between the runs of one."""


def nights(draw: Draw, n: int, campaigns: int, common: bool) -> np.ndarray:
    """Logarithms of speeds, [campaigns, configurations, repeats]: each campaign has its level, of all together or of each."""
    levels = draw.normal(0, NIGHT, (campaigns, 1 if common else CONFIGURATIONS, 1))
    return levels + draw.normal(0, RUNS, (campaigns, CONFIGURATIONS, n))


def compared(logs: np.ndarray, margin: float) -> list[str]:
    """The verdicts of `scalestudy compare` on the last campaign after the others."""
    changes = of_campaigns({str(index): logs[:, index] for index in range(CONFIGURATIONS)}, margin)
    return [change.verdict for change in changes.values()]


def false_alarms(n: int, campaigns: int, common: bool, margin: float, draws: int) -> float:
    """How often any configuration of a machine that is compared with itself is called slower or faster."""
    draw = np.random.default_rng(n)
    found = [compared(nights(draw, n, campaigns + 1, common), margin) for _ in range(draws)]
    return float(np.mean([bool({"slower", "faster"} & set(verdicts)) for verdicts in found]))


def found_slower(slower: float, n: int, campaigns: int, draws: int) -> float:
    """How often the one configuration whose steps take so much longer is called slower, with the default margin."""
    draw, found = np.random.default_rng(n), 0
    for _ in range(draws):
        logs = nights(draw, n, campaigns + 1, common=True)
        logs[-1, 0] -= np.log1p(slower)
        found += compared(logs, MARGIN)[0] == "slower"
    return found / draws


def looking_again(planned: bool, draws: int, looks: int = 4, first: int = 5) -> tuple[float, float]:
    """False decisions each way of who looks at 5, 10, 15 and 20 rounds until it is decided: as planned, or each time at 5 %."""
    draw, found = np.random.default_rng(looks), []
    kind = Kind("", both(normal))
    plan = tuple(first * (look + 1) for look in range(looks))
    claim = claim_of(kind, 1.0, plan if planned else plan[:1])
    for _ in range(draws):
        of, against = kind.sides(draw, plan[-1])
        seen = ((of[:, :n], against[:, :n]) for n in plan)
        decided = (judged(claim, kind, sides) if planned else by_t(kind, 0.0, sides) for sides in seen)
        found.append(next((each for each in decided if any(each)), (False, False)))
    for_it, against_it = np.mean(found, axis=0)
    return float(for_it), float(against_it)


def power(effect: float, n: int, spread: float, draws: int) -> float:
    """How often an effect on the ratio of two sides that spread so much is decided; the limit is no effect."""
    draw = np.random.default_rng(n)
    kind = Kind("", lambda draw, n: (normal(draw, n, spread) - np.log1p(effect), normal(draw, n, spread)))
    claim = claim_of(kind, 1.0, (n,))
    return float(np.mean([judged(claim, kind, kind.sides(draw, n))[0] for _ in range(draws)]))


def busy_coverage(n: int, confidence: float = 0.95) -> float:
    """How often blocks of n neighbouring rounds of tests/data/repeats_busy.json cover the median ratio of all 20 rounds."""
    recorded = json.loads(BUSY.read_text(encoding="utf-8"))["throughput_samples_per_s"]
    logs = [np.log(values) for values in recorded.values()]
    covered = []
    for index, of in enumerate(logs):
        for ratios in (of - against for against in logs[:index]):
            for first in range(len(ratios) - n + 1):
                low, high = Estimate(tuple(ratios[first : first + n])).interval(confidence)
                covered.append(low <= np.median(ratios) <= high)
    return float(np.mean(covered))


def print_all(draws: int) -> dict[str, dict[int, dict[str, tuple[float, float]]]]:
    """Print every table; the shares of false decisions by kind and number of rounds."""
    print(f"False decisions for / against a claim whose true number is its limit; {draws:,} draws a line.")
    print(
        "before: Student's t of the mean, limit at the mean. rule: limit at the median. last column: the rule, limit at"
    )
    print("the mean, where it is another; no rule about a mean sees in five rounds what one run of seven has.")
    print(f"{'':52}  n      before           rule       rule, mean")
    found = {}
    for kind in KINDS:
        found[kind.name] = {n: judged_shares(kind, n, draws) for n in (5, 8)}
        for n, shares in found[kind.name].items():
            cells = (f"{shares[name][0]:.3f} / {shares[name][1]:.3f}" if name in shares else "" for name in COLUMNS)
            print(f"{kind.name:52} {n:2}  " + "  ".join(f"{cell:13}" for cell in cells).rstrip(), flush=True)
    print("\nLooking at 5, 10, 15 and 20 rounds until it is decided, normal noise: false decisions for / against")
    for name, planned in (("by t, each look at 5 % (before)", False), ("planned: looks: [5, 10, 15, 20]", True)):
        print(f"  {name:40} {' / '.join(f'{each:.3f}' for each in looking_again(planned, draws))}")
    print("\nAn effect of 10 % on a ratio, limit 1: decided in")
    for n, spread in ((5, 0.03), (5, 0.05), (8, 0.05)):
        print(f"  {n} rounds, sides that spread by {spread:.0%}: {power(0.10, n, spread, draws):.3f}")
    print("\nRatios of five configurations on a busy machine (tests/data/repeats_busy.json), 95 % interval: covered in")
    for n in (5, 8):
        print(f"  {n} rounds: {busy_coverage(n):.3f}")
    print(
        f"\nscalestudy compare, {CONFIGURATIONS} configurations, nights that differ by {NIGHT:.0%}, runs that spread by {RUNS:.0%}"
    )
    print("  a machine compared with itself: any configuration called slower or faster, margin 3 % (and 0)")
    for campaigns in (3, 5):
        for n in (3, 5, 10):
            cells = [
                f"{name} {false_alarms(n, campaigns, common, MARGIN, draws):.3f} ({false_alarms(n, campaigns, common, 0.0, draws):.3f})"
                for name, common in (("all together", True), ("each its own", False))
            ]
            print(f"    {campaigns} campaigns before, {n:2} repeats: {', '.join(cells)}", flush=True)
    print("  one configuration slower, 5 repeats: found in")
    for campaigns in (3, 5, 10):
        cells = [
            f"{slower:.0%}: {found_slower(slower, 5, campaigns, draws):.2f}" for slower in (0.05, 0.10, 0.20, 0.30)
        ]
        print(f"    {campaigns:2} campaigns before: {', '.join(cells)}", flush=True)
    return found


def draw_figure(found: Mapping[str, Mapping[int, Mapping[str, tuple[float, float]]]], file: Path) -> None:
    """The larger of both false decisions before and by the rule, for each kind of noise."""
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 6), layout="constrained")
    axes = figure.add_subplot()
    for place, shares in enumerate(reversed(found.values())):
        for n, shape in ((5, "o"), (8, "s")):
            y = place + (0.15 if n == 5 else -0.15)
            before, rule = (max(shares[n][name]) for name in ("before", "rule"))
            axes.plot([before, rule], [y, y], color="0.8", zorder=1)
            axes.plot(before, y, shape, markerfacecolor="white", color="#b1361e")
            axes.plot(rule, y, shape, color="#1c5c8a")
    axes.axvline(ERROR, color="0.4", linestyle=":")
    axes.set_yticks(range(len(found)), list(reversed(found)))
    axes.set_xlabel("Share of false decisions at the limit (dotted: 5 %)")
    for label, marker, colour, face in LEGEND:
        axes.plot([], [], marker, color=colour, markerfacecolor=face, label=label)
    axes.legend(loc="upper right")
    with rc_context({"svg.fonttype": "none"}):
        figure.savefig(file, metadata={"Date": None})


if __name__ == "__main__":
    draw_figure(print_all(int(sys.argv[1]) if len(sys.argv) > 1 else 2000), MEASURED / "verdict_rule.svg")
