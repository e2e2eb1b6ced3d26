"""Sizes of data as text, such as `64 MiB`, in bytes."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, TypeVar

from scalestudy.figures.catalogue import FigureSpec, TableSpec

if TYPE_CHECKING:
    from scalestudy.spec.machine import Machine
    from scalestudy.spec.run import RunSpec

Drawing = TypeVar("Drawing", FigureSpec, TableSpec)

SIZE = re.compile(r"^([0-9]+(?:\.[0-9]+)?) *([KMGT]i?B|x node memory)$")
UNITS = {"K": 1, "M": 2, "G": 3, "T": 4}
MOST_BYTES = 10**18


def size_in_bytes(size: str, node_memory_bytes: int) -> float:
    """`64 MiB` or `2x node memory` in bytes; 0 where it is not a size."""
    match = SIZE.match(size)
    if match is None:
        return 0.0
    number, unit = float(match[1]), match[2]
    return number * (
        node_memory_bytes if unit == "x node memory" else (1024 if "i" in unit else 1000) ** UNITS[unit[0]]
    )


def in_bytes(spec: RunSpec, machine: Machine) -> RunSpec:
    """A run with the size of its data turned into bytes, so that the id names its size on this machine."""
    if not isinstance(spec.data.scale, str):
        return spec
    scale = _kilobytes(spec.data.scale, machine)
    return spec.model_copy(update={"data": spec.data.model_copy(update={"scale": scale})})


def where_in_bytes(drawing: Drawing, machine: Machine) -> Drawing:
    """`where: {data.scale: 64 MiB}` in the words of the rows, which say bytes."""
    return drawing.model_copy(update={"where": filter_in_bytes(drawing.where, machine)})


def filter_in_bytes(where: Mapping[str, Any], machine: Machine) -> dict[str, Any]:
    """A choice of runs with `data.scale`, or a list of them, in bytes as in the rows."""
    size = where.get("data.scale")
    wanted = [_as_in_rows(one, machine) for one in size] if isinstance(size, list) else _as_in_rows(size, machine)
    return {**where, "data.scale": wanted} if "data.scale" in where else dict(where)


def _as_in_rows(size: Any, machine: Machine) -> Any:
    if not isinstance(size, str) or not 0 < size_in_bytes(size, machine.memory_bytes) <= MOST_BYTES:
        return size
    return _kilobytes(size, machine)


def _kilobytes(size: str, machine: Machine) -> str:
    return f"{max(1, round(size_in_bytes(size, machine.memory_bytes) / 1000))} KB"
