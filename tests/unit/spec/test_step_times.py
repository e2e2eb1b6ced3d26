"""Published step times: on their rows, between them, a little beyond, and no further."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest

from scalestudy.errors import UserError
from scalestudy.spec.step_times import STEP_TIMES, emulated_step_time, published_rows

HEADER = "model,accelerator,batch,images_per_s,precision,source"


def table(folder: Path, *rows: str) -> Path:
    """A table of `batch,images_per_s` of one model on one accelerator."""
    file = folder / "step_times.csv"
    file.write_text("\n".join([HEADER, *(f"net,card,{row},fp32,somewhere" for row in rows)]), encoding="utf-8")
    return file


def test_a_published_batch_takes_as_long_as_its_row_says() -> None:
    assert emulated_step_time("resnet50", "p100", 32) == pytest.approx(32 / 195)
    assert emulated_step_time("any", "infinite", 7) == 0.0
    assert [row.batch for row in published_rows("resnet50", "p100", 64)] == [64]


def test_between_two_rows_throughput_is_on_the_line_in_logarithms(tmp_path: Path) -> None:
    file = table(tmp_path, "16,100", "64,400")

    # A quarter of the batch has a quarter of the throughput, so half of it has half.
    assert emulated_step_time("net", "card", 32, file) == pytest.approx(32 / 200)
    assert [row.batch for row in published_rows("net", "card", 32, file)] == [16, 64]


def test_up_to_a_factor_of_two_beyond_the_rows_the_line_goes_on(tmp_path: Path) -> None:
    file = table(tmp_path, "16,100", "64,400", "256,400")

    assert emulated_step_time("net", "card", 8, file) == pytest.approx(8 / 50)
    assert emulated_step_time("net", "card", 512, file) == pytest.approx(512 / 400)
    assert emulated_step_time("net", "card", 32, table(tmp_path, "16,100")) == pytest.approx(0.32)


@pytest.mark.parametrize("batch", [7, 1025])
def test_further_than_a_factor_of_two_no_step_time_is_made_up(tmp_path: Path, batch: int) -> None:
    file = table(tmp_path, "16,100", "512,400")

    with pytest.raises(UserError) as raised:
        emulated_step_time("net", "card", batch, file)

    assert f"published for batches of 16, 512, none near {batch}" in str(raised.value)
    assert "choose a batch per rank from 8 to 1024" in str(raised.value)


def test_a_row_without_its_number_is_one_message(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"step_times\.csv:3: images_per_s: has no value"):
        emulated_step_time("net", "card", 16, table(tmp_path, "16,100", "64,"))


def test_a_row_that_is_left_out_is_found_again_from_its_neighbours(tmp_path: Path) -> None:
    """Within 12 % between two rows that are a factor of four apart, within 28 % a factor of two beyond them."""
    with open(STEP_TIMES, encoding="utf-8", newline="") as stream:
        rows = [row for row in csv.DictReader(stream) if row["accelerator"] in ("m60", "v100")]
    checked = 0
    for model, accelerator in {(row["model"], row["accelerator"]) for row in rows}:
        of_both = [row for row in rows if (row["model"], row["accelerator"]) == (model, accelerator)]
        cells = sorted((int(row["batch"]), float(row["images_per_s"])) for row in of_both)
        for index, (batch, images_per_s) in enumerate(cells):
            others = [f"{one},{speed}" for one, speed in cells if one != batch]
            found = batch / emulated_step_time("net", "card", batch, table(tmp_path, *others))
            limit = 0.28 if index in (0, len(cells) - 1) else 0.12
            assert abs(found / images_per_s - 1) < limit, (model, accelerator, batch)
            checked += 1
    assert checked > 35
