"""Emulated parts of a run: the one definition, for results, claims, tables and figures."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from scalestudy.spec.run import RunSpec


def emulated_parts(spec: RunSpec) -> tuple[str, ...]:
    """The emulated parts of a run, of compute, storage, network and page cache; none of a run that is wholly real."""
    parts = {
        "compute": spec.accelerator,
        "storage": spec.loader.storage,
        "network": spec.network,
        "page cache": spec.loader.memory_limit_mib,
    }
    return tuple(name for name, emulated in parts.items() if emulated is not None)


def is_emulated(spec: RunSpec) -> bool:
    """Whether any part of a run is emulated."""
    return bool(emulated_parts(spec))


def is_compute_emulated(row: Mapping[str, Any]) -> bool:
    """The same of compute alone, for a row of a study's table: its ranks wait, use no core, and learn nothing."""
    return str(row.get("device") or "").startswith("emulated:")
