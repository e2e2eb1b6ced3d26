"""On runs that were really measured: equal ones are seldom called different, and slower ones are found."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.soak.compare_power import COMPARISONS, RECORDINGS, REPEATS, false_alarms, found_slower, pools, recorded

QUIET, BUSY = RECORDINGS
POOLS = [(file, kind) for file in RECORDINGS for kind in pools(recorded(file))]


@pytest.mark.slow
@pytest.mark.parametrize("n", REPEATS)
@pytest.mark.parametrize(("file", "kind"), POOLS, ids=[f"{file.stem}, {kind}" for file, kind in POOLS])
def test_at_most_5_percent_of_200_comparisons_of_equal_runs_are_false_alarms(file: Path, kind: str, n: int) -> None:
    alarms = false_alarms(pools(recorded(file))[kind], n, margin=0.03)
    assert alarms <= COMPARISONS * 5 // 100


def test_steps_that_take_a_tenth_more_are_found_on_a_quiet_machine_with_ten_repeats() -> None:
    pool = pools(recorded(QUIET))["emulated compute, one rank"]
    assert found_slower(pool, 0.10, n=10, margin=0.03) >= 0.85


def test_more_repeats_and_larger_slow_downs_are_found_more_often() -> None:
    pool = pools(recorded(QUIET))["emulated compute, one rank"]
    by_repeats = [found_slower(pool, 0.10, n, margin=0.03) for n in REPEATS]
    assert by_repeats == sorted(by_repeats)
    assert found_slower(pool, 0.03, n=10, margin=0.03) <= 0.05


def test_on_a_machine_as_noisy_as_the_busy_one_nothing_is_found_and_nothing_is_called_the_same() -> None:
    from scalestudy.analysis.comparison import judged

    logs = next(logs for name, logs in recorded(BUSY).items() if "digits" in name)
    ratios = [after - before for before, after in zip(logs[:10], logs[10:], strict=True)]
    assert judged([ratios], margin=0.03)[0].verdict == "undecided"
