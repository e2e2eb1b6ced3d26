"""How long a published accelerator takes for one step. Imports no torch: studies are checked and plans made with it."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from scalestudy.errors import UserError, nearest
from scalestudy.files import read_table
from scalestudy.spec.layout import reference_file

STEP_TIMES = reference_file("step_times")
INFINITE = "infinite"
"""The accelerator that takes no time."""
FURTHEST = 2.0
"""How far below the smallest and above the largest published batch a step time is still inferred, as a factor."""


@dataclass(frozen=True)
class PublishedStepTime:
    """One row of step_times.csv."""

    model: str
    accelerator: str
    batch: int
    images_per_s: float
    source: str


@dataclass(frozen=True)
class StepTime:
    """Seconds of one step, and the published rows that they follow from: one, or two on a line; none if `infinite`."""

    seconds: float
    rows: tuple[PublishedStepTime, ...] = ()


class NotTimed(UserError):
    """There is no published step time of this model on this accelerator."""


class BatchTooFar(UserError):
    """No step time is published for a batch near the asked one."""


def emulated_step_time(model: str, accelerator: str, rank_batch: int, table: Path = STEP_TIMES) -> float:
    """Seconds that the accelerator takes to train one batch; see `published_step_time`."""
    return published_step_time(model, accelerator, rank_batch, table).seconds


def published_step_time(model: str, accelerator: str, rank_batch: int, table: Path = STEP_TIMES) -> StepTime:
    """The time to train one batch: batch over the published training throughput.

    Between two published batch sizes, the logarithm of the throughput is linear in that of the batch. Beyond them, up to
    a factor of 2, the line through the two nearest rows continues; a single row's throughput is taken as it is. `infinite`
    takes no time. Raises BatchTooFar beyond that factor, UserError where the table has no such model or accelerator.
    """
    if accelerator == INFINITE:
        return StepTime(0.0)
    rows = _rows(model, accelerator, table)
    first, last = rows[0].batch, rows[-1].batch
    if not first / FURTHEST <= rank_batch <= last * FURTHEST:
        batches = ", ".join(str(row.batch) for row in rows)
        raise BatchTooFar(
            f"step times of `{model}` on `{accelerator}` are published for batches of {batches}, and none near the "
            f"{rank_batch} of a rank",
            str(table),
            f"choose a batch per rank from {math.ceil(first / FURTHEST)} to {math.floor(last * FURTHEST)}"
            + _others(model, rank_batch, table),
        )
    exact = next((row for row in rows if row.batch == rank_batch), None)
    used = (exact,) if exact else _nearest_two(rows, rank_batch)
    return StepTime(rank_batch / _images_per_s(used, rank_batch), used)


def _nearest_two(rows: list[PublishedStepTime], batch: int) -> tuple[PublishedStepTime, ...]:
    """The rows on both sides of a batch, else the two at the end that it is beyond; of one row that one."""
    above = sum(row.batch < batch for row in rows)
    begin = min(max(above - 1, 0), max(len(rows) - 2, 0))
    return tuple(rows[begin : begin + 2])


def _images_per_s(rows: tuple[PublishedStepTime, ...], batch: int) -> float:
    low, high = rows[0], rows[-1]
    if low is high:
        return low.images_per_s
    slope = math.log(high.images_per_s / low.images_per_s) / math.log(high.batch / low.batch)
    return low.images_per_s * float((batch / low.batch) ** slope)


def _rows(model: str, accelerator: str, table: Path) -> list[PublishedStepTime]:
    """A model's rows of one accelerator, by batch."""
    rows = _read(table)
    of_accelerator = [row for row in rows if row.accelerator == accelerator]
    if not of_accelerator:
        known = {row.accelerator for row in rows} | {INFINITE}
        raise NotTimed(
            f"no step times are known for accelerator `{accelerator}`", str(table), nearest(accelerator, known)
        )
    of_model = [row for row in of_accelerator if row.model == model]
    if not of_model:
        known = {row.model for row in of_accelerator}
        raise NotTimed(f"no step time of `{model}` on `{accelerator}` is known", str(table), nearest(model, known))
    return sorted(of_model, key=lambda row: row.batch)


def _others(model: str, batch: int, table: Path) -> str:
    """The accelerators that have a published batch near enough, as the end of a remedy."""
    near = {
        row.accelerator
        for row in _read(table)
        if row.model == model and row.batch / FURTHEST <= batch <= row.batch * FURTHEST
    }
    return f", or another accelerator: {', '.join(sorted(near))}" if near else ""


def _read(table: Path) -> tuple[PublishedStepTime, ...]:
    if not table.is_file():
        raise UserError("the table of step times is missing", str(table), "run the command at the top of the project")
    return _parsed(table.resolve(), table.stat().st_mtime_ns)


@lru_cache(maxsize=8)
def _parsed(table: Path, changed_ns: int) -> tuple[PublishedStepTime, ...]:
    """The rows of a table; it is read once per change, for a plan asks for the step time of every run."""
    needed = ("model", "accelerator", "batch", "images_per_s", "source")
    rows = read_table(table, needed, wholes=("batch",), numbers=("images_per_s",))
    found = tuple(
        PublishedStepTime(
            row["model"], row["accelerator"], int(row["batch"] or 0), float(row["images_per_s"] or 0), row["source"]
        )
        for row in rows
    )
    if wrong := next((row for row in found if row.batch < 1 or row.images_per_s <= 0), None):
        what = f"`{wrong.model}` on `{wrong.accelerator}` needs a batch from 1, and images_per_s above 0"
        raise UserError(what, str(table), "correct that row")
    return found
