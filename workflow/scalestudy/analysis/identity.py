"""Keys that tell the configurations of a study apart. Imports nothing heavy: the driver's display needs it as well."""

from __future__ import annotations

from scalestudy.files import canonical_json
from scalestudy.spec.study import Study


def varied_columns(study: Study) -> list[str]:
    """The fewest columns that tell a study's configurations apart: varied keys, or keys below them."""
    rows = [run.columns for run in study.runs if run.repeat == 0]

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
