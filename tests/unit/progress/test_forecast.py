"""The time left, over whole sequences of jobs, with the clock handed in."""

from __future__ import annotations

import csv
import math
import random
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from snakemake_logger_plugin_scalestudy.forecast import Expected, Forecast, Left
from snakemake_logger_plugin_scalestudy.progress import Progress, Task, duration, span

DATA = Path(__file__).resolve().parents[2] / "data"


@dataclass
class Played:
    """What was said while jobs ran, one after the other: share of the time gone, the range, what was really left."""

    share: float
    low_s: float
    high_s: float
    left_s: float

    @property
    def off_by(self) -> float:
        """The factor between the middle of the range and the truth, at least 1."""
        ratio = math.sqrt(self.low_s * self.high_s) / self.left_s
        return max(ratio, 1 / ratio)


def play(jobs: list[tuple[str, Expected, float]], repeats_known: bool = True) -> list[Played]:
    """Replay jobs (configuration, expectation, seconds taken); a repeat is expected to take what the first one took."""
    progress = Progress(began=1000.0)
    progress.add(
        Task(str(index), "train", "", "", expected, configuration if repeats_known else "")
        for index, (configuration, expected, _) in enumerate(jobs)
    )
    total, now, said = sum(took for _, _, took in jobs), 1000.0, []
    for index, (_, _, took) in enumerate(jobs):
        progress.begin(str(index), now)
        now += took
        progress.end(str(index), now)
        left, gone = progress.left_s(now), (now - 1000.0) / total
        if left is not None and gone < 0.98:
            said.append(Played(gone, *left, total - (now - 1000.0)))
    return said


UNKNOWN = Expected.of_rule("train")


def three_studies(seed: int) -> list[tuple[str, Expected, float]]:
    """About what `make run` does on a new machine: 67, 12 and 16 runs, some without an expectation, all noisy."""
    draw = random.Random(seed)
    jobs = []
    small = {f"small {n}": draw.uniform(5, 14) for n in range(12)}
    emulated = {f"emulated {n}": draw.uniform(2, 4) for n in range(10)}
    for _ in range(3):
        jobs += [(name, UNKNOWN, took * draw.uniform(0.9, 1.2)) for name, took in small.items()]
        jobs += [
            (name, Expected(3.0, 10 * took, "published"), (5 + 3 * took) * draw.uniform(0.9, 1.2))
            for name, took in emulated.items()
        ]
    for _ in range(2):
        jobs += [(f"loader {n}", Expected(3.0, 13.7, "published"), draw.uniform(8, 20)) for n in range(6)]
        for scale in (1, 2, 8, 16):
            for model in ("a", "b"):
                expected = Expected(2.0 * scale, 11 + 3.0 * scale, "published")
                jobs.append((f"size {scale} {model}", expected, (4 + 3 * scale) * draw.uniform(0.9, 1.2)))
    return jobs


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize("repeats_known", [False, True])
def test_after_a_tenth_the_time_left_is_right_within_a_factor_of_one_and_a_half(seed: int, repeats_known: bool) -> None:
    said = [one for one in play(three_studies(seed), repeats_known) if one.share > 0.1]
    assert len(said) > 60
    assert max(one.off_by for one in said) < 1.5


def test_the_range_holds_the_truth_nearly_always() -> None:
    said = [one for seed in range(20) for one in play(three_studies(seed)) if one.share > 0.1]
    held = [one.low_s <= one.left_s <= one.high_s for one in said]
    assert sum(held) / len(held) > 0.9


def test_long_runs_first_do_not_stretch_the_short_ones_to_come() -> None:
    # Four runs of three minutes, then a hundred of twenty seconds: the median times the count said 5 h for 33 min.
    jobs = [(f"{n}", Expected(100, 250, "published"), 180.0) for n in range(4)]
    jobs += [(f"s{n}", Expected(12, 28, "published"), 20.0) for n in range(100)]
    at_four = play(jobs)[3]
    assert at_four.left_s == 2000.0
    assert at_four.off_by < 1.2


