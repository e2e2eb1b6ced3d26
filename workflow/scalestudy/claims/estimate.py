"""From the runs of a claim's sides to one estimate: a number per round."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from scalestudy.claims.inference import Estimate, own_error
from scalestudy.claims.model import Sampled
from scalestudy.claims.select import ClaimPart, Row
from scalestudy.spec.columns import MAX_TESTED_FACTOR, SHARES, base_column, extrapolated_too_far

FEWEST = 2
"""One round has no spread."""
INSTRUMENT = ("code", "python", "torch", "cpu", "allocator")
"""Parts of an instrument in which two sides may not differ; what else is recorded may follow from what a run is."""


@dataclass(frozen=True)
class Number:
    """One run's number, on logarithms where the claim is, and the standard error that it brings along."""

    value: float
    own: float = 0.0


Rounds = dict[int, dict[str, Number]]
"""For each round, the number of each configuration."""


class NotJudged(Exception):
    """Why runs that are there give no estimate."""


class MeasuredApart(NotJudged):
    """Sides of unlike periods or instruments, whose difference may be that of the machine."""


def estimate(claim: Sampled, part: ClaimPart) -> Estimate:
    """What the valid runs of a part say. Raises NotJudged where they are too few or have no such number.

    Sides are compared round by round, because runs of one round share their seed and were made one after the other. Rounds
    in which they were not, or by another instrument, do not count.
    """
    _one_base(claim, part)
    rounds, own = _of_part(claim, part)
    if len(rounds) < max(FEWEST, claim.repeats):
        raise NotJudged(f"{len(rounds)} of at least {max(FEWEST, claim.repeats)} rounds have the number")
    grid = _grid(claim, part, rounds) if claim.column in SHARES and claim.over is None else 0.0
    return Estimate(tuple(rounds), math.hypot(own, grid), claim.is_log, len(claim.looks))


def _of_part(claim: Sampled, part: ClaimPart) -> tuple[list[float], float]:
    """The number of each round, and the standard error that they share."""
    if claim.over is not None:
        return _slopes_of_part(claim, part)
    if claim.compared_as == "share":
        return _share(claim, part), 0.0
    of = _one_configuration(claim, _rounds(claim, part.of, claim.is_log), part.of)
    if part.against is None:
        return [number.value for number in of.values()], _own(of)
    against = _one_configuration(claim, _rounds(claim, part.against, claim.is_log), part.against)
    paired = _paired(claim, part, of, against)
    return [of[key].value - against[key].value for key in paired], math.hypot(_own(of), _own(against))


def _paired(claim: Sampled, part: ClaimPart, *sides: Mapping[int, Number]) -> list[int]:
    """The rounds that all sides have, measured in one period with one instrument.

    Raises MeasuredApart where too few are left because of that.
    """
    shared = sorted(set(sides[0]).intersection(*sides[1:]))
    places: dict[int, set[tuple[str, ...]]] = {}
    for row in part.rows:
        if row["status"] == "valid":
            place = (str(row.get("period")), *(str(row.get(f"instrument.{key}")) for key in INSTRUMENT))
            places.setdefault(int(row["repeat"]), set()).add(place)
    together = [key for key in shared if len(places[key]) == 1]
    if len(together) < max(FEWEST, claim.repeats) <= len(shared):
        apart = len(shared) - len(together)
        raise MeasuredApart(f"in {apart} of {len(shared)} rounds the sides have unlike periods or instruments")
    return together


def _grid(claim: Sampled, part: ClaimPart, rounds: Sequence[float]) -> float:
    """The standard error by counting, where rounds have equal shares: each side lies anywhere within a step.

    The step is the smallest distance between two numbers of the part. Raises NotJudged where all are equal.
    """
    if not _steps(rounds, ties=True):
        return 0.0
    sides = [side for side in (part.of, part.against) if side is not None]
    steps = _steps(
        number.value
        for side in sides
        for found in _rounds(claim, side, claim.is_log).values()
        for number in found.values()
    )
    if not steps:
        raise NotJudged(f"all runs have the same `{claim.column}`: their spread is below its steps, and not known")
    return min(steps) * math.sqrt(len(sides) / 12)


def _steps(values: Iterable[float], ties: bool = False) -> list[float]:
    """The distances between neighbours among the values: those that are 0 but for rounding, or the others."""
    gaps = [high - low for low, high in pairwise(sorted(values))]
    return [gap for gap in gaps if (gap <= 1e-12) is ties]


def _one_base(claim: Sampled, part: ClaimPart) -> None:
    """Raise NotJudged where the efficiencies or speed-ups of a part have bases of unlike rank counts."""
    for column in filter(None, (claim.column, claim.per)):
        if name := base_column(column):
            ranks = sorted({int(row[name]) for row in part.rows if row["status"] == "valid" and _finite(row.get(name))})
            if len(ranks) > 1:
                raise NotJudged(f"`{column}` has bases of {' and '.join(map(str, ranks))} ranks, which do not compare")


