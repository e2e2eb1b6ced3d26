"""The rows of a study's runs, read from runs.parquet by everything that is drawn or judged."""

from __future__ import annotations

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from scalestudy.errors import UserError
from scalestudy.spec.columns import columns_of_runs
from scalestudy.spec.layout import study_folder
from scalestudy.spec.study import Study


def read_rows(study: Study, machine: str) -> pd.DataFrame:
    """The rows that `summarise` wrote, with the spec's values as the study has them. Raises UserError where they are not of this study."""
    file = study_folder(machine, study.scale, study.name) / "runs.parquet"
    remedy = f"make it: snakemake {file} --cores 1"
    if not file.exists():
        raise UserError(f"study `{study.name}` is not summarised yet", str(file), remedy)
    try:
        rows = pq.read_table(file).to_pandas()
    except (OSError, pa.ArrowException) as error:
        raise UserError(f"cannot be read: {error}", str(file), f"delete it, then {remedy}") from None
    if list(rows["run"]) != [run.id for run in study.runs]:
        raise UserError(f"holds other runs than study `{study.name}` has now", str(file), remedy)
    return with_spec(rows, study)


def with_spec(rows: pd.DataFrame, study: Study) -> pd.DataFrame:
    """`rows` with the keys of each run's spec as columns, values as they are: None stays None, 1 stays an integer."""
    specs = columns_of_runs(study.runs)
    keys = dict.fromkeys(key for spec in specs for key in spec)
    columns = {key: pd.Series([spec.get(key) for spec in specs], dtype=object) for key in keys}
    return pd.concat([rows.drop(columns=list(keys), errors="ignore"), pd.DataFrame(columns)], axis=1)
