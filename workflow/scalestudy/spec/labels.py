"""How columns, keys, values, quantities and runs are written in figures, tables and verdicts."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from decimal import Decimal
from typing import TYPE_CHECKING, Any

from scalestudy.files import canonical_json
from scalestudy.spec.columns import MEASURED, SPEEDS

if TYPE_CHECKING:
    from scalestudy.spec.study import Study

DIGITS = 3
"""Significant digits of a number that has no interval."""
KEYS = {
    "batch.global": "Global batch",
    "batch.per_rank": "Batch per rank",
    "data.preprocess": "Preprocessing",
    "data.samples": "Training samples",
    "data.scale": "Scale of the data",
    "data.shard.format": "Format of the data",
    "data.shard.mib": "Size of a file",
    "data.source": "Data",
    "dtype": "Number type",
    "hosts": "Host",
    "loader.kind": "Workers as",
    "loader.memory_limit_mib": "Limit of the page cache",
    "loader.mode": "Input mode",
    "loader.prefetch": "Batches ahead per worker",
    "loader.storage.latency_ms": "Latency of the emulated storage",
    "loader.storage.mib_per_s": "Rate of the emulated storage",
    "loader.workers": "Loader workers per rank",
    "measure.steps": "Window of steps",
    "memory_limit_mib": "Memory limit",
    "network.latency_ms": "Latency of the emulated network",
    "network.mib_per_s": "Rate of the emulated network",
    "stage.to": "Data path",
    "strategy.stages": "Stages asked for",
}
NOT_SET = {
    "loader.memory_limit_mib": "no limit",
    "measure.steps": "the whole training",
    "memory_limit_mib": "no limit",
    "stage.to": "read where it lies",
}
"""What a key says that has no value; of others a dash."""
SELF_EXPLAINING = ("model", "strategy", "device", "data.source", "data.preprocess", "dtype")
"""Keys whose values say by themselves what they are."""
TIME = ((1e-6, "µs"), (1e-3, "ms"), (1.0, "s"), (60.0, "min"), (3600.0, "h"), (86400.0, "days"))
BYTES = ((1.0, "B"), (2.0**10, "KiB"), (2.0**20, "MiB"), (2.0**30, "GiB"), (2.0**40, "TiB"))
PREFIXES = ("", "k", "M", "G", "T", "P")
STEPS = {
    "s": TIME,
    "B": BYTES,
    "MiB": BYTES,
    **{unit: tuple((1e3**power, prefix + unit) for power, prefix in enumerate(PREFIXES)) for unit in ("B/s", "FLOP/s")},
}
"""Of each unit that has others for small and large values, these with their factors on it; of MiB, on a byte."""
UNIT = re.compile(r"[_.](?:(ms|s)|(mib|gib|kib|bytes)(_per_s)?)$")
"""A key's unit, at the end of its name."""


def number(value: float, digits: int = DIGITS) -> str:
    """A number with that many significant digits, plainly written; whole numbers are not rounded."""
    if value == 0 or not math.isfinite(value):
        return "0" if value == 0 else "–"
    decimals = max(0, digits - 1 - math.floor(math.log10(abs(value))))
    text = f"{value:,.{min(decimals, 12)}f}"
    return text.rstrip("0").rstrip(".") if "." in text else text


def decimals_of(half_width: float) -> int:
    """Decimal places that show two significant digits of a half-width; negative: tens, hundreds, … are rounded."""
    # 0.0996 is 0.10, which has two digits after the point and not three.
    exponent = math.floor(math.log10(half_width))
    return 1 - (exponent + 1 if round(half_width / 10.0**exponent, 1) >= 10 else exponent)


def fixed(value: float, decimals: int) -> str:
    """A number rounded to decimal places, thousands separated."""
    rounded = round(value, decimals)
    return f"{rounded + 0.0:,.{max(0, decimals)}f}"


def column_label(column: str) -> str:
    """What an axis or a table's head calls a column, without its unit."""
    if column in MEASURED:
        return MEASURED[column].label
    words = UNIT.sub("", column).rsplit(".", maxsplit=1)[-1].replace("_", " ")
    return KEYS.get(column, words[:1].upper() + words[1:])


def unit_of(column: str) -> str:
    """The unit of a column's values as they are stored."""
    if column in MEASURED:
        return MEASURED[column].unit
    match = UNIT.search(column)
    if match is None or (column.endswith("_per_s") and match[3] is None):
        return ""
    return match[1] or {"mib": "MiB", "gib": "GiB", "kib": "KiB", "bytes": "B"}[match[2]] + ("/s" if match[3] else "")


