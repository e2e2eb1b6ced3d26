"""Findings about the accelerators of runs: the best of each model and precision, in sentences."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import median
from typing import Any

from scalestudy.spec.ids import configuration_id
from scalestudy.spec.run import RunSpec, is_emulated

Made = tuple[RunSpec, Mapping[str, Any]]
"""A run and its result."""
SPEED = "throughput_samples_per_s"
FACTS = {
    "device_utilisation": "used {:.0%} of the time",
    "device_power_w": "{:,.0f} W",
    "j_per_sample": "{:.2g} J per sample",
    "data_stall": "{:.0%} of a step waits for data",
}


def about_devices(runs: Sequence[Made]) -> list[str]:
    """Sentences about each accelerator on which valid runs were made; none where all ran on the CPU."""
    of_device: dict[str, dict[tuple[str, str], dict[str, list[Made]]]] = {}
    for spec, result in runs:
        device = str((result.get("instrument") or {}).get("device_name") or "cpu")
        if result["status"] == "valid" and not is_emulated(spec) and spec.program is None and device != "cpu":
            of_kind = of_device.setdefault(device, {}).setdefault((spec.model.name, precision(spec)), {})
            of_kind.setdefault(configuration_id(spec), []).append((spec, result))
    lines = []
    for device, of_model in of_device.items():
        lines.append(f"{device}:")
        for (model, number_type), configurations in of_model.items():
            best = max(configurations.values(), key=lambda made: _middle(made, SPEED) or 0.0)
            lines.append(f"  {model}, {number_type}: {_facts(best)}")
    return lines


def precision(spec: RunSpec) -> str:
    """Number type of the compute, and the layout where it is not the usual one."""
    layout = "" if spec.memory_format == "contiguous" else f", {spec.memory_format.replace('_', ' ')}"
    return f"{spec.autocast or ('TF32' if spec.tf32 else spec.dtype)}{layout}"


def _facts(runs: Sequence[Made]) -> str:
    spec = runs[0][0]
    parts = [f"{_middle(runs, SPEED) or 0:,.0f} samples/s with a batch of {spec.rank_batch}"]
    if spec.ranks > 1:
        parts.append(f"on each of {spec.ranks} ranks")
    parts += [text.format(value) for column, text in FACTS.items() if (value := _middle(runs, column)) is not None]
    return f"{', '.join(parts)} (median of {len(runs)})"


def _middle(runs: Sequence[Made], column: str) -> float | None:
    values = [value for _, result in runs if (value := (result.get("metrics") or {}).get(column)) is not None]
    return median(values) if values else None