def _rounds(claim: Sampled, side: Sequence[Row], log: bool, column: str | None = None) -> Rounds:
    """The numbers of a side's valid runs. One that has none, such as a training that never reached an accuracy, leaves the
    others a selection: then nothing is concluded from them."""
    wanted = column or claim.column
    assert wanted is not None
    per = claim.per if column is None else None
    found: Rounds = {}
    absent = 0
    for row in side:
        value = _value(row, wanted, per)
        if value is None:
            absent += row["status"] == "valid"
            continue
        if extrapolated_too_far(row, wanted):
            raise NotJudged(f"`{wanted}` is extrapolated beyond the tested factor of {MAX_TESTED_FACTOR:,.0f}")
        if log and value <= 0:
            raise NotJudged(f"`{wanted}` is not above zero, and has no ratio")
        own = _own_error(row, wanted, log) / (1.0 if log or not per else abs(float(row[per])))
        number = Number(math.log(value) if log else value, own)
        found.setdefault(int(row["repeat"]), {})[row["configuration"]] = number
    if not found:
        raise NotJudged(f"no valid run has a `{wanted}`")
    if absent:
        raise NotJudged(
            f"{absent} valid run{'s' if absent > 1 else ''} without `{wanted}`, and the others are a selection"
        )
    return found


def _value(row: Row, column: str, per: str | None) -> float | None:
    """A valid run's finite number, None where it has none."""
    value, whole = row.get(column), row.get(per) if per else 1.0
    if row["status"] != "valid" or not _finite(value) or not _finite(whole) or not whole:
        return None
    assert value is not None
    return float(value) / float(whole)


def _finite(value: object) -> bool:
    return isinstance(value, (int, float)) and math.isfinite(value)


def _own_error(row: Row, column: str, log: bool) -> float:
    """The standard error that an extrapolated number brings."""
    low, value, high = (row.get(f"{column}{end}") for end in ("_low", "", "_high"))
    return own_error([(low, value, high)], log) if _finite(low) and _finite(high) else 0.0  # type: ignore[list-item]


def _one_configuration(claim: Sampled, rounds: Rounds, side: Sequence[Row]) -> dict[int, Number]:
    """The numbers of the side's one configuration, or of the one with the highest or lowest mean over rounds.

    Raises NotJudged where a configuration that could be made has no number: it might have been the one.
    """
    numbers: dict[str, list[float]] = {}
    for found in rounds.values():
        for configuration, number in found.items():
            numbers.setdefault(configuration, []).append(number.value)
    if absent := {row["configuration"] for row in side if row["status"] != "skipped"} - set(numbers):
        raise NotJudged(f"{len(absent)} of the configurations to choose from have no number")
    means = {name: math.fsum(values) / len(values) for name, values in numbers.items()}
    name = (min if claim.take == "least" else max)(means, key=lambda name: means[name])
    return {repeat: found[name] for repeat, found in rounds.items() if name in found}


def _own(side: Mapping[int, Number]) -> float:
    """The root of the mean square of the runs' own standard errors, which repeats share."""
    return math.sqrt(math.fsum(number.own**2 for number in side.values()) / len(side)) if side else 0.0


def _share(claim: Sampled, part: ClaimPart) -> list[float]:
    """The difference in `column` over the difference in `per`, round by round."""
    assert part.against is not None and claim.per is not None
    parts, whole = (
        [_one_configuration(claim, _rounds(claim, side, False, column), side) for side in (part.of, part.against)]
        for column in (claim.column, claim.per)
    )
    shared = _paired(claim, part, *parts, *whole)
    differences = {key: whole[0][key].value - whole[1][key].value for key in shared}
    return [
        (parts[0][key].value - parts[1][key].value) / difference
        for key, difference in differences.items()
        if difference
    ]


def _slopes_of_part(claim: Sampled, part: ClaimPart) -> tuple[list[float], float]:
    """The slope of each round's least-squares line; of two sides the ratio of their slopes, on logarithms."""
    sides = [_slopes(claim, side, log=part.against is None) for side in (part.of, part.against) if side is not None]
    paired = _paired(claim, part, *sides)
    if part.against is None:
        return [sides[0][key].value for key in paired], _own(sides[0])
    if any(side[key].value <= 0 for side in sides for key in paired):
        raise NotJudged(f"`{claim.column}` does not grow over `{claim.over}`: its slopes have no ratio")
    own = math.hypot(*(_own({key: Number(0, n.own / n.value) for key, n in side.items()}) for side in sides))
    return [math.log(sides[0][key].value / sides[1][key].value) for key in paired], own


def _slopes(claim: Sampled, side: Sequence[Row], log: bool) -> dict[int, Number]:
    """For each round that has all configurations of the side, its slope."""
    assert claim.over is not None
    y, x = _rounds(claim, side, log), _rounds(claim, side, log, claim.over)
    planned = len({row["configuration"] for row in side})
    points = {
        repeat: [(x[repeat][name].value, number) for name, number in found.items() if name in x.get(repeat, {})]
        for repeat, found in y.items()
    }
    return {repeat: _line(found) for repeat, found in points.items() if len(found) == planned}


def _line(points: Sequence[tuple[float, Number]]) -> Number:
    """Slope of the least-squares line, and its standard error from those of the points."""
    middle = math.fsum(x for x, _ in points) / len(points)
    spread = math.fsum((x - middle) ** 2 for x, _ in points)
    if not spread:
        raise NotJudged("all runs have the same place on the axis")
    slope = math.fsum((x - middle) * number.value for x, number in points) / spread
    return Number(slope, math.sqrt(math.fsum(((x - middle) * number.own) ** 2 for x, number in points)) / spread)