def label_of(labels: Mapping[str, Mapping[str, str]], key: str, value: Any) -> str:
    """Return a figure's label for a value of a varied key; a claim may name 1192 where a run has 1192.0."""
    of_key, same = labels.get(key, {}), [value, float(value)] if type(value) is int else [value]
    return next((of_key[text] for text in map(canonical_json, same) if text in of_key), str(value))


def value_text(study: Study, key: str, value: Any, *, named: bool = False) -> str:
    """A value of a run's key as a person reads it; `named` puts the key beside numbers: `4 ranks`."""
    label = label_of(study.labels, key, value)
    if label != str(value):
        return label
    if key == "device":
        text = str(value or "this machine")
        return f"emulated {text.partition(':')[2]}" if text.startswith("emulated:") else text
    if value is None and named:
        return NOT_SET.get(key, f"no {lower(column_label(key))}")
    if value is None:
        label = NOT_SET.get(key, "–")
    elif isinstance(value, (list, dict)):
        label = canonical_json(value)
    elif isinstance(value, float):
        label = f"{Decimal(repr(value)):,f}".removesuffix(".0")
    if not named or key in SELF_EXPLAINING:
        return label.replace("_", " ") if key in ("strategy", "data.source") else label
    if key == "ranks":
        return f"{label} rank" + ("" if label == "1" else "s")
    unit = unit_of(key) if isinstance(value, (int, float)) else ""
    return f"{lower(column_label(key))} {label} {unit}".strip()


def lower(text: str) -> str:
    """Text with a small letter at its beginning, unless that is an abbreviation."""
    return text if text[1:2].isupper() else text[:1].lower() + text[1:]


def friendly(unit: str, values: Iterable[float]) -> tuple[float, str]:
    """A factor to divide by and the unit that makes most of `values` easy to read: 1 to some hundreds."""
    finite = sorted(abs(value) for value in values if math.isfinite(value) and value)
    if not finite or unit not in STEPS:
        return 1.0, unit
    base = 2.0**20 if unit == "MiB" else 1.0
    middle = base * finite[len(finite) // 2]
    # A unit of time is left for the next where two of the next are reached: 119 s, 2 min.
    fits = [step for step in STEPS[unit] if middle >= step[0] * (2.0 if unit == "s" and step[0] > 1.0 else 1.0)]
    factor, name = (fits or STEPS[unit][:1])[-1]
    return factor / base, name


def with_unit(label: str, unit: str) -> str:
    """`Training time (h)`; a label without unit stands alone."""
    return f"{label} ({unit})" if unit else label


def quantity(value: float, unit: str) -> str:
    """A number in the unit that suits it: `4.2 min`."""
    factor, name = friendly(unit, [value])
    return f"{number(value / factor)} {name}".strip()


def speed_text(result: Mapping[str, Any]) -> str:
    """`1,240 samples/s`, `4.2 GB/s reported`: the first rate of a result, or `1.3 s in all` where it has none."""
    metrics: Mapping[str, Any] = result["metrics"]
    column = next((name for name in SPEEDS if metrics.get(name) is not None), None)
    if column is None:
        return f"{metrics.get('wall_s') or 0:.1f} s in all"
    reported = " reported" if result.get("kinds", {}).get(column) == "reported" else ""
    return quantity(metrics[column], MEASURED[column].unit) + reported


def counted(n: int, noun: str) -> str:
    """`1 run`, `2 runs`."""
    return f"{n} {noun}" + ("" if n == 1 else "s")


def listed(items: Iterable[str], most: int = 3) -> str:
    """`a; b; c; 2 more`."""
    texts = list(items)
    rest = len(texts) - most
    return "; ".join([*texts[:most], *([f"{rest} more"] if rest > 0 else [])])


def configuration_text(study: Study, keys: Sequence[str], row: Mapping[str, Any]) -> str:
    """A configuration in the words of its study: `ring all-reduce, 4 ranks`. Empty values are left out."""
    texts = (value_text(study, key, row.get(key), named=True) for key in keys if row.get(key) not in ([], {}, (), ""))
    return ", ".join(texts)


def run_text(study: Study, keys: Sequence[str], row: Mapping[str, Any]) -> str:
    """A run in the words of its study: `ring all-reduce, 4 ranks, repeat 1`, or `…, explained`."""
    which = "explained" if row.get("program.explain") is True else f"repeat {row['repeat'] + 1}"
    return ", ".join(filter(None, (configuration_text(study, keys, row), which)))
