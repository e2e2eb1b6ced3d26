"""Efficiency and speed-up on fake results, against numbers worked out by hand."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import pytest

from scalestudy.analysis.summarise import study_rows
from scalestudy.spec.study import Run, Study
from tests.unit.analysis.fake_results import MACHINE, SCALING, read_study, write_results


def at(rows: pd.DataFrame, strategy: str, ranks: int, repeat: int) -> pd.Series:
    return rows[(rows["strategy"] == strategy) & (rows["ranks"] == ranks) & (rows["repeat"] == repeat)].iloc[0]


def test_weak_efficiency_compares_each_repeat_with_the_same_repeat_on_one_rank(study: Study) -> None:
    write_results(study)

    row = at(study_rows(study, MACHINE), "allreduce", 2, 1)

    # X(1) = 101, X(2) = 161: speed-up 1.594059, efficiency half of it.
    assert row["speedup"] == pytest.approx(1.594059, abs=1e-6)
    assert row["efficiency"] == pytest.approx(0.797030, abs=1e-6)
    assert row["baseline_ranks"] == 1


def test_a_repeat_without_its_baseline_is_compared_with_the_mean_of_the_others(study: Study) -> None:
    def change(run: Run) -> dict[str, object] | None:
        missing = run.spec.ranks == 1 and run.spec.repeat == 2 and run.spec.strategy.name == "allreduce"
        return None if missing else {}

    write_results(study, change)

    row = at(study_rows(study, MACHINE), "allreduce", 2, 2)

    # X(2) = 162 over the mean of 100 and 101.
    assert row["speedup"] == pytest.approx(162 / 100.5)


def test_each_strategy_is_compared_with_itself(study: Study) -> None:
    write_results(study)

    row = at(study_rows(study, MACHINE), "parameter_server", 2, 0)

    # X(1) = 50, X(2) = 80.
    assert row["efficiency"] == pytest.approx(0.8)


def test_strong_efficiency_compares_training_times(study: Study, tmp_path: Path) -> None:
    strong = read_study(tmp_path, SCALING.replace("{per_rank: 32}", "{global: 64}"), "strong")
    write_results(strong, lambda run: {"metrics": {"training_time_s": {1: 100.0, 2: 80.0}[run.spec.ranks]}})

    row = at(study_rows(strong, MACHINE), "allreduce", 2, 0)

    # 100 · 1 / (2 · 80)
    assert row["efficiency"] == pytest.approx(0.625)
    assert row["speedup"] == pytest.approx(1.6)


def test_ranks_that_share_cores_get_no_efficiency(study: Study) -> None:
    write_results(study, lambda run: {"oversubscribed": run.spec.ranks == 2})

    rows = study_rows(study, MACHINE)

    assert rows.loc[rows["ranks"] == 2, "efficiency"].isna().all()
    assert (rows.loc[rows["ranks"] == 1, "efficiency"] == 1).all()


def test_emulated_ranks_may_share_cores(study: Study) -> None:
    write_results(study, lambda run: {"oversubscribed": True, "emulated": True})

    assert study_rows(study, MACHINE)["efficiency"].notna().all()


def test_without_one_rank_the_next_smallest_count_is_the_baseline(study: Study) -> None:
    write_results(study, lambda run: {"status": "invalid", "reason": "too short"} if run.spec.ranks == 1 else {})

    rows = study_rows(study, MACHINE)

    assert set(rows.loc[rows["ranks"] == 2, "baseline_ranks"]) == {2.0}
    assert rows.loc[rows["ranks"] == 1, "efficiency"].isna().all()


def test_a_study_of_one_rank_count_has_no_efficiency(study: Study, tmp_path: Path) -> None:
    single = read_study(tmp_path, SCALING.replace("ranks: [1, 2]", "ranks: [2]"), "single")
    write_results(single)

    assert study_rows(single, MACHINE)["efficiency"].isna().all()


def test_keys_that_move_with_the_ranks_do_not_split_a_series(study: Study, tmp_path: Path) -> None:
    text = SCALING.replace("  ranks: [1, 2]\n", "").replace(
        "repeats: 3", "zip: {ranks: [1, 2], threads_per_rank: [2, 1]}\nrepeats: 1"
    )
    zipped = read_study(tmp_path, text, "zipped")
    write_results(zipped)

    rows = study_rows(zipped, MACHINE)

    assert at(rows, "allreduce", 2, 0)["efficiency"] == pytest.approx(0.8)
