"""From the runs of a claim's sides to one estimate: a number per round."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from scalestudy.claims.inference import Estimate, own_error
from scalestudy.claims.model import MIN_REPEATS, Sampled
from scalestudy.claims.select import ClaimPart, Row, number_of
from scalestudy.spec.columns import (
    EFFICIENCIES,
    MAX_TESTED_FACTOR,
    SHARES,
    WHOLE_HOST_COLUMNS,
    extrapolated_too_far,
    is_number,
    provenance,
)

TIE = 1e-12
"""Distance of two shares that are equal but for rounding."""


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
    """Sides of unlike periods or instruments."""


def estimate(claim: Sampled, part: ClaimPart) -> Estimate:
    """What the valid runs of a part say. Raises NotJudged where they are too few or have no such number.

    Sides are compared round by round, because runs of one round share their seed and were made one after the other. Rounds
    in which they were not, or by another instrument, do not count.
    """
    _one_base(claim, part)
    rounds, own = _of_part(claim, part)
    if len(rounds) < MIN_REPEATS:
        raise NotJudged(f"{len(rounds)} of at least {MIN_REPEATS} rounds have the number")
    grid = _grid(claim, part, rounds) if claim.column in SHARES and claim.over is None else 0.0
    return Estimate(tuple(rounds), math.hypot(own, grid), claim.is_log, len(claim.looks))


def _of_part(claim: Sampled, part: ClaimPart) -> tuple[list[float], float]:
    """The number of each round, and the standard error that they share."""
    if claim.over is not None:
        return _slopes_of_part(claim, part)
    if claim.compared_as == "share":
        return _share(claim, part), 0.0
    of, *against = sides = [_one_configuration(claim, side) for side in part.sides]
    paired = _paired(claim, part, *sides)
    values = [of[key].value - math.fsum(side[key].value for side in against) for key in paired]
    return values, math.hypot(*map(_own, sides))


def _paired(claim: Sampled, part: ClaimPart, *sides: Mapping[int, Number]) -> list[int]:
    """The rounds that all sides have, measured in one period with one instrument.

    Raises MeasuredApart where too few are left because of that.
    """
    shared = sorted(set(sides[0]).intersection(*sides[1:]))
    places: dict[int, set[tuple[str, ...]]] = {}
    bases = [EFFICIENCIES[column] for column in (claim.column, claim.per) if column in EFFICIENCIES]
    for row in part.rows:
        if row["status"] == "valid":
            round_places = places.setdefault(int(row["repeat"]), set())
            round_places.add(provenance(row))
            round_places |= {(name,) for name in bases if row.get(name.replace("ranks", "apart")) == 1}
    together = [key for key in shared if len(places[key]) == 1]
    if len(together) < MIN_REPEATS <= len(shared):
        apart = len(shared) - len(together)
        raise MeasuredApart(f"in {apart} of {len(shared)} rounds the sides have unlike periods or instruments")
    return together


def _grid(claim: Sampled, part: ClaimPart, rounds: Sequence[float]) -> float:
    """The standard error by counting, where rounds have equal shares: each side lies anywhere within a step.

    The step is the smallest distance between two numbers of the part. Raises NotJudged where all are equal.
    """
    if min(_gaps(rounds)) > TIE:
        return 0.0
    sides = [_rounds(claim, side, claim.is_log) for side in part.sides]
    gaps = _gaps(number.value for of_side in sides for of_round in of_side.values() for number in of_round.values())
    steps = [gap for gap in gaps if gap > TIE]
    if not steps:
        raise NotJudged(f"all runs have the same `{claim.column}`: their spread is below its steps, and not known")
    return min(steps) * math.sqrt(len(sides) / 12)


def _gaps(values: Iterable[float]) -> list[float]:
    """The distances between neighbours among the values."""
    return [high - low for low, high in pairwise(sorted(values))]


def _one_base(claim: Sampled, part: ClaimPart) -> None:
    """Raise NotJudged where the efficiencies of a part have bases of unlike rank counts."""
    for column in filter(None, (claim.column, claim.per)):
        if name := EFFICIENCIES.get(column):
            ranks = {int(row[name]) for row in part.rows if row["status"] == "valid" and is_number(row.get(name))}
            if len(ranks) > 1:
                each = " and ".join(map(str, sorted(ranks)))
                raise NotJudged(f"`{column}` has bases of {each} ranks, which do not compare")


def _rounds(claim: Sampled, side: Sequence[Row], log: bool, column: str | None = None) -> Rounds:
    """Return the numbers of a side's valid runs.

    A run without one, such as a training that never reached an accuracy, leaves the others a selection: then nothing is
    concluded from them. Of a disturbed run, no number counts that contains other programs.
    """
    column_name, per = column or claim.column, claim.per if column is None else None
    rounds: Rounds = {}
    absent = 0
    for row in side:
        if column_name in WHOLE_HOST_COLUMNS and row.get("disturbed"):
            continue
        if (number := number_of(row, column_name, per)) is None:
            absent += row["status"] == "valid"
            continue
        if extrapolated_too_far(row, column_name):
            raise NotJudged(f"`{column_name}` is extrapolated beyond the tested factor of {MAX_TESTED_FACTOR:,.0f}")
        if log and number <= 0:
            raise NotJudged(f"`{column_name}` is not above zero, and has no ratio")
        low, high = row.get(f"{column_name}_low"), row.get(f"{column_name}_high")
        own = own_error([(low, row[column_name], high)], log) if is_number(low) and is_number(high) else 0.0
        own /= abs(float(row[per])) if per and not log else 1.0
        of_round = rounds.setdefault(int(row["repeat"]), {})
        of_round[row["configuration"]] = Number(math.log(number) if log else number, own)
    if not rounds:
        undisturbed = "undisturbed " if column_name in WHOLE_HOST_COLUMNS else ""
        raise NotJudged(f"no valid {undisturbed}run has a `{column_name}`")
    if absent:
        without = f"{absent} valid run{'s' if absent > 1 else ''} without `{column_name}`"
        raise NotJudged(f"{without}, and the others are a selection")
    return rounds


def _one_configuration(claim: Sampled, side: Sequence[Row], column: str | None = None) -> dict[int, Number]:
    """The numbers of the side's one configuration, or of the one with the highest or lowest mean over rounds.

    Raises NotJudged where a configuration that could be made has no number: it might have been the one.
    """
    rounds = _rounds(claim, side, claim.is_log and column is None, column)
    numbers: dict[str, list[float]] = {}
    for round_numbers in rounds.values():
        for configuration, number in round_numbers.items():
            numbers.setdefault(configuration, []).append(number.value)
    if absent := {row["configuration"] for row in side if row["status"] != "skipped"} - set(numbers):
        raise NotJudged(f"{len(absent)} of the configurations to choose from have no number")
    means = {name: math.fsum(values) / len(values) for name, values in numbers.items()}
    name = (min if claim.take == "least" else max)(means, key=lambda name: means[name])
    return {repeat: round_numbers[name] for repeat, round_numbers in rounds.items() if name in round_numbers}


def _own(side: Mapping[int, Number]) -> float:
    """The root of the mean square of the runs' own standard errors, which repeats share."""
    return math.sqrt(math.fsum(number.own**2 for number in side.values()) / len(side)) if side else 0.0


