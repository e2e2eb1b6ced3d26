"""What the full training costs: hours of devices, and the machine's prices."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from scalestudy.analysis.summarise import study_rows
from scalestudy.spec.machine import Prices
from scalestudy.spec.study import Run, Study
from tests.unit.analysis.fake_results import MACHINE, SCALING, read_study, write_results


def priced(study: Study, **prices: Any) -> Study:
    return replace(study, prices=Prices.model_validate({"currency": "points", **prices}))


def two_hours(run: Run) -> dict[str, object]:
    return {"metrics": {"time_to_train_s": 7200.0}, "resolved": {"nodes": 1}}


def test_the_cost_adds_up_what_the_machine_prices(study: Study) -> None:
    study = priced(study, per_device_hour=3, per_node_hour=10)
    write_results(study, two_hours)

    rows = study_rows(study, MACHINE)

    # Two hours on one node: 20 points, and 3 for each of 2 or 4 device hours.
    assert rows.groupby("ranks")["cost"].unique().to_dict() == {1: [26.0], 2: [32.0]}
    assert rows.groupby("ranks")["device_hours"].unique().to_dict() == {1: [2.0], 2: [4.0]}
    assert set(rows["currency"]) == {"points"}


def test_a_machine_never_trains_for_free(study: Study) -> None:
    with pytest.raises(ValidationError, match="`prices` has no price"):
        priced(study)


def test_emulated_compute_has_device_hours_and_no_cost(study: Study, tmp_path: Path) -> None:
    text = SCALING.replace("model: small_cnn", 'model: resnet50\n  device: "emulated:p100"')
    emulated = priced(read_study(tmp_path, text), per_device_hour=3)
    write_results(emulated, two_hours)

    rows = study_rows(emulated, MACHINE)

    assert rows["device_hours"].notna().all() and rows["cost"].isna().all()


def test_the_cost_of_an_extrapolated_training_is_extrapolated_with_its_interval(study: Study) -> None:
    own = {"kinds": {"time_to_train_s": "extrapolated"}, "intervals": {"time_to_train_s": [3600.0, 14400.0]}}
    write_results(study, lambda run: {**two_hours(run), **own})

    row = study_rows(study, MACHINE).iloc[0]

    assert (row["device_hours_kind"], row["device_hours_low"], row["device_hours_high"]) == ("extrapolated", 1.0, 4.0)
    assert pytest.approx(2.0) == row["device_hours"]
