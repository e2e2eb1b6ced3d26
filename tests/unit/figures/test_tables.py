"""Tables in three formats."""

from __future__ import annotations

import csv
from typing import Any

import pytest

from scalestudy.analysis.summarise import summarise
from scalestudy.figures.tables import cell_text, head_of, latex, markdown, scales_of, write_table
from scalestudy.spec.study import Run, Study
from tests.unit.analysis.fake_results import MACHINE, write_results


def written(study: Study) -> dict[str, str]:
    summarise(study, MACHINE)
    return {file.suffix: file.read_text(encoding="utf-8") for file in write_table(study, MACHINE, "times")}


@pytest.mark.parametrize(
    ("result", "runs", "cells", "marked", "note", "in_latex"),
    [
        ({"disturbed": True}, 1, "2.5† |", 4, "†: includes disturbed runs (1 of 12): other processes", r"\textdagger{}"),
        ({"kinds": {"training_time_s": "extrapolated"}}, 12, r"| \~1.553 ± 0.024 |", 5,
         r"\~: extrapolated from a measured window", r"$\sim$1.553 $\pm$ 0.024"),
        ({"metrics": {"extrapolation_factor": 2e4}, "kinds": {"training_time_s": "extrapolated"}}, 12,
         r"| \~1.55 |", 6, r"\~ without an interval: beyond a factor of 1,000", r"$\sim$1.55 "),
        ({"kinds": {"throughput_samples_per_s": "reported"}}, 12, r"| \*161", 9,
         r"\*: reported by the program, not measured", "*161"),
    ],
)  # fmt: skip
def test_a_number_that_is_not_plainly_measured_is_marked_and_the_mark_is_explained(
    study: Study, result: dict[str, Any], runs: int, cells: str, marked: int, note: str, in_latex: str
) -> None:
    """`marked`: cells with the mark, ratios of what is reported among them, and the notes on it."""
    write_results(study, lambda run: dict(result) if run in study.runs[:runs] else {})

    text = written(study)

    mark = note.partition(":")[0].split()[0]
    assert cells in text[".md"] and note in text[".md"] and text[".md"].count(mark) == marked
    assert in_latex in text[".tex"]


def test_markdown_has_units_in_the_head_and_the_number_of_runs(study: Study) -> None:
    write_results(study)

    lines = written(study)[".md"].splitlines()

    assert lines[2] == "| Strategy | Ranks | n | Training time (min) | Throughput (samples/s) | Scaling efficiency |"
    # over the geometric mean of both series on one rank; the mean of 15000 s over 160, 161 and 162, in minutes, and 160, 161, 162 samples/s
    assert lines[5].startswith(r"| ring & all\_reduce | 2 | 3 | 1.553 ± 0.024 | 161.0 ± 2.5 | 1.127 ± 0.010 |")


def test_a_value_that_no_valid_run_has_is_named_below_in_place_of_an_empty_column(study: Study) -> None:
    write_results(study, lambda run: {"metrics": {"training_time_s": None}})

    text = written(study)

    assert text[".md"].splitlines()[2] == "| Strategy | Ranks | n | Throughput (samples/s) | Scaling efficiency |"
    assert "No value in any run: training time" in text[".md"] and "No value in any run: training time" in text[".tex"]


def test_runs_that_are_not_in_the_table_are_listed_with_their_reason(study: Study) -> None:
    def change(run: Run) -> dict[str, Any]:
        first = run.id == study.runs[0].id
        return {"status": "skipped", "reason": "no | GPU"} if first else {}

    write_results(study, change)

    text = written(study)[".md"]

    assert r"- ring & all\_reduce, 1 rank, repeat 1: skipped: no \| GPU" in text
    assert r"| ring & all\_reduce | 1 | 2 of 3 |" in text


def test_markup_is_escaped() -> None:
    assert latex(r"50% of $x_1 {a}\b ~ #2") == r"50\% of \$x\_1 \{a\}\textbackslash{}b $\sim$ \#2"
    assert markdown("a|b*c_d <e>") == r"a\|b\*c\_d \<e>"
    assert markdown("a_b in `c_d`") == r"a\_b in `c_d`"


def test_csv_has_full_numbers_in_the_columns_own_units(study: Study) -> None:
    write_results(study)

    row = list(csv.DictReader(written(study)[".csv"].splitlines()))[1]

    keys = ("strategy", "strategy (label)", "ranks", "n")
    assert [row[key] for key in keys] == ["allreduce", "ring & all_reduce", "2", "3"]
    assert row["throughput_samples_per_s"] == "160.9979296"
    assert row["training_time_s"] == "93.16889999"
    assert (row["training_time_s_kind"], row["training_time_s_disturbed"]) == ("measured", "0")


def test_a_key_has_its_unit_in_the_head_unless_its_values_have_labels() -> None:
    keys = ("data.shard.mib", "loader.storage.mib_per_s", "loader.storage.latency_ms", "network.mib_per_s")
    assert head_of(keys, ("network.mib_per_s",), (), ()) == [
        "Size of a file (MiB)", "Rate of the emulated storage (MiB/s)", "Latency of the emulated storage (ms)", "Rate of the emulated network", "n",
    ]  # fmt: skip


def test_all_sizes_of_a_table_have_one_unit() -> None:
    values, rows = ("read_bytes", "expected_read_bytes"), [(72.6, 59.3), (0.04, 0.0), (30.0, 22.9)]
    records = [dict(zip(values, (2**20 * size for size in row), strict=True)) for row in rows]
    assert scales_of(values, records) == [(2**20, "MiB")] * 2


def test_a_value_that_some_runs_never_reached_is_a_bound_and_no_mean() -> None:
    ends = {"t": None, "t_low": 13.4, "t_high": None, "t_kind": "censored", "t_censored": 2}
    assert cell_text(ends, "t", 1) == "> 13.4 (2)"
