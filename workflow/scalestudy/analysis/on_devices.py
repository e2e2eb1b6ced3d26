"""Findings about the accelerators of runs: the best of each model and precision, in sentences."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from statistics import median
from typing import Any

from scalestudy.spec.emulated import is_emulated
from scalestudy.spec.run import RunSpec

Made = tuple[RunSpec, Mapping[str, Any]]
"""A run and its result."""


def about_devices(runs: Sequence[Made]) -> list[str]:
    """Sentences about each accelerator on which valid runs were made; none where all ran on the CPU."""
    valid = [(spec, result) for spec, result in runs if result["status"] == "valid" and not is_emulated(spec)]
    names = dict.fromkeys(name for _, result in valid if (name := device_of(result)) != "cpu")
    return [line for name in names for line in _about(name, [made for made in valid if device_of(made[1]) == name])]


def device_of(result: Mapping[str, Any]) -> str:
    """The accelerator of a run, as its vendor calls it; `cpu` where there was none."""
    return str((result.get("instrument") or {}).get("device_name") or "cpu")


def _about(name: str, made: Sequence[Made]) -> Iterator[str]:
    yield f"{name}:"
    of_kind: dict[tuple[str, str], dict[str, list[Made]]] = {}
    for spec, result in made:
        key = (spec.model.name, precision(spec))
        configuration = f"{spec.ranks}.{spec.rank_batch}.{spec.strategy.name}.{spec.loader.workers}.{spec.data.plain()}"
        of_kind.setdefault(key, {}).setdefault(configuration, []).append((spec, result))
    for (model, number_type), configurations in of_kind.items():
        best = max(configurations.values(), key=lambda runs: _middle(runs, "throughput_samples_per_s") or 0.0)
        yield f"  {model}, {number_type}: {_best(best)}"


def precision(spec: RunSpec) -> str:
    """Number type of the compute, and the layout where it is not the usual one."""
    layout = "" if spec.memory_format == "contiguous" else f", {spec.memory_format.replace('_', ' ')}"
    return f"{spec.autocast or ('TF32' if spec.tf32 else spec.dtype)}{layout}"


def _best(runs: Sequence[Made]) -> str:
    spec = runs[0][0]
    parts = [f"{_middle(runs, 'throughput_samples_per_s') or 0:,.0f} samples/s with a batch of {spec.rank_batch}"]
    if spec.ranks > 1:
        parts.append(f"on each of {spec.ranks} ranks")
    for column, words in (
        ("device_utilisation", "used {:.0%} of the time"),
        ("device_power_w", "{:,.0f} W"),
        ("j_per_sample", "{:.2g} J per sample"),
        ("data_stall", "{:.0%} of a step waits for data"),
    ):
        value = _middle(runs, column)
        if value is not None:
            parts.append(words.format(value))
    return f"{', '.join(parts)} (median of {len(runs)})"


def _middle(runs: Sequence[Made], column: str) -> float | None:
    values = [value for _, result in runs if (value := (result.get("metrics") or {}).get(column)) is not None]
    return median(values) if values else None
