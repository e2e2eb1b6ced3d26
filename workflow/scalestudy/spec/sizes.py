"""Sizes of data as text, such as `64 MiB`, in bytes."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from scalestudy.spec.machine import Machine
    from scalestudy.spec.run import RunSpec

SIZE = re.compile(r"^([0-9]+(?:\.[0-9]+)?) *([KMGT]i?B|x node memory)$")
UNITS = {"K": 1, "M": 2, "G": 3, "T": 4}
MAX_BYTES = 10**18


def size_in_bytes(size: str, node_memory_bytes: int) -> float:
    """`64 MiB` or `2x node memory` in bytes; 0 where it is not a size."""
    if (match := SIZE.match(size)) is None:
        return 0.0
    number, unit = float(match[1]), match[2]
    if unit == "x node memory":
        return number * node_memory_bytes
    return number * float((1024 if "i" in unit else 1000) ** UNITS[unit[0]])


def in_bytes(spec: RunSpec, machine: Machine) -> RunSpec:
    """A run with the size of its data turned into bytes, so that the id names its size on this machine."""
    if not isinstance(spec.data.scale, str):
        return spec
    scale = kilobytes(spec.data.scale, machine)
    return spec.model_copy(update={"data": spec.data.model_copy(update={"scale": scale})})


def kilobytes(size: Any, machine: Machine) -> Any:
    """Text that is a size, alone or in a list, in kB; everything else as it is."""
    if isinstance(size, list):
        return [kilobytes(one, machine) for one in size]
    count = size_in_bytes(size, machine.memory_bytes) if isinstance(size, str) else 0
    return f"{max(1, round(count / 1000))} KB" if 0 < count <= MAX_BYTES else size