def _share(claim: Sampled, part: ClaimPart) -> list[float]:
    """The difference in `column` over the difference in `per`, round by round."""
    of, against = (_one_configuration(claim, side, claim.column) for side in part.sides)
    whole_of, whole_against = (_one_configuration(claim, side, claim.per) for side in part.sides)
    paired = _paired(claim, part, of, against, whole_of, whole_against)
    wholes = {key: whole_of[key].value - whole_against[key].value for key in paired}
    if any(whole <= 0 for whole in wholes.values()):
        raise NotJudged(f"`{claim.per}` is not larger in every round: there is no difference to take a share of")
    return [(of[key].value - against[key].value) / whole for key, whole in wholes.items()]


def _slopes_of_part(claim: Sampled, part: ClaimPart) -> tuple[list[float], float]:
    """The slope of each round's least-squares line; of two sides the ratio of their slopes, on logarithms."""
    sides = [_slopes(claim, side, log=len(part.sides) == 1) for side in part.sides]
    paired = _paired(claim, part, *sides)
    if len(sides) == 1:
        return [sides[0][key].value for key in paired], _own(sides[0])
    if any(side[key].value <= 0 for side in sides for key in paired):
        raise NotJudged(f"`{claim.column}` does not grow over `{claim.over}`: its slopes have no ratio")
    own = math.hypot(*(_own({key: Number(0, side[key].own / side[key].value) for key in paired}) for side in sides))
    return [math.log(sides[0][key].value / sides[1][key].value) for key in paired], own


def _slopes(claim: Sampled, side: Sequence[Row], log: bool) -> dict[int, Number]:
    """For each round that has all configurations of the side, its slope."""
    y, x = _rounds(claim, side, log), _rounds(claim, side, log, claim.over)
    planned = {row["configuration"] for row in side}
    whole = [repeat for repeat, numbers in y.items() if planned == numbers.keys() & x.get(repeat, {}).keys()]
    return {repeat: _line([(x[repeat][name].value, y[repeat][name]) for name in y[repeat]]) for repeat in whole}


def _line(points: Sequence[tuple[float, Number]]) -> Number:
    """Slope of the least-squares line, and its standard error from those of the points."""
    middle = math.fsum(x for x, _ in points) / len(points)
    spread = math.fsum((x - middle) ** 2 for x, _ in points)
    if not spread:
        raise NotJudged("all runs have the same place on the axis")
    slope = math.fsum((x - middle) * number.value for x, number in points) / spread
    return Number(slope, math.sqrt(math.fsum(((x - middle) * number.own) ** 2 for x, number in points)) / spread)
