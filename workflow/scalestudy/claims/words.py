"""The words of verdicts: one plain sentence with the number."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from scalestudy.claims.model import Comparison, Direction, Equivalence, Published, Quantity, Sampled
from scalestudy.files import canonical_json
from scalestudy.spec.columns import MEASURED
from scalestudy.spec.study import Study, label_of

if TYPE_CHECKING:
    from scalestudy.claims.verdict import Verdict


def unit_of_claim(claim: Comparison) -> str:
    """The unit of what a claim compares; of a ratio, a share or a slope none."""
    if claim.column is None or claim.compared_as in ("ratio", "share") or getattr(claim, "over", None):
        return ""
    units = [MEASURED[column].unit if column in MEASURED else "" for column in (claim.column, claim.per) if column]
    return units[0] if len(units) == 1 else ""


def threshold_text(claim: Comparison) -> str:
    """What the number must be for the claim to hold: `above 1.05`, `1 ± 5 %`, `-0.05 ± 0.02`."""
    if isinstance(claim, Equivalence):
        assert claim.within is not None
        return f"1 within a factor {plain(1 + claim.within)}" if _is_ratio(claim) else f"0 ± {plain(claim.within)}"
    if isinstance(claim, (Quantity, Published)) and claim.value is not None:
        return f"{plain(claim.value)} ± {plain(claim.within or 0.0)}"
    if isinstance(claim, (Direction, Published)):
        above = claim.above is not None
        limit = claim.above if above else claim.below
        return f"{'above' if above else 'below'} {plain(limit or 0.0)}"
    return ""


def _is_ratio(claim: Comparison) -> bool:
    return claim.compared_as == "ratio" or getattr(claim, "over", None) is not None


def plain(value: float) -> str:
    """A number with up to six significant digits."""
    return f"{value:,.6g}" if abs(value) < 1e6 else f"{value:,.0f}"


def interval_text(value: float | None, low: float | None, high: float | None, unit: str) -> str:
    """`0.571 [0.532 … 0.610]`, to two digits of the half width; without an interval the value alone, without a value nothing."""
    if value is None:
        return ""
    if low is None or high is None or low == high:
        return f"{plain(value)} {unit}".strip()
    half = min(abs(high - value), abs(value - low)) or abs(high - low)
    decimals = 1 - math.floor(math.log10(half)) if math.isfinite(half) else 2
    mean, left, right = (_rounded(number, decimals) for number in (value, low, high))
    return f"{mean} [{left} … {right}] {unit}".strip()


def _rounded(value: float, decimals: int) -> str:
    if not math.isfinite(value):
        return "∞"
    return f"{round(value, decimals):,.{max(0, min(decimals, 12))}f}"


def number_text(claim: Comparison) -> str:
    """What the number is, in words."""
    column = _name(claim.column) + (f" per {_name(claim.per)}" if claim.per and claim.compared_as != "share" else "")
    if isinstance(claim, Sampled) and claim.over is not None:
        over = f"{column} over {_name(claim.over)}"
        return (
            f"the slope of log {over} on log"
            if claim.against is None
            else f"the ratio of the slopes of {column} over {_name(claim.over)}"
        )
    kinds = {
        "ratio": f"the ratio of {column}",
        "difference": f"the difference in {column}",
        "share": f"the share of the difference in {_name(claim.per)} that lies in {_name(claim.column)}",
        "value": column,
    }
    return kinds[claim.compared_as]


def _name(column: str | None) -> str:
    if column is None:
        return ""
    if column in MEASURED:
        label = MEASURED[column].label
        return label[:1].lower() + label[1:] if not label[:2].isupper() else label
    return f"`{column}`"


def finding_text(study: Study, claim: Sampled, verdict: Verdict, value: Any) -> str:
    """The number of a judged claim with its sides, limit, rounds and reason; `value` is that of the deciding `each`."""
    number = interval_text(verdict.estimate, verdict.low, verdict.high, verdict.unit)
    said = f"{number_text(claim)}{sides_text(study, claim, value)} is {number}; required: {verdict.threshold}"
    said += f"; {rounds(verdict.n or 0)} of this campaign"
    said += f", {verdict.apart} far from the others" if verdict.apart else ""
    said += f", look {verdict.look} of {len(verdict.looks)}" if len(verdict.looks) > 1 else ""
    if verdict.disturbed:
        said += f", {verdict.disturbed} of {len(verdict.runs)} runs disturbed by other work"
    return said + (f". {verdict.reason[0].upper()}{verdict.reason[1:]}" if verdict.reason else "")


def sides_text(study: Study, claim: Comparison, value: Any = None) -> str:
    """` with strategy ring over that with strategy halving-doubling`; `value` is that of `each`, where it has several."""
    of, against = (_with_each(claim, side, value) for side in (claim.of, claim.against or {}))
    named = claim.each is None or any(claim.each in (side or {}) for side in (claim.of, claim.against))
    at = "" if named or value is None else part_text(study, claim.each, value)
    return _sides_text(claim, side_text(study, of), side_text(study, against)) + at


def _with_each(claim: Comparison, side: Mapping[str, Any], value: Any) -> dict[str, Any]:
    """A side's choice, its list of values for `each` replaced by the one that is compared."""
    several = claim.each is not None and isinstance(side.get(claim.each), list)
    return {**side, str(claim.each): value} if several and value is not None else dict(side)


def _sides_text(claim: Comparison, of: str, against: str) -> str:
    if claim.against is None:
        return f" with {of}" if of else ""
    between = "against" if claim.compared_as in ("difference", "share") else "over"
    if of and against:
        return f" with {of} {between} that with {against}"
    return f" with {of} {between} that with the others" if of else ""


def side_text(study: Study, where: Mapping[str, Any]) -> str:
    """`strategy ring, ranks 4`, in the study's own labels."""
    return ", ".join(f"{_key(key)} {_values(study, key, value)}" for key, value in where.items())


def _key(key: str) -> str:
    return key.rsplit(".", maxsplit=1)[-1].replace("_", " ")


def _values(study: Study, key: str, value: Any) -> str:
    whole = canonical_json(value) in study.labels.get(key, {})  # the value of a key may be a list itself
    values = value if isinstance(value, list) and not whole else [value]
    said = [label_of(study.labels, key, one) for one in values]
    return " or ".join("none" if one == "None" else one for one in said)


def part_text(study: Study, each: str | None, value: Any) -> str:
    """` at strategy ring` for one of several comparisons."""
    return "" if each is None else f", at {_key(each)} {_values(study, each, value)}"


def duration(seconds: float) -> str:
    """`40 s`, `12 min`, `3.5 h`."""
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"


def rounds(count: int) -> str:
    """`1 round`, `5 rounds`."""
    return f"{count} round" if count == 1 else f"{count} rounds"
