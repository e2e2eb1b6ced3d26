"""Parts of a step from rounds of observed runs."""

from __future__ import annotations

from dataclasses import replace

import pytest

from scalestudy.program.explanation import explain, sentences
from scalestudy.program.observe import Observation, Rank, Removal
from scalestudy.program.takeaway import WHOLE, Rounds, plan_rounds, possible_removals

LOADER = {"is_for_training": True, "num_workers": 1, "pin_memory": False}
RANK = Rank(0, 1, 10, 1.0, 0.0, 0.0, (LOADER,), 0, 0, False, False, False, 0.0)
REMOVED = {
    "loading": ("loading",),
    "exchange": ("exchange",),
    "copies": ("loading", "copies"),
    "bare": ("loading", "exchange"),
}
NOISE_S = (-0.001, 0.0, 0.001)
"""Of the three rounds, shared by all runs of one."""


def run(*step_s: float, between_s: float = 0.0, **facts) -> Observation:
    """A run whose ranks took these times a step."""
    ranks = [
        replace(RANK, rank=number, world=len(step_s), window_s=10 * each, between_s=10 * between_s, **facts)
        for number, each in enumerate(step_s)
    ]
    return Observation(tuple(ranks), 5.0)


def rounds(own_noise: float = 0.0, **runs: Observation) -> Rounds:
    """Three rounds of the same runs, each with the round's noise."""
    out = Rounds(runs[WHOLE], steps=10)
    out.removals = {name: Removal(name, REMOVED.get(name, ())) for name in runs}
    for place, shift in enumerate(NOISE_S):
        noise = {name: shift + own_noise * (-1) ** (place + number) for number, name in enumerate(runs)}
        out.rounds.append(
            {
                name: replace(
                    each,
                    ranks=tuple(
                        replace(rank, window_s=rank.window_s + 10 * noise[name], parameters=rank.rank)
                        for rank in each.ranks
                    ),
                )
                for name, each in runs.items()
            }
        )
    return out


def test_loading_is_the_step_less_the_step_with_batches_from_memory():
    found = explain(rounds(whole=run(0.073), loading=run(0.038)))
    loading = found.part("loading")
    assert (loading.seconds, loading.low, loading.high) == pytest.approx((0.035, 0.035, 0.035))
    assert found.part("rest").seconds == pytest.approx(0.038)
    assert "35.0 ms of it (35.0 to 35.0 ms, 48%) is waiting for data" in sentences(found)[1]


def test_a_part_whose_interval_holds_zero_is_not_seen():
    found = explain(rounds(own_noise=0.004, whole=run(0.073), loading=run(0.071)))
    assert found.part("loading") is None
    assert 0.01 < found.not_seen["loading"] < 0.03
    assert "the rounds differ so much that together they may still be" in sentences(found)[1]


def test_a_step_without_parts_is_computation_only_where_its_parts_are_known_to_be_small():
    found = explain(rounds(whole=run(0.073), loading=run(0.0725)))
    assert found.not_seen["loading"] == pytest.approx(0.0005)
    assert sentences(found)[1].endswith("the time is the script's own computation, or in what was not examined.")


def test_waiting_for_a_slow_rank_is_told_apart_from_exchange():
    found = explain(
        rounds(whole=run(0.060, 0.060, 0.060, ddp_modules=1), exchange=run(0.020, 0.050, 0.020, ddp_modules=1))
    )
    assert found.part("rest").seconds == pytest.approx(0.020)
    assert found.slow_rank == 1
    assert found.part("straggler").seconds == pytest.approx(0.030)
    assert found.part("exchange").seconds == pytest.approx(0.010)


def test_compiled_ranks_that_stay_equal_without_synchronisation_are_not_examined():
    observed = rounds(whole=run(0.06, 0.06, ddp_modules=1), exchange=run(0.06, 0.06, ddp_modules=1, is_compiled=True))
    for one in observed.rounds:
        ranks = tuple(replace(rank, parameters=1.5) for rank in one["exchange"].ranks)
        one["exchange"] = replace(one["exchange"], ranks=ranks)
    found = explain(observed)
    assert "equal parameters" in found.not_examined["exchange"]
    assert found.part("exchange") is None


def test_parts_that_overlap_are_said_to():
    observed = rounds(
        whole=run(0.10, 0.10, ddp_modules=1),
        loading=run(0.09, 0.09),
        exchange=run(0.09, 0.09, ddp_modules=1),
        bare=run(0.05, 0.05),
    )
    assert "they overlap" in sentences(explain(observed))[-1]


def test_a_gain_is_named_as_a_change_of_a_line():
    observed = rounds(whole=run(0.08), workers=run(0.04))
    assert sentences(explain(observed))[-1].startswith("`num_workers=2` in place of 1 gives 2 times")


def test_gains_are_given_up_before_parts_where_time_is_short():
    calibration = Observation((RANK,), 5.0)
    plan = Rounds(calibration)
    plan.removals, _ = possible_removals([RANK])
    _, count = plan_rounds(calibration, plan, 200, left_s=45.0)
    assert (list(plan.removals), count) == ([WHOLE, "loading"], 3)
    assert plan.not_examined["workers"].startswith("no time")


def test_copies_alone_need_loading_beside_them():
    removals, _ = possible_removals([replace(RANK, on_gpu=True)], only=["copies"])
    assert list(removals) == [WHOLE, "loading", "copies"]
    found = explain(rounds(whole=run(0.08, on_gpu=True), loading=run(0.05), copies=run(0.04)))
    assert found.part("copies").seconds == pytest.approx(0.01)
