"""All runs of a folder of results as one tidy table: a row per run, a column per variable."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from scalestudy.analysis.recorded import Records
from scalestudy.analysis.summarise import storable
from scalestudy.errors import UserError, nearest
from scalestudy.files import write_text, write_with
from scalestudy.results.stored import row_of
from scalestudy.spec.columns import columns_of, matches
from scalestudy.spec.run import is_emulated


def tidy_rows(records: Records, studies: Mapping[str, tuple[str, str]]) -> list[dict[str, Any]]:
    """A row per result: keys of the run, state, metrics, instrument; `studies` has name and scale by configuration."""
    rows = []
    for run in records.runs:
        study, scale = studies.get(run.configuration, ("", ""))
        head = {"results": records.name, "study": study, "scale": scale, "run": run.run}
        row = row_of(run.result, is_emulated(run.spec))
        ids = {"configuration": run.configuration, "status": row["status"]}
        rows.append({**head, **ids, **columns_of(run.spec), **row, "ended": str(run.result.get("ended") or "")})
    return rows


def selected(
    rows: Sequence[dict[str, Any]], where: Mapping[str, Any], statuses: Sequence[str] = ()
) -> list[dict[str, Any]]:
    """The rows with the wanted values (a list: any of them), and one of the statuses where any is given."""
    _known(where, rows, "--where")
    return [
        row
        for row in rows
        if (not statuses or row["status"] in statuses) and all(matches(row.get(key), where[key]) for key in where)
    ]


def frame_of(rows: Sequence[dict[str, Any]], columns: Sequence[str] = ()) -> pd.DataFrame:
    """The rows as a table with these columns, or with all; lists as JSON text, one type per column."""
    known = _known(columns, rows, "--columns")
    # A frame of unequal rows would have NaN for what a row lacks.
    return storable(
        pd.DataFrame({name: pd.Series([row.get(name) for row in rows], dtype=object) for name in columns or known})
    )


def _known(columns: Iterable[str], rows: Sequence[dict[str, Any]], where: str) -> list[str]:
    """All columns of the rows. UserError where one of `columns` is not among them."""
    known = list(dict.fromkeys(column for row in rows for column in row))
    for column in columns:
        if column not in known:
            raise UserError(f"there is no column `{column}`", where, nearest(column, known))
    return known


def write_table(frame: pd.DataFrame, file: Path) -> None:
    """Write a table as Parquet or CSV, by the suffix of `file`."""
    if file.suffix == ".parquet":
        write_with(file, frame.to_parquet)
    elif file.suffix == ".csv":
        write_text(file, frame.to_csv(index=False, lineterminator="\n"))
    else:
        what = f"`{file.suffix or file.name}` is not a supported table format"
        raise UserError(what, str(file), "end the name in .parquet, .csv")
