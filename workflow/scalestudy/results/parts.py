"""The parts of the mean step, as runs of the project have measured them themselves."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from scalestudy.spec.columns import MEASURED, is_number
from scalestudy.spec.labels import number

COMPUTE, APART = "compute_s", ("forward_s", "backward_s")
"""Forward and backward as one part, of runs that do not tell them apart; and each of them."""
PARTS = ("data_s", "convert_s", COMPUTE, *APART, "exchange_s", "optimiser_s")
"""Parts in their order within a step. The place of a part here is its look in every figure."""


def parts_of(runs: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """Mean seconds of each part over the runs that have it.

    Forward and backward stand apart only where runs have both: an overlapped exchange is a part of their sum.
    """
    values = {part: [row[part] for row in runs if is_number(row.get(part))] for part in PARTS}
    means = {part: math.fsum(several) / len(several) for part, several in values.items() if several}
    left_out = (COMPUTE,) if set(APART) <= means.keys() else APART
    return {part: mean for part, mean in means.items() if part not in left_out}


def step_in_words(result: Mapping[str, Any]) -> dict[str, Any]:
    """The mean step of a run's result, seconds, its parts, the longest first, and sentences that say them."""
    metrics = result["metrics"]
    step_s = metrics.get("step_time_s")  # a run that did not fit has none
    parts = sorted(parts_of([metrics]).items(), key=lambda part: -part[1])
    lines = [f"invalid: {result['reason']}"] if result["status"] == "invalid" else []
    if step_s is None:
        lines.append("No steady step of it was timed.")
    else:
        lines.append(f"A step takes {number(1e3 * step_s, 3)} ms, in this run's own measurement.")
        for name, seconds in parts:
            if seconds >= 0.005 * step_s:
                lines.append(f"{number(1e3 * seconds, 3):>8} ms {seconds / step_s:5.0%}  {MEASURED[name].label}")
        if (exposed_s := metrics.get("exposed_exchange_s")) is not None:
            ends = result.get("intervals", {}).get("exposed_exchange_s") or (exposed_s, exposed_s)
            low, high = (1e3 * end for end in ends)
            between = f"{number(low, 3)} to {number(high, 3)} ms"
            shorter = f"Without its exchange a step would be {number(1e3 * exposed_s, 3)} ms shorter ({between})."
            unknown = f"Whether its exchange makes a step longer cannot be told: by {between}."
            lines.append(shorter if low > 0 else unknown)
    return {
        "run": result["run"],
        "step_s": step_s,
        "parts": [{"name": name, "seconds": seconds} for name, seconds in parts],
        "sentences": lines,
    }
