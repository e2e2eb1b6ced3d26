"""What is said below figures about emulated and extrapolated numbers."""

from __future__ import annotations

from typing import Any

import pytest

from scalestudy.figures import notes
from scalestudy.figures.chart import Line, Point

EXTRAPOLATED = [Line("a", (Point(1.0, 2.0, kind="extrapolated"),), "series")]


def row(**changes: Any) -> dict[str, Any]:
    """A valid run of ResNet-50 on an emulated P100, with images, on one rank."""
    return {
        "status": "valid", "emulated": True, "device": "emulated:p100", "model": "resnet50", "batch.per_rank": 32,
        "ranks": 1, "data.source": "synthetic_jpeg", "loader.mode": None, "extrapolation_factor": 1000.0, **changes,
    }  # fmt: skip


def test_the_published_batch_that_a_step_time_is_of_is_named() -> None:
    assert notes.emulated([row()]) == (
        "Emulated compute waits for published step times (resnet50 on p100, batch 32); loading is real"
    )


@pytest.mark.parametrize("made", [{"data.source": "synthetic"}, {"loader.mode": "synthetic"}])
def test_loading_is_not_called_real_where_data_is_made_in_memory(made: dict[str, str]) -> None:
    assert notes.emulated([row(**made, ranks=2)]).endswith(
        "; exchange is real, data is made in memory, nothing is loaded"
    )


def test_an_emulated_point_beside_published_ones_says_that_it_agrees_by_construction() -> None:
    published = [{"model": "resnet50", "training_time_s": "604987"}]

    said = notes.by_construction([row()], published)

    assert "by construction" in said and "published in TensorFlow benchmarks" in said


@pytest.mark.parametrize(
    ("changes", "published"),
    [
        ({}, []),
        ({"device": "emulated:infinite"}, [{"model": "resnet50"}]),
        ({"status": "missing"}, [{"model": "resnet50"}]),
        ({}, [{"model": "vgg16"}]),
    ],
)
def test_nothing_agrees_by_construction_where_no_published_number_was_waited_for(
    changes: dict[str, str], published: list[dict[str, str]]
) -> None:
    assert notes.by_construction([row(**changes)], published) == ""


def test_a_figure_says_by_how_much_it_is_extrapolated() -> None:
    rows = [row(extrapolation_factor=12.3), row(extrapolation_factor=300_270.0), row(extrapolation_factor=None)]

    assert notes.extrapolated(rows, EXTRAPOLATED)[-1] == (
        "From window to whole training: a factor of 12 to 300,000; beyond 1,000 the interval is not known"
    )
    assert notes.extrapolated([row()], EXTRAPOLATED)[-1] == "From window to whole training: a factor of 1,000"


def test_a_figure_of_reported_numbers_says_so() -> None:
    lines = [Line("a", (Point(1.0, 2.0, kind="reported"),), "series")]
    assert notes.extrapolated([row()], lines) == ["Reported by the program, not measured"]
