"""Efficiency on fake results, against numbers worked out by hand."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from scalestudy.analysis.scaling import bases
from scalestudy.analysis.summarise import study_rows
from scalestudy.analysis.workload import varied_columns
from scalestudy.spec.study import Run, Study
from tests.unit.analysis.fake_results import MACHINE, SCALING, read_study, write_results


def at(rows: pd.DataFrame, strategy: str, ranks: int, repeat: int = 0) -> pd.Series:
    return rows[(rows["strategy"] == strategy) & (rows["ranks"] == ranks) & (rows["repeat"] == repeat)].iloc[0]


def rows_of(study: Study, change: Callable[[Run], dict[str, Any] | None] = lambda run: {}) -> pd.DataFrame:
    """The rows of a study whose results `change` changes, or leaves out."""
    write_results(study, change)
    return study_rows(study, MACHINE)


def by_rate(rates: dict[tuple[str, int], float], default: float) -> Callable[[Run], dict[str, Any]]:
    """Throughputs by strategy and ranks."""
    return lambda run: {"throughput_samples_per_s": rates.get((run.spec.strategy.name, run.spec.ranks), default)}


WITH_SINGLE = SCALING.replace("[1, 2]", "[1, 2]\nexclude: [{strategy: single, ranks: 2}]").replace(
    ", parameter_server]", ", parameter_server, ring, single]"
)


@pytest.fixture
def single(study: Study, tmp_path: Path) -> Study:
    """Beside servers, two exchanges and none on one rank."""
    return read_study(tmp_path, WITH_SINGLE, "single")


def test_all_series_are_compared_with_one_rank_without_exchange_and_with_themselves(single: Study) -> None:
    """A server that is slow already on one rank scales well from there: over the common base that does not count."""
    rates = {("parameter_server", 1): 50.0, ("parameter_server", 2): 95.0, ("allreduce", 2): 150.0}

    rows = rows_of(single, by_rate(rates, 100.0))

    server, ring = at(rows, "parameter_server", 2), at(rows, "allreduce", 2)
    assert (server["efficiency"], ring["efficiency"]) == (pytest.approx(0.475), pytest.approx(0.75))
    assert (server["own_efficiency"], ring["own_efficiency"]) == (pytest.approx(0.95), pytest.approx(0.75))
    assert ring["baseline_ranks"] == 1


def test_without_exchange_stands_for_the_one_rank_of_a_series_that_exchanges_nothing_there(
    study: Study, tmp_path: Path
) -> None:
    text = WITH_SINGLE.replace("ranks: 2}", "ranks: 2}, {strategy: ring, ranks: 1}, {strategy: allreduce, ranks: 1}")
    left_out = read_study(
        tmp_path, text.replace("[1, 2]", "[1, 2, 4]").replace("single, ranks: 2", "single, ranks: [2, 4]")
    )
    rates = {("parameter_server", 1): 50.0, ("parameter_server", 4): 80.0, ("single", 1): 100.0,
             ("ring", 2): 80.0, ("ring", 4): 140.0, ("allreduce", 2): 150.0, ("allreduce", 4): 240.0}  # fmt: skip

    rows = rows_of(left_out, by_rate(rates, 70.0))

    found = [at(rows, name, 4) for name in ("parameter_server", "ring", "allreduce")]
    # 80/(4·50), 140/(4·100); an overlapped exchange works on one rank too, so that its base stays its two: 240/(2·150)
    assert [row["own_efficiency"] for row in found] == pytest.approx([0.4, 0.35, 0.8])
    assert [row["own_baseline_ranks"] for row in found] == [1, 1, 2]


def test_runs_that_compute_the_same_on_one_rank_are_pooled_and_no_others(single: Study) -> None:
    rates = {("single", 1): 100.0, ("ring", 1): 121.0, ("allreduce", 1): 500.0}

    (base,) = bases(rows_of(single, by_rate(rates, 50.0)), single).values()

    assert (base.kind, base.ranks, base.strategies, base.rate.n) == ("single", 1, ("ring", "single"), 6)
    assert base.rate.mean == pytest.approx(110.0)


def test_without_such_a_run_the_base_is_the_mean_over_series_at_the_fewest_ranks(study: Study) -> None:
    rows = rows_of(study)

    (base,) = bases(rows, study).values()

    assert (base.kind, base.strategies) == ("pooled", ("allreduce", "parameter_server"))
    # The geometric mean of 101 and 50.5.
    assert at(rows, "allreduce", 2, 1)["efficiency"] == pytest.approx(161 / 101 * 2**0.5 / 2)


def test_a_repeat_without_its_baseline_is_compared_with_the_mean_of_the_others(study: Study) -> None:
    missing = next(run for run in study.runs if (run.spec.strategy.name, run.spec.repeat) == ("allreduce", 2))

    row = at(rows_of(study, lambda run: None if run is missing else {}), "allreduce", 2, 2)

    # X(2) = 162 over twice the geometric mean of 100 and 101.
    assert row["own_efficiency"] == pytest.approx(162 / (100 * 101) ** 0.5 / 2)


def test_what_is_not_known_of_a_base_of_other_rounds_is_part_of_the_efficiency(study: Study, tmp_path: Path) -> None:
    four = read_study(tmp_path, SCALING.replace("allreduce, label", "ring, label").replace("repeats: 3", "repeats: 4"))
    rates = [100.0, 110.0, 121.0, 100.0]

    def change(run: Run) -> dict[str, object] | None:
        missing = run.spec.ranks == 1 and run.spec.repeat == 3
        return None if missing else {"throughput_samples_per_s": rates[run.spec.repeat]}

    rows = rows_of(four, change)

    late = at(rows, "parameter_server", 2, 3)
    # log: mean of the base log 110, half width 4.302653 · log(1.1) / sqrt(3) = 0.236764
    assert late["efficiency"] == pytest.approx(100 / 110 / 2)
    assert late["efficiency_high"] / late["efficiency"] == pytest.approx(math.exp(0.236764), abs=1e-5)
    assert math.isnan(at(rows, "ring", 2)["efficiency_low"])


def test_ranks_that_share_cores_get_no_efficiency_unless_compute_is_emulated(study: Study, tmp_path: Path) -> None:
    text = SCALING.replace("model: small_cnn", 'model: resnet50\n  device: "emulated:p100"')
    emulated = read_study(tmp_path, text, "emulated")
    network = "small_cnn\n  network: {mib_per_s: 100}\n  ranks_per_node: 1"
    on_network = read_study(tmp_path, SCALING.replace("small_cnn", network), "network")
    plain, real, waiting = (
        rows_of(each, lambda run: {"oversubscribed": run.spec.ranks == 2}) for each in (study, on_network, emulated)
    )
    for rows in (plain, real):  # its ranks compute for real
        assert rows.loc[rows["ranks"] == 2, ["efficiency", "own_efficiency"]].isna().all(axis=None)
        assert (rows.loc[rows["ranks"] == 1, "own_efficiency"] == 1).all()
    assert waiting["efficiency"].notna().all()


def test_a_base_of_another_week_is_told_from_one_of_the_same(single: Study) -> None:
    def made(run: Run) -> dict[str, Any]:
        new = run.spec.strategy.name == "single" and run.spec.repeat == 1
        return dict.fromkeys(("started", "ended"), f"2026-11-{27 if new else 20}T10:00:00+00:00")

    rows = rows_of(single, made)
    assert [at(rows, "parameter_server", 2, repeat)["baseline_apart"] for repeat in range(3)] == [0, 1, 0]


def test_without_one_rank_the_next_smallest_count_is_the_baseline(study: Study) -> None:
    rows = rows_of(study, lambda run: {"status": "invalid", "reason": "too short"} if run.spec.ranks == 1 else {})

    assert set(rows.loc[rows["ranks"] == 2, "baseline_ranks"]) == {2.0}
    assert rows.loc[rows["ranks"] == 1, "efficiency"].isna().all()


def test_keys_that_move_with_the_ranks_do_not_split_a_series(study: Study, tmp_path: Path) -> None:
    text = SCALING.replace("  ranks: [1, 2]\n", "").replace(
        "repeats: 3", "zip: {ranks: [1, 2], threads_per_rank: [2, 1]}\nrepeats: 1"
    )
    zipped = read_study(tmp_path, text, "zipped")
    rows = rows_of(zipped)
    assert varied_columns(zipped) == ["strategy", "ranks"]
    text = text.replace("ranks: [1, 2], threads_per_rank: [2, 1]", "seed: [1, 1, 2], threads_per_rank: [1, 2, 3]")
    assert varied_columns(read_study(tmp_path, text, "stronger")) == ["strategy", "threads_per_rank"]
    assert at(rows, "allreduce", 2)["own_efficiency"] == pytest.approx(0.8)
