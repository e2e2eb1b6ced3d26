"""Labels of columns, keys and values, as figures, tables and verdicts write them."""

from __future__ import annotations

import math
import re
from decimal import Decimal
from typing import Any

from scalestudy.files import canonical_json
from scalestudy.spec.columns import MEASURED
from scalestudy.spec.study import Study, label_of

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
    "network.mib_per_s": "Rate of the emulated network",
    "stage.to": "Data path",
    "strategy.memory_limit_mib": "Memory limit",
    "strategy.stages": "Stages asked for",
}
NOT_SET = {
    "loader.memory_limit_mib": "no limit",
    "measure.steps": "the whole training",
    "stage.to": "read where it lies",
    "strategy.memory_limit_mib": "no limit",
}
"""What a key says that has no value; of others a dash."""
SELF_EXPLAINING = ("model", "strategy", "device", "data.source", "data.preprocess", "dtype")
"""Keys whose values say by themselves what they are."""


def number(value: float, digits: int = DIGITS) -> str:
    """A number with that many significant digits, plainly written; whole numbers are not rounded."""
    if value == 0 or not math.isfinite(value):
        return "0" if value == 0 else "–"
    decimals = max(0, digits - 1 - math.floor(math.log10(abs(value))))
    text = f"{value:,.{min(decimals, 12)}f}"
    return text.rstrip("0").rstrip(".") if "." in text else text


def column_label(column: str) -> str:
    """What an axis or a table's head calls a column, without its unit."""
    if column in MEASURED:
        return MEASURED[column].label
    words = column.rsplit(".", maxsplit=1)[-1].replace("_", " ")
    return KEYS.get(column, words[:1].upper() + words[1:])


def unit_of(column: str) -> str:
    """The unit of a column's values as they are stored."""
    if column in MEASURED:
        return MEASURED[column].unit
    match = re.search(r"[_.](?:(ms|s)|(mib|gib|kib|bytes)(_per_s)?)$", column)
    if match is None or (column.endswith("_per_s") and match[3] is None):
        return ""
    return match[1] or {"mib": "MiB", "gib": "GiB", "kib": "KiB", "bytes": "B"}[match[2]] + ("/s" if match[3] else "")


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
    return f"{lower(column_label(key))} {label}"


def lower(text: str) -> str:
    """Text with a small letter at its beginning."""
    return text[:1].lower() + text[1:]
