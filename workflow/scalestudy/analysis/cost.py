"""Cost of each run's full training: device hours, and money or points at the machine's prices."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import pandas as pd

if TYPE_CHECKING:
    from scalestudy.spec.prices import Prices

HOUR_S = 3600.0


def with_cost(rows: pd.DataFrame, prices: Prices | None) -> pd.DataFrame:
    """`rows` with the columns `device_hours` and `cost`, of the whole training and of the staging before it.

    A rank occupies one device for that time: an accelerator, the emulated one where compute is emulated, and on a CPU
    machine the cores of the rank. Parameter servers occupy none. The cost adds up the machine's prices: device
    hours, and hours of the nodes that the run used. Where a part is emulated there is no cost: the time is not
    the machine's own use.
    """
    rows = rows.copy()
    for end in ("", "_low", "_high"):
        hours = (rows[f"time_to_train_s{end}"] / HOUR_S).where(rows["status"] == "valid")
        rows[f"device_hours{end}"] = rows["ranks"].astype(float) * hours
        rows[f"cost{end}"] = math.nan if prices is None else _cost(rows, hours, prices)
    rows["device_hours_kind"] = rows["cost_kind"] = rows["time_to_train_s_kind"]
    rows["currency"] = "" if prices is None else prices.currency
    return rows


def _cost(rows: pd.DataFrame, hours: pd.Series, prices: Prices) -> pd.Series:
    """The cost of so many hours of each run."""
    nodes = pd.to_numeric(rows["nodes_used"]) if prices.per_node_hour else 0.0
    hourly: pd.Series[float] = prices.per_hour(rows["ranks"].astype(float), nodes)
    return (hourly * hours).where(~rows["emulated"])
