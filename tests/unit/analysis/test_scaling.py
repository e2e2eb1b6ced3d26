"""Efficiency on fake results, against numbers worked out by hand."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from scalestudy.analysis.scaling import bases
from scalestudy.analysis.summarise import study_rows
from scalestudy.spec.study import Run, Study
from tests.unit.analysis.fake_results import MACHINE, SCALING, read_study, write_results


def at(rows: pd.DataFrame, strategy: str, ranks: int, repeat: int) -> pd.Series:
    return rows[(rows["strategy"] == strategy) & (rows["ranks"] == ranks) & (rows["repeat"] == repeat)].iloc[0]


WITH_SINGLE = SCALING.replace("[1, 2]", "[1, 2]\nexclude: [{strategy: single, ranks: 2}]").replace(
    ", parameter_server]", ", parameter_server, ring, single]"
)


def test_all_series_are_compared_with_one_rank_without_exchange_and_with_themselves(
    study: Study, tmp_path: Path
) -> None:
    """A server that is slow already on one rank scales well from there: over the common base that does not count."""
    single = read_study(tmp_path, WITH_SINGLE, "single")
    rates = {("parameter_server", 1): 50.0, ("parameter_server", 2): 95.0, ("allreduce", 2): 150.0}
    write_results(
        single, lambda run: {"throughput_samples_per_s": rates.get((run.spec.strategy.name, run.spec.ranks), 100.0)}
    )

    rows = study_rows(single, MACHINE)

    server, ring = at(rows, "parameter_server", 2, 0), at(rows, "allreduce", 2, 0)
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
    write_results(
        left_out, lambda run: {"throughput_samples_per_s": rates.get((run.spec.strategy.name, run.spec.ranks), 70.0)}
    )

    rows = study_rows(left_out, MACHINE)

    found = [at(rows, name, 4, 0) for name in ("parameter_server", "ring", "allreduce")]
    # 80/(4·50), 140/(4·100); an overlapped exchange works on one rank too, so that its base stays its two: 240/(2·150)
    assert [row["own_efficiency"] for row in found] == pytest.approx([0.4, 0.35, 0.8])
    assert [row["own_baseline_ranks"] for row in found] == [1, 1, 2]


def test_runs_that_compute_the_same_on_one_rank_are_pooled_and_no_others(study: Study, tmp_path: Path) -> None:
    single = read_study(tmp_path, WITH_SINGLE, "single")
    rates = {"single": 100.0, "ring": 121.0, "allreduce": 500.0}
    write_results(single, lambda run: {"throughput_samples_per_s": rates.get(run.spec.strategy.name, 50.0)})

    (base,) = bases(study_rows(single, MACHINE), single).values()

    assert (base.kind, base.ranks, base.strategies, base.rate.n) == ("single", 1, ("ring", "single"), 6)
    assert base.rate.mean == pytest.approx(110.0)


def test_without_such_a_run_the_base_is_the_mean_over_series_at_the_fewest_ranks(study: Study) -> None:
    write_results(study)

    rows = study_rows(study, MACHINE)
    (base,) = bases(rows, study).values()

    assert (base.kind, base.strategies) == ("pooled", ("allreduce", "parameter_server"))
    # The geometric mean of 101 and 50.5.
    assert at(rows, "allreduce", 2, 1)["efficiency"] == pytest.approx(161 / 101 * 2**0.5 / 2)


def test_a_repeat_without_its_baseline_is_compared_with_the_mean_of_the_others(study: Study) -> None:
    def change(run: Run) -> dict[str, object] | None:
        missing = run.spec.ranks == 1 and run.spec.repeat == 2 and run.spec.strategy.name == "allreduce"
        return None if missing else {}

    write_results(study, change)

    row = at(study_rows(study, MACHINE), "allreduce", 2, 2)

    # X(2) = 162 over twice the geometric mean of 100 and 101.
    assert row["own_efficiency"] == pytest.approx(162 / (100 * 101) ** 0.5 / 2)


def test_what_is_not_known_of_a_base_of_other_rounds_is_part_of_the_efficiency(study: Study, tmp_path: Path) -> None:
    four = read_study(tmp_path, SCALING.replace("allreduce, label", "ring, label").replace("repeats: 3", "repeats: 4"))
    rates = [100.0, 110.0, 121.0, 100.0]

    def change(run: Run) -> dict[str, object] | None:
        missing = run.spec.ranks == 1 and run.spec.repeat == 3
        return None if missing else {"throughput_samples_per_s": rates[run.spec.repeat]}

    write_results(four, change)

    rows = study_rows(four, MACHINE)

    late = at(rows, "parameter_server", 2, 3)
    # log: mean of the base log 110, half width 4.302653 · log(1.1) / sqrt(3) = 0.236764
    assert late["efficiency"] == pytest.approx(100 / 110 / 2)
    assert late["efficiency_high"] / late["efficiency"] == pytest.approx(math.exp(0.236764), abs=1e-5)
    assert math.isnan(at(rows, "ring", 2, 0)["efficiency_low"])


def test_ranks_that_share_cores_get_no_efficiency_unless_compute_is_emulated(study: Study, tmp_path: Path) -> None:
    text = SCALING.replace("model: small_cnn", 'model: resnet50\n  device: "emulated:p100"')
    emulated = read_study(tmp_path, text, "emulated")
    on_network = read_study(tmp_path, SCALING.replace("small_cnn", "small_cnn\n  network: {mib_per_s: 100}"), "network")
    for each in (study, emulated, on_network):
        write_results(each, lambda run: {"oversubscribed": run.spec.ranks == 2})

    for rows in (study_rows(study, MACHINE), study_rows(on_network, MACHINE)):  # its ranks compute for real
        assert rows.loc[rows["ranks"] == 2, ["efficiency", "own_efficiency"]].isna().all(axis=None)
        assert (rows.loc[rows["ranks"] == 1, "own_efficiency"] == 1).all()
    assert study_rows(emulated, MACHINE)["efficiency"].notna().all()


def test_a_base_of_another_week_is_told_from_one_of_the_same(study: Study, tmp_path: Path) -> None:
    single = read_study(tmp_path, WITH_SINGLE, "single")

    def made(run: Run) -> dict[str, Any]:
        new = run.spec.strategy.name == "single" and run.spec.repeat == 1
        return {"started": f"2026-11-{27 if new else 20}T10:00:00+00:00"}

    write_results(single, made)
    rows = study_rows(single, MACHINE)
    apart = [at(rows, "parameter_server", 2, repeat)["baseline_apart"] for repeat in range(3)]
    assert apart == [0, 1, 0]


def test_without_one_rank_the_next_smallest_count_is_the_baseline(study: Study) -> None:
    write_results(study, lambda run: {"status": "invalid", "reason": "too short"} if run.spec.ranks == 1 else {})

    rows = study_rows(study, MACHINE)

    assert set(rows.loc[rows["ranks"] == 2, "baseline_ranks"]) == {2.0}
    assert rows.loc[rows["ranks"] == 1, "efficiency"].isna().all()


def test_keys_that_move_with_the_ranks_do_not_split_a_series(study: Study, tmp_path: Path) -> None:
    text = SCALING.replace("  ranks: [1, 2]\n", "").replace(
        "repeats: 3", "zip: {ranks: [1, 2], threads_per_rank: [2, 1]}\nrepeats: 1"
    )
    zipped = read_study(tmp_path, text, "zipped")
    write_results(zipped)

    rows = study_rows(zipped, MACHINE)

    assert at(rows, "allreduce", 2, 0)["own_efficiency"] == pytest.approx(0.8)
