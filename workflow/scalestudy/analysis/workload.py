"""Keys that tell the configurations of a study apart; runs of one workload, and of one series within it. Nothing heavy."""

from __future__ import annotations

from scalestudy.files import canonical_json
from scalestudy.spec.study import Study

GEOMETRY = {"ranks", "nodes", "ranks_per_node", "seed", "repeat"}
NEVER_IN_STEP = ("model", "data.source", "device", "dtype")
EXCHANGE_KEYS = ("strategy", "network")
"""What a run on one rank without exchange does not use."""


def series_of(study: Study) -> dict[str, str]:
    """For each run, its series: all varied keys agree but the ranks and those that move with them."""
    return _groups(study, ())


def workload_of(study: Study) -> dict[str, str]:
    """For each run, its workload: series that differ in nothing but how ranks exchange share one."""
    return _groups(study, EXCHANGE_KEYS)


def _groups(study: Study, left_out: tuple[str, ...]) -> dict[str, str]:
    # Repeats of a configuration differ in what is dropped.
    columns = study.configurations({})
    drop = GEOMETRY | _in_step(study, list(columns.values()))
    group = {}
    for configuration, row in columns.items():
        dropped = {*drop, "batch.global" if row["scaling"] == "weak" else "batch.per_rank"}
        kept = (key for key in row if key not in dropped and key.partition(".")[0] not in left_out)
        group[configuration] = canonical_json({key: row[key] for key in kept})
    return {run.id: group[run.configuration] for run in study.runs}


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


def varied_columns(study: Study) -> list[str]:
    """The fewest columns that tell a study's configurations apart: varied keys, or keys below them."""
    rows = list(study.configurations({}).values())

    def told_apart(columns: list[str]) -> int:
        return len({canonical_json([row.get(column) for column in columns]) for row in rows})

    chosen: list[str] = []
    for key in study.varied:
        parts = dict.fromkeys(column for row in rows for column in row if column == key or column.startswith(f"{key}."))
        for part in sorted(parts, key=lambda column: not column.endswith((key, ".source", ".name"))):
            if told_apart([*chosen, part]) > told_apart(chosen):
                chosen.append(part)
    for column in list(chosen):
        others = [other for other in chosen if other != column]
        if told_apart(others) == told_apart(chosen):
            chosen = others
    return chosen
