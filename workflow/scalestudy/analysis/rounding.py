"""How many digits of a number are written: as many as its interval bears."""

from __future__ import annotations

import math

from scalestudy.spec.labels import number

SYMMETRIC = 1.25
"""An interval is written as ± where its two sides differ by less than this factor."""


def with_interval(mean: float, low: float | None, high: float | None) -> str:
    """`6.80 ± 0.36` to two significant digits of the half-width, or `6.8 [6.1, 8.2]` where the sides differ: of the lesser.

    Without an interval, or with one that has no width: three significant digits.
    """
    if low is None or high is None or not (math.isfinite(low) and math.isfinite(high)):
        return number(mean)
    below, above = mean - low, high - mean
    half = max(below, above)
    if half <= abs(mean) * 1e-6:
        return number(mean)
    lesser = min(below, above)
    if half > SYMMETRIC * lesser > 0:
        decimals = decimals_of(lesser)
        return f"{fixed(mean, decimals)} [{fixed(low, decimals)}, {fixed(high, decimals)}]"
    decimals = decimals_of(half)
    return f"{fixed(mean, decimals)} ± {fixed(half, decimals)}"


def decimals_of(half_width: float) -> int:
    """Decimal places that show two significant digits of a half-width; negative: tens, hundreds, … are rounded."""
    # 0.0996 is 0.10, which has two digits after the point and not three.
    exponent = math.floor(math.log10(half_width))
    return 1 - (exponent + 1 if round(half_width / 10.0**exponent, 1) >= 10 else exponent)


def fixed(value: float, decimals: int) -> str:
    """A number rounded to decimal places, thousands separated."""
    rounded = round(value, decimals)
    return f"{rounded + 0.0:,.{max(0, decimals)}f}"