def test_a_build_and_long_runs_to_come_are_counted_with_the_short_ones_done() -> None:
    # Sixty runs of four seconds, then four of two minutes: the median times the count said 16 s for 8 min.
    jobs = [(f"s{n}", Expected(2, 8, "published"), 4.0) for n in range(60)]
    jobs += [(f"{n}", Expected(60, 240, "published"), 120.0) for n in range(4)]
    before_the_long = play(jobs)[59]
    assert before_the_long.left_s == 480.0
    assert before_the_long.off_by < 1.2


def test_a_source_that_is_always_three_times_too_low_is_corrected() -> None:
    pairs = [(Expected(5, 20, "flops"), 30.0)] * 5
    low, high = Forecast(pairs).left([Left(Expected(5, 20, "flops"))] * 10) or (0, 0)
    assert low < 300 < high
    assert high / low < 2
    assert Forecast(pairs).seconds(Expected(50, 200, "flops")) == pytest.approx(300)
    assert Forecast(pairs).seconds(Expected(5, 20, "repeats")) == pytest.approx(10)


def test_nothing_is_said_before_the_first_of_the_runs_of_which_nothing_is_known() -> None:
    assert Forecast([]).left([Left(UNKNOWN)]) is None
    assert Forecast([(UNKNOWN, 12.0)]).left([Left(UNKNOWN)]) is not None


def test_runs_at_the_same_time_share_the_time_but_none_takes_less_than_itself() -> None:
    known = [(Expected(10, 10, "repeats"), 10.0)] * 9
    jobs = [Left(Expected(10, 10, "repeats"))] * 8
    low, high = Forecast(known).left(jobs, at_once=4) or (0, 0)
    assert math.sqrt(low * high) == pytest.approx(20)
    low, high = Forecast(known).left(jobs, at_once=100) or (0, 0)
    assert math.sqrt(low * high) == pytest.approx(10)


def test_a_run_over_its_time_is_not_about_to_end_for_ever() -> None:
    known = [(Expected(10, 10, "repeats"), 10.0)] * 9
    job = Left(Expected(10, 10, "repeats"), running_s=600)
    low, high = Forecast(known).left([job]) or (0, 0)
    assert math.sqrt(low * high) == pytest.approx(60)
    early = replace(job, running_s=4)
    low, high = Forecast(known).left([early]) or (0, 0)
    assert math.sqrt(low * high) == pytest.approx(6)


def test_times_are_written_in_the_unit_that_suits_them() -> None:
    assert span((31, 52)) == "31 to 52 s"
    assert span((1801, 3010)) == "30 to 50 min"
    assert span((1801, 1820)) == "about 30 min"
    assert span((5000, 9000)) == "1.4 to 2.5 h"
    assert [duration(value) for value in (40, 420, 12_600)] == ["40 s", "7 min", "3.5 h"]


def test_a_recorded_make_run_is_forecast_from_its_first_tenth_on() -> None:
    """The 106 runs of docs/measured/fresh_clone.txt in their order, with what the plan expected of each on a new machine.

    `took_s` is made of the recorded throughput and 2.4 s for a run's start and end, which sum to the recorded 687 s with
    datasets and figures. The runs of which nothing is known come last.
    """
    jobs = []
    for row in csv.DictReader((DATA / "make_run.csv").open(encoding="utf-8")):
        known = row["source"] != UNKNOWN.source
        expected = Expected(float(row["low_s"]), float(row["high_s"]), row["source"]) if known else UNKNOWN
        jobs.append((f"{row['study']} {row['configuration']}", expected, float(row["took_s"])))
    assert len(jobs) == 106
    said = play(jobs)
    assert said[0].share < 0.03  # from the first run on
    after_a_tenth = [one for one in said if one.share > 0.1]
    assert len(after_a_tenth) > 90
    assert max(one.off_by for one in after_a_tenth) < 1.5
    assert all(one.low_s <= one.left_s <= one.high_s for one in after_a_tenth)


def test_runs_of_which_nothing_is_known_are_expected_to_be_as_long_as_others_with_a_wide_range() -> None:
    others = [(Expected(3, 13, "published"), 7.0)] * 20
    low, high = Forecast(others).left([Left(UNKNOWN)] * 20) or (0, 0)
    assert low < 20 * 7.0 < high
    assert 2 < high / low < 20
    known, _ = Forecast(others).left([Left(Expected(3, 13, "published"))] * 20) or (0, 0)
    assert low < known
