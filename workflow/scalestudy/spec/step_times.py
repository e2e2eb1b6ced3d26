"""How long a published accelerator takes for one step. Imports no torch: studies are checked and plans made with it."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from scalestudy.errors import UserError, nearest
from scalestudy.files import read_table
from scalestudy.spec.layout import reference_file
from scalestudy.spec.run import INFINITE

STEP_TIMES = reference_file("step_times")
MAX_BEYOND = 2.0
"""How far below the smallest and above the largest published batch a step time is still inferred, as a factor."""


@dataclass(frozen=True)
class PublishedStepTime:
    """One row of step_times.csv."""

    model: str
    accelerator: str
    batch: int
    images_per_s: float
    source: str


def emulated_step_time(model: str, accelerator: str, rank_batch: int, table: Path = STEP_TIMES) -> float:
    """Seconds that the accelerator takes to train one batch: batch over the published training throughput.

    Between two published batch sizes, the logarithm of the throughput is linear in that of the batch. Beyond them, up to
    a factor of 2, the line through the two nearest rows continues; a single row's throughput is taken as it is. `infinite`
    takes no time. Raises UserError beyond that factor, and where the table has no such model or accelerator.
    """
    rows = published_rows(model, accelerator, rank_batch, table)
    if not rows:
        return 0.0
    low, high = rows[0], rows[-1]
    slope = 0.0
    if low is not high:
        slope = math.log(high.images_per_s / low.images_per_s) / math.log(high.batch / low.batch)
    return rank_batch / (low.images_per_s * float((rank_batch / low.batch) ** slope))


def published_rows(
    model: str, accelerator: str, rank_batch: int, table: Path = STEP_TIMES
) -> tuple[PublishedStepTime, ...]:
    """The rows that a step time follows from: one, or two on a line; none if `infinite`. Raises as `emulated_step_time`."""
    if accelerator == INFINITE:
        return ()
    if not table.is_file():
        raise UserError("the table of step times is missing", str(table), "run the command at the top of the project")
    published = _read(table.resolve(), table.stat().st_mtime_ns)
    of_accelerator = [row for row in published if row.accelerator == accelerator]
    if not of_accelerator:
        remedy = nearest(accelerator, {row.accelerator for row in published} | {INFINITE})
        raise UserError(f"no step times are known for accelerator `{accelerator}`", str(table), remedy)
    rows = sorted((row for row in of_accelerator if row.model == model), key=lambda row: row.batch)
    if not rows:
        remedy = nearest(model, {row.model for row in of_accelerator})
        raise UserError(f"no step time of `{model}` on `{accelerator}` is known", str(table), remedy)
    if not rows[0].batch / MAX_BEYOND <= rank_batch <= rows[-1].batch * MAX_BEYOND:
        batches = ", ".join(str(row.batch) for row in rows)
        what = (
            f"step times of `{model}` on `{accelerator}` are published for batches of {batches}, none near {rank_batch}"
        )
        first, last = math.ceil(rows[0].batch / MAX_BEYOND), math.floor(rows[-1].batch * MAX_BEYOND)
        raise UserError(what, str(table), f"choose a batch per rank from {first} to {last}")
    exact = [row for row in rows if row.batch == rank_batch]
    begin = min(max(sum(row.batch < rank_batch for row in rows) - 1, 0), max(len(rows) - 2, 0))
    return tuple(exact[:1] or rows[begin : begin + 2])


@lru_cache(maxsize=8)
def _read(table: Path, changed_ns: int) -> tuple[PublishedStepTime, ...]:
    """The rows of a table; it is read once per change, for a plan asks for the step time of every run."""
    needed = ("model", "accelerator", "batch", "images_per_s", "source")
    rows = read_table(table, needed, wholes=("batch",), numbers=("images_per_s",))
    return tuple(
        PublishedStepTime(
            row["model"], row["accelerator"], int(row["batch"]), float(row["images_per_s"]), row["source"]
        )
        for row in rows
    )
