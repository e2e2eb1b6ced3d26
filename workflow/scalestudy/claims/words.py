"""The words of verdicts: one plain sentence with the number."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from scalestudy.claims.model import Comparison, Direction, Equivalence, Published, Quantity, Sampled
from scalestudy.files import canonical_json
from scalestudy.spec.labels import column_label, decimals_of, fixed, lower, unit_of, value_text
from scalestudy.spec.study import Study


def threshold_text(claim: Comparison) -> str:
    """What the number must be for the claim to hold: `above 1.05`, `1 ± 5 %`, `-0.05 ± 0.02`."""
    if isinstance(claim, Equivalence):
        is_ratio = claim.compared_as == "ratio" or claim.over is not None
        return f"1 within a factor {plain(1 + claim.within)}" if is_ratio else f"0 ± {plain(claim.within)}"
    if isinstance(claim, (Quantity, Published)) and claim.value is not None:
        return f"{plain(claim.value)} ± {plain(claim.within or 0.0)}"
    assert isinstance(claim, (Direction, Published))
    return f"below {plain(claim.below or 0.0)}" if claim.above is None else f"above {plain(claim.above)}"


def plain(value: float) -> str:
    """A number with up to six significant digits."""
    return f"{value:,.6g}" if abs(value) < 1e6 else f"{value:,.0f}"


def interval_text(value: float | None, low: float | None, high: float | None, unit: str) -> str:
    """`0.571 [0.532 … 0.610]`, to two digits of the half width; without an interval the value alone, without a value nothing."""
    if value is None:
        return ""
    if low is None or high is None or high - low <= 1e-9 * abs(value):
        return f"{plain(value)} {unit}".strip()
    half = min(abs(high - value), abs(value - low)) or abs(high - low)
    decimals = decimals_of(half) if math.isfinite(half) else 2
    mean, left, right = (fixed(each, decimals) if math.isfinite(each) else "∞" for each in (value, low, high))
    return f"{mean} [{left} … {right}] {unit}".strip()


def compared_text(study: Study, claim: Comparison, value: Any = None) -> str:
    """The number of a claim in words: `throughput: ring ÷ halving-doubling`; `value` is that of `each` where it has several."""
    name, sign, sides = lower(column_label(claim.column)), "÷", list(claim.sides.values())
    if isinstance(claim, Sampled):
        if claim.compared_as == "share":
            name = f"part of {lower(column_label(str(claim.per)))} that is {name}"
        elif claim.per is not None:
            name += f" per {lower(column_label(claim.per))}"
        if claim.over is not None:
            log = "log " if claim.against is None else ""
            name = f"slope of {log}{name} over {log}{lower(column_label(claim.over))}"
        if claim.each is not None and value is not None:
            if not any(claim.each in side for side in sides):
                name += f", {side_text(study, {claim.each: value})}"
            sides = [{**side, claim.each: value} if isinstance(side.get(claim.each), list) else side for side in sides]
        sign = "−" if claim.compared_as in ("difference", "share") else "÷"
    side_texts = [side_text(study, side) for side in sides]
    return f"{name}: " + f" {sign} ".join(side or "the others" for side in side_texts) if any(side_texts) else name


def side_text(study: Study, where: Mapping[str, Any]) -> str:
    """A side in the words of tables and figures: `parameter server, 4 ranks`."""
    return ", ".join(_choice(study, key, value) for key, value in where.items())


def _choice(study: Study, key: str, value: Any) -> str:
    """A key with its value, or its several values: `loader workers per rank 1 or 2`."""
    whole = canonical_json(value) in study.labels.get(key, {})  # the value of a key may be a list itself
    first, *others = value if isinstance(value, list) and value and not whole else [value]
    value_texts = [value_text(study, key, first, named=True), *(value_text(study, key, one) for one in others)]
    last = value[-1] if others else None  # it has no unit yet; the first has one
    is_plain = canonical_json(last) not in study.labels.get(key, {})
    unit = unit_of(key) if is_plain and isinstance(last, (int, float)) else ""
    return f"{' or '.join(value_texts)} {unit}".strip()
