"""Which runs of a study belong to one workload, and to one series within it."""

from __future__ import annotations

from typing import Any

from scalestudy.files import canonical_json
from scalestudy.spec.study import Study

GEOMETRY = {"ranks", "nodes", "ranks_per_node", "seed", "repeat"}
NEVER_IN_STEP = ("model", "data.source", "device", "dtype")
OF_EXCHANGE = ("strategy", "network")
"""What a run on one rank without exchange does not use."""


def series_of(study: Study) -> dict[str, str]:
    """For each run, its series: all varied keys agree but the ranks and those that move with them."""
    return _groups(study, ())


def workload_of(study: Study) -> dict[str, str]:
    """For each run, its workload: series that differ in nothing but how ranks exchange share one."""
    return _groups(study, OF_EXCHANGE)


def _groups(study: Study, left_out: tuple[str, ...]) -> dict[str, str]:
    # Repeats of a configuration differ in what is dropped.
    runs = {run.configuration: run for run in study.runs}
    columns = {configuration: run.columns for configuration, run in runs.items()}
    drop = GEOMETRY | _in_step(study, list(columns.values()))
    group = {configuration: _group(row, drop, left_out) for configuration, row in columns.items()}
    return {run.id: group[run.configuration] for run in study.runs}


def _group(row: dict[str, Any], drop: set[str], left_out: tuple[str, ...]) -> str:
    dropped = drop | _follows(str(row["scaling"]))
    kept = {key: value for key, value in row.items() if key not in dropped and key.partition(".")[0] not in left_out}
    return canonical_json(kept)


def _follows(scaling: str) -> set[str]:
    return {"batch.global"} if scaling == "weak" else {"batch.per_rank"}


def _in_step(study: Study, rows: list[dict[str, object]]) -> set[str]:
    """Varied keys that have exactly one value for each rank count: varied by `zip` together with the ranks."""
    steps = set()
    for key in study.varied:
        # `strategy` stands for `strategy.name` and its options, so what is below a key goes with it.
        parts = {column for row in rows for column in row if column == key or column.startswith(f"{key}.")}
        if key.startswith(NEVER_IN_STEP) or not parts:
            continue
        pairs = {canonical_json([row["ranks"], {part: row.get(part) for part in sorted(parts)}]) for row in rows}
        if len(pairs) == len({row["ranks"] for row in rows}):
            steps |= parts
    return steps
