"""From the runs of a claim's sides to one estimate: a number per round, and the rounds' mean with its standard error."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from scipy.special import ndtri

from scalestudy.claims.inference import ERROR, Estimate, of_rounds, of_two_samples
from scalestudy.claims.model import Sampled
from scalestudy.claims.select import ClaimPart, Row
from scalestudy.spec.columns import base_column

FEWEST = 2
"""One round has no spread."""


@dataclass(frozen=True)
class Number:
    """One run's number, on logarithms where the claim is, and the standard error that it brings along."""

    value: float
    own: float = 0.0


Rounds = dict[int, dict[str, Number]]
"""For each round, the number of each configuration."""


class NotJudged(Exception):
    """Why runs that are there give no estimate."""


def estimate(claim: Sampled, part: ClaimPart) -> Estimate:
    """What the valid runs of a part say. Raises NotJudged where they are too few or have no such number.

    Sides are compared round by round, because runs of one round share their seed and were made one after the other; where
    too few rounds have both, as two independent samples.
    """
    log = claim.is_log
    _one_base(claim, part)
    if claim.over is not None:
        return _slope(claim, part)
    of = _rounds(claim, part.of, log)
    if part.against is None:
        one = _one_configuration(claim, of, part.of)
        _enough(claim, len(one))
        return of_rounds([number.value for number in one.values()], _own(one), log=log)
    if claim.compared_as == "share":
        return _share(claim, part)
    against = _rounds(claim, part.against, log)
    sides = [_one_configuration(claim, of, part.of), _one_configuration(claim, against, part.against)]
    own = math.hypot(*(_own(side) for side in sides))
    pairs = sorted(set(sides[0]) & set(sides[1]))
    if len(pairs) >= max(FEWEST, claim.repeats):
        return of_rounds([sides[0][key].value - sides[1][key].value for key in pairs], own, log=log)
    _enough(claim, min(map(len, sides)))
    left, right = ([number.value for number in side.values()] for side in sides)
    return of_two_samples(left, right, own, log=log)


def _one_base(claim: Sampled, part: ClaimPart) -> None:
    """Raise NotJudged where the efficiencies or speed-ups of a part have bases of unlike rank counts."""
    for column in filter(None, (claim.column, claim.per)):
        if name := base_column(column):
            ranks = sorted({int(row[name]) for row in part.rows if row["status"] == "valid" and _finite(row.get(name))})
            if len(ranks) > 1:
                raise NotJudged(f"`{column}` has bases of {' and '.join(map(str, ranks))} ranks, which do not compare")


def _enough(claim: Sampled, rounds: int) -> None:
    if rounds < max(FEWEST, claim.repeats):
        raise NotJudged(f"{rounds} of at least {max(FEWEST, claim.repeats)} rounds have the number")


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
        if log and value <= 0:
            raise NotJudged(f"`{wanted}` is not above zero, and has no ratio")
        number = Number(math.log(value) if log else value, _own_error(row, wanted, log))
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
    """The standard error that an extrapolated number brings: half its 95 % interval over 1.96."""
    low, high = row.get(f"{column}_low"), row.get(f"{column}_high")
    if not (_finite(low) and _finite(high)) or (log and not float(low or 0) > 0):
        return 0.0
    ends = (math.log(float(low)), math.log(float(high))) if log else (float(low), float(high))  # type: ignore[arg-type]
    return (ends[1] - ends[0]) / 2 / float(ndtri(1 - ERROR / 2))


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


def _share(claim: Sampled, part: ClaimPart) -> Estimate:
    """The difference in `column` over the difference in `per`, round by round."""
    assert part.against is not None and claim.per is not None
    parts, whole = (
        [_one_configuration(claim, _rounds(claim, side, False, column), side) for side in (part.of, part.against)]
        for column in (claim.column, claim.per)
    )
    shared = sorted(set(parts[0]) & set(parts[1]) & set(whole[0]) & set(whole[1]))
    differences = {key: whole[0][key].value - whole[1][key].value for key in shared}
    shares = [
        (parts[0][key].value - parts[1][key].value) / difference
        for key, difference in differences.items()
        if difference
    ]
    _enough(claim, len(shares))
    return of_rounds(shares)


def _slope(claim: Sampled, part: ClaimPart) -> Estimate:
    """The slope of each round's least-squares line; of two sides the ratio of their slopes, on logarithms."""
    if part.against is None:
        slopes = _slopes(claim, part.of, log=True)
        _enough(claim, len(slopes))
        return of_rounds([number.value for number in slopes.values()], _own(slopes))
    sides = [_slopes(claim, side, log=False) for side in (part.of, part.against)]
    pairs = sorted(set(sides[0]) & set(sides[1]))
    _enough(claim, len(pairs))
    if any(side[key].value <= 0 for side in sides for key in pairs):
        raise NotJudged(f"`{claim.column}` does not grow over `{claim.over}`: its slopes have no ratio")
    own = math.hypot(*(_own({key: Number(0, n.own / n.value) for key, n in side.items()}) for side in sides))
    return of_rounds([math.log(sides[0][key].value / sides[1][key].value) for key in pairs], own, log=True)


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
