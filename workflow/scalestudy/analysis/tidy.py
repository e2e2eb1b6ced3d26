"""All runs of folders of results as one tidy table: a row per run, a column per variable."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from scalestudy.analysis.recorded import Records, row_of
from scalestudy.analysis.summarise import storable
from scalestudy.errors import UserError, nearest
from scalestudy.files import write_text, write_with
from scalestudy.spec.columns import METRICS, columns_of, matches
from scalestudy.spec.run import is_emulated

SUFFIXES = (".parquet", ".csv")
MEANINGS = {
    "results": "Folder of results: machine, or machine+campaign",
    "study": "First study that has the run; empty where no study here has it",
    "scale": "Scale at which that study has it",
    "run": "Id of the run",
    "configuration": "The same for all repeats of one configuration, on every machine",
    "status": "valid, invalid or skipped",
    "reason": "Why it is not valid",
    "kind": "Kind of the training time: measured or extrapolated",
    "reported": "Columns that the program reported itself, in place of being measured",
    "emulated": "Whether compute, storage, network or page cache are emulated",
    "oversubscribed": "Whether ranks computed with more threads than there are cores, or shared an accelerator",
    "disturbed": "Whether others used the machine during the window",
    "started": "When it began, ISO 8601",
    "ended": "When it ended, ISO 8601",
}
"""Columns that are neither a key of the run, nor measured, nor part of the instrument."""


def tidy_rows(folders: Sequence[Records], studies: Mapping[str, tuple[str, str]]) -> list[dict[str, Any]]:
    """A row per result; `studies` has name and scale by configuration. The columns are those of `described`."""
    rows = []
    for records in folders:
        for run in records.runs:
            study, scale = studies.get(run.configuration, ("", ""))
            head = {"results": records.name, "study": study, "scale": scale}
            made = {**row_of(run.result, is_emulated(run.spec)), "ended": str(run.result.get("ended") or "")}
            facts = {key: made.pop(key) for key in MEANINGS if key in made}
            ids = {"run": run.run, "configuration": run.configuration}
            rows.append({**head, **ids, **facts, **columns_of(run.spec), **made})
    return rows


def selected(
    rows: Sequence[dict[str, Any]], where: Mapping[str, Any], statuses: Sequence[str] = ()
) -> list[dict[str, Any]]:
    """The rows with the wanted values (a list: any of them), and one of the statuses where any is given."""
    known = dict.fromkeys(column for row in rows for column in row)
    for key in where:
        _known(key, known, "--where")
    return [
        row
        for row in rows
        if (not statuses or row["status"] in statuses) and all(matches(row.get(key), where[key]) for key in where)
    ]


def frame_of(rows: Sequence[dict[str, Any]], columns: Sequence[str] = ()) -> pd.DataFrame:
    """The rows as a table with these columns, or with all; lists as JSON text, one type per column."""
    known = dict.fromkeys(column for row in rows for column in row)
    for column in columns:
        _known(column, known, "--columns")
    # A frame of unequal rows would have NaN for what a row lacks.
    return storable(
        pd.DataFrame({name: pd.Series([row.get(name) for row in rows], dtype=object) for name in columns or known})
    )


def _known(column: str, known: Mapping[str, None], where: str) -> None:
    if column not in known:
        raise UserError(f"there is no column `{column}`", where, nearest(column, known))


def described(columns: Sequence[str]) -> list[dict[str, str]]:
    """Name, unit and meaning of each column."""
    facts = []
    for name in columns:
        unit, meaning = "", MEANINGS.get(name, f"Key `{name}` of the run")
        if name in METRICS:
            unit, meaning = METRICS[name].unit, METRICS[name].meaning
        elif name.startswith("instrument."):
            meaning = "What the run was measured with"
        facts.append({"column": name, "unit": unit, "meaning": meaning})
    return facts


def write_table(frame: pd.DataFrame, file: Path) -> list[Path]:
    """Write a table by the suffix of `file`, with units and meanings; returns the files.

    Parquet has them as metadata of its columns; a CSV file has a second one beside it.
    """
    facts = described(list(frame.columns))
    if file.suffix == ".parquet":
        table = pa.Table.from_pandas(frame, preserve_index=False)
        notes = [{"unit": fact["unit"], "meaning": fact["meaning"]} for fact in facts]
        fields = [field.with_metadata(note) for field, note in zip(table.schema, notes, strict=True)]
        table = table.cast(pa.schema(fields, table.schema.metadata))
        write_with(file, lambda temporary: pq.write_table(table, temporary))
        return [file]
    if file.suffix == ".csv":
        meanings = file.with_name(f"{file.stem}.columns.csv")
        write_text(file, frame.to_csv(index=False, lineterminator="\n"))
        write_text(meanings, pd.DataFrame(facts).to_csv(index=False, lineterminator="\n"))
        return [file, meanings]
    what = f"`{file.suffix or file.name}` is not a supported table format"
    raise UserError(what, str(file), "end the name in " + ", ".join(SUFFIXES))
