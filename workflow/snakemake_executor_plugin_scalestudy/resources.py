"""From the resources of a Snakemake job to a request to a scheduler."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from snakemake_executor_plugin_scalestudy.schedulers import Request
from snakemake_executor_plugin_scalestudy.schedulers.settings import checked_word

COUNTS = {"nodes": 1, "ranks_per_node": 1, "gpus_per_node": 0, "cpus_per_rank": 1, "gpus_held_per_node": 0}
"""Resources with a default; `cpus_per_rank` defaults to the rule's threads."""


def request_of(resources: Mapping[str, Any], threads: int, name: str, script: Path, log: Path) -> Request:
    """What a job asks for. ValueError, with a sentence, where a resource is no whole number or too small."""
    counts = {key: _count(resources, key, default) for key, default in COUNTS.items()}
    if resources.get("cpus_per_rank") is None:
        counts["cpus_per_rank"] = max(1, threads)
    queue = resources.get("queue")
    return Request(
        name=name,
        script=script,
        log=log,
        nodes=counts["nodes"],
        ranks_per_node=counts["ranks_per_node"],
        gpus_per_node=counts["gpus_per_node"],
        cpus_per_rank=counts["cpus_per_rank"],
        mem_mb=_optional(resources, "mem_mb"),
        runtime_min=_optional(resources, "runtime"),
        gpus_held_per_node=counts["gpus_held_per_node"],
        queue=None if queue is None else checked_word(str(queue), "the resource `queue`"),
    )


def _count(resources: Mapping[str, Any], key: str, default: int) -> int:
    value = resources.get(key)
    if value is None:
        return default
    least = 0 if key.startswith("gpus_") else 1
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise ValueError(f"the resource `{key}` must be a whole number of at least {least}, not {value!r}")
    return value


def _optional(resources: Mapping[str, Any], key: str) -> int | None:
    value = resources.get(key)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise ValueError(f"the resource `{key}` must be a whole number of at least 1, not {value!r}")
    return value
