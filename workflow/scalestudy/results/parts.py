"""The parts of a step, as a run of the project has measured them itself."""

from __future__ import annotations

from typing import Any

from scalestudy.spec.columns import MEASURED

PHASES = ("data_s", "convert_s", "forward_s", "backward_s", "exchange_s", "optimiser_s")
"""Columns that add up to the mean step."""


def measured_parts(result: dict[str, Any]) -> dict[str, Any]:
    """Return the mean step, seconds, of a run's result, its parts, the longest first, and sentences that say them."""
    metrics = result["metrics"]
    step_s = metrics["step_time_s"]
    parts = [{"name": name, "seconds": metrics[name]} for name in PHASES if metrics[name] is not None]
    parts.sort(key=lambda part: -part["seconds"])
    lines = [f"invalid: {result['reason']}"] if result["status"] == "invalid" else []
    if step_s is None:
        lines.append("No steady step of it was timed.")
    else:
        lines.append(f"A step takes {1e3 * step_s:.3g} ms, in this run's own measurement.")
        for part in parts:
            name, seconds = part["name"], part["seconds"]
            if seconds >= 0.005 * step_s:
                lines.append(f"{1e3 * seconds:8.3g} ms {seconds / step_s:5.0%}  {MEASURED[name].label}")
        if metrics.get("exposed_exchange_s"):
            lines.append(f"Without its exchange a step would be {1e3 * metrics['exposed_exchange_s']:.3g} ms shorter.")
    return {"run": result["run"], "step_s": step_s, "parts": parts, "sentences": lines}
