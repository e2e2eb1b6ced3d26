"""What the full training of each run costs: device hours, and money or points at the machine's prices."""

from __future__ import annotations

import math

import pandas as pd

from scalestudy.spec.config import find_machine
from scalestudy.spec.machine import Prices

HOUR_S = 3600.0


def with_cost(rows: pd.DataFrame, machine: str) -> pd.DataFrame:
    """`rows` with the columns `device_hours` and `cost`, of the whole training and of the staging before it.

    A rank occupies one device for that time: an accelerator, the emulated one where compute is emulated, and on a CPU
    machine the cores of the rank. Parameter servers occupy none. The cost adds up what the machine prices: device
    hours, and hours of the nodes that the run used. Where compute is emulated there is no cost: the prices are those
    of another device.
    """
    rows = rows.copy()
    found = find_machine(machine)
    prices = None if found is None else found.prices
    rows["device_hours"] = rows["ranks"].astype(float) * rows["time_to_train_s"] / HOUR_S
    rows["cost"] = [math.nan if prices is None else _cost(row, prices) for _, row in rows.iterrows()]
    rows["currency"] = "" if prices is None else prices.currency
    valid = rows["status"] == "valid"
    rows.loc[~valid, ["device_hours", "cost"]] = math.nan
    return rows


def _cost(row: pd.Series, prices: Prices) -> float:
    nodes = row["nodes_used"]
    if row["emulated"] or (prices.per_node_hour and (nodes is None or math.isnan(nodes))):
        return math.nan
    node_hours = (nodes or 0.0) * row["time_to_train_s"] / HOUR_S
    return float((prices.per_device_hour or 0.0) * row["device_hours"] + (prices.per_node_hour or 0.0) * node_hours)
