"""How long a published accelerator takes for one step. Imports no torch: plans are made with it."""

from __future__ import annotations

import csv
from pathlib import Path

from scalestudy.errors import UserError, nearest

STEP_TIMES = Path("config/reference/step_times.csv")


def emulated_step_time(model: str, accelerator: str, rank_batch: int, table: Path = STEP_TIMES) -> float:
    """Seconds that the accelerator takes to train one batch: batch over the published training throughput.

    `infinite` takes no time. Where a model has several rows for an accelerator, the batch size nearest to the run's is
    taken. Raises UserError naming what the table has.
    """
    if accelerator == "infinite":
        return 0.0
    if not table.is_file():
        raise UserError("the table of step times is missing", str(table), "run the command at the top of the project")
    with open(table, encoding="utf-8", newline="") as stream:
        rows = list(csv.DictReader(stream))
    of_accelerator = [row for row in rows if row["accelerator"] == accelerator]
    if not of_accelerator:
        known = {row["accelerator"] for row in rows} | {"infinite"}
        raise UserError(
            f"no step times are known for accelerator `{accelerator}`", str(table), nearest(accelerator, known)
        )
    of_model = [row for row in of_accelerator if row["model"] == model]
    if not of_model:
        known = {row["model"] for row in of_accelerator}
        raise UserError(f"no step time of `{model}` on `{accelerator}` is known", str(table), nearest(model, known))
    row = min(of_model, key=lambda row: abs(int(row["batch"]) - rank_batch))
    return rank_batch / float(row["images_per_s"])
