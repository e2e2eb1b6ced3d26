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


MADE = "exchange is real, data is made in memory, nothing is loaded"
WAITS = "Emulated compute waits for published step times (resnet50 on p100, batch 32); "


@pytest.mark.parametrize(
    ("rows", "said"),
    [
        ([row()], f"{WAITS}loading is real"),
        ([row(**{"data.source": "synthetic"}, ranks=2)], f"{WAITS}{MADE}"),
        ([row(**{"loader.mode": "synthetic"}, ranks=2)], f"{WAITS}{MADE}"),
        ([row(device="emulated:infinite")], "emulated:infinite computes in no time; loading is real"),
    ],
)
def test_what_is_emulated_is_said_with_the_published_batch_and_what_stays_real(
    rows: list[dict[str, Any]], said: str
) -> None:
    assert notes.emulated(rows) == said


@pytest.mark.parametrize(
    ("changes", "published", "said"),
    [
        ({}, [{"model": "resnet50", "training_time_s": "604987"}], "published in TensorFlow benchmarks"),
        ({}, [], ""),
        ({"device": "emulated:infinite"}, [{"model": "resnet50"}], ""),
        ({"status": "missing"}, [{"model": "resnet50"}], ""),
        ({}, [{"model": "vgg16"}], ""),
    ],
)
def test_only_a_point_that_waited_for_a_published_number_is_said_to_agree_with_it_by_construction(
    changes: dict[str, str], published: list[dict[str, str]], said: str
) -> None:
    note = notes.by_construction([row(**changes)], published)
    assert said in note and ("by construction" in note) is bool(said)


def test_a_figure_says_by_how_much_it_is_extrapolated_and_that_numbers_are_reported() -> None:
    rows = [row(extrapolation_factor=12.3), row(extrapolation_factor=300_270.0), row(extrapolation_factor=None)]

    assert notes.extrapolated(rows, EXTRAPOLATED)[-1] == (
        "From window to whole training: a factor of 12 to 300,000; beyond 1,000 the interval is not known"
    )
    assert notes.extrapolated([row()], EXTRAPOLATED)[-1] == "From window to whole training: a factor of 1,000"
    reported = [Line("a", (Point(1.0, 2.0, kind="reported"),), "series")]
    assert notes.extrapolated([row()], reported) == ["Reported by the program, not measured"]


def test_runs_of_two_periods_are_said_to_be_measured_apart() -> None:
    trusted = {"disturbed": False, "drifted": False}
    rows = [row(**trusted, period=number, started=f"2026-11-2{number}T10:00:00") for number in (1, 2, 2)]

    assert notes.trust(rows) == [
        "Measured apart: 2026-11-21 (1 run); 2026-11-22 (2 runs); a change of the machine in between cannot be told "
        "from an effect"
    ]
