"""The published numbers that are shipped."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any, get_args

import pytest

from scalestudy.errors import UserError
from scalestudy.figures.reference import Reference, read_reference
from scalestudy.models.catalogue import Torchvision

FOLDER = Path(__file__).resolve().parents[3] / "config" / "reference"
FILES = ["tsubame_resnet50", "tsubame_resnet50_improved", "caltech_workers", "flow_rannc"]


@pytest.mark.parametrize("name", FILES)
def test_every_published_number_names_the_model_the_data_and_the_device_that_it_is_for(name: str) -> None:
    for row in read_reference(name, FOLDER):
        assert row["model"] and row["data.source"], row
        assert row["device"] == "cuda", row


RUN = {
    "model": "resnet50",
    "ranks": 1,
    "data.source": "caltech256",
    "device": None,
    "instrument.device_name": "Tesla V100-SXM2-16GB",
    "loader.workers": 1,
    "data.preprocess": "none",
}


@pytest.mark.parametrize(
    ("changes", "drawn"),
    [
        ({}, 2),
        ({"device": "cuda"}, 2),
        ({"data.source": "synthetic_jpeg"}, 0),
        ({"device": "emulated:a100", "instrument.device_name": "cpu"}, 0),
        ({"instrument.device_name": "cpu"}, 0),
        ({"instrument.device_name": ""}, 0),
        ({"model": "alexnet"}, 0),
    ],
)
def test_published_numbers_are_drawn_only_beside_runs_of_like_data_device_and_model(
    changes: dict[str, Any], drawn: int
) -> None:
    rows = read_reference("caltech_workers", FOLDER)

    lines = Reference(rows, "loader.workers", "throughput_samples_per_s", "data.preprocess").lines([{**RUN, **changes}])

    assert len(lines) == drawn
    no_such_axis = Reference(rows, "loader.workers", "exchange_s", "data.preprocess").citation([], [{**RUN, **changes}])
    assert no_such_axis.endswith("are not drawn: they do not hold “Exchange” over “Loader workers per rank”")


def test_a_number_without_a_source_is_refused_with_its_line(tmp_path: Path) -> None:
    (tmp_path / "bare.csv").write_text("label,ranks,source\na,1,somewhere\nb,2,\n", encoding="utf-8")

    with pytest.raises(UserError, match=r"bare\.csv:3: a published number needs a `source`"):
        read_reference("bare", tmp_path)


def test_step_times_are_unambiguous_and_of_known_models() -> None:
    with open(FOLDER / "step_times.csv", encoding="utf-8", newline="") as stream:
        rows = list(csv.DictReader(stream))

    assert len({(row["model"], row["accelerator"], row["batch"]) for row in rows}) == len(rows)
    assert {row["model"] for row in rows} <= set(get_args(Torchvision.model_fields["name"].annotation))
    assert all(float(row["images_per_s"]) > 0 and row["source"] for row in rows)
    for accelerator in {row["accelerator"] for row in rows}:
        assert len({row["precision"] for row in rows if row["accelerator"] == accelerator}) == 1
