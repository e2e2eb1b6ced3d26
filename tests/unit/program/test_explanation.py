"""Parts of a step from rounds of observed runs."""

from __future__ import annotations

from dataclasses import replace

import pytest

from scalestudy.program import takeaway
from scalestudy.program.explanation import explain, sentences
from scalestudy.program.observe import Observation, Rank, _failure
from scalestudy.program.takeaway import ALONE, WHOLE, Rounds, plan_rounds, possible_removals

LOADER = {"is_for_training": True, "num_workers": 1, "pin_memory": False, "differ": False}
RANK = Rank(0, 1, 10, 1.0, 0.0, 0.0, (LOADER,), False, False, False, 0.0)
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
    """Three rounds of the same runs, each with the round's noise; `loading_alone` is without exchange too."""
    runs = {name.replace("_alone", ALONE): each for name, each in runs.items()}
    out = Rounds(runs[WHOLE], steps=10)
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


def test_loading_is_at_most_the_wait_for_it_where_batches_differ_in_size():
    """Small batches given again take less time to compute, which is no loading."""
    smaller = run(0.06, loaders=({**LOADER, "differ": True},))
    found = explain(rounds(whole=run(0.1, waited_s=10 * 0.01), loading=smaller))
    assert found.part("loading").seconds == pytest.approx(0.01)


def test_time_between_steps_is_told_where_loading_cannot_be_taken_away():
    seen = rounds(whole=run(0.1, between_s=0.05))
    seen.not_examined["loading"] = "not measured under this change"
    assert explain(seen).part("between_steps").seconds == pytest.approx(0.05)


def test_a_gain_of_workers_is_not_lessened_by_those_of_an_evaluation():
    found = explain(rounds(whole=run(0.07, between_s=0.01), workers=run(0.06, between_s=0.03)))
    assert found.whatif[0].speedup == pytest.approx(0.07 / 0.04, rel=0.05)


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
    found = explain(rounds(whole=run(0.060, 0.060, 0.060), whole_alone=run(0.020, 0.050, 0.020)))
    assert found.part("rest").seconds == pytest.approx(0.020)
    assert found.slow_rank == 1
    assert found.part("straggler").seconds == pytest.approx(0.030)
    assert found.part("exchange").seconds == pytest.approx(0.010)


def test_a_rank_that_evaluates_for_all_is_no_slow_rank_and_waiting_for_it_no_exchange():
    whole, alone = (
        replace(each, ranks=(replace(each.ranks[0], between_s=0.1), each.ranks[1]))
        for each in (run(0.030, 0.030), run(0.025, 0.015))
    )
    found = explain(rounds(whole=whole, whole_alone=alone, loading=whole, loading_alone=alone))
    assert found.slow_rank is None
    assert {part.name: part.seconds for part in found.parts} == pytest.approx(
        {"exchange": 0.005, "between_steps": 0.010, "rest": 0.015}
    )


def test_compiled_ranks_that_stay_equal_without_synchronisation_are_not_examined():
    observed = rounds(whole=run(0.06, 0.06), whole_alone=run(0.06, 0.06, is_compiled=True))
    for one in observed.rounds:
        ranks = tuple(replace(rank, parameters=1.5) for rank in one[WHOLE + ALONE].ranks)
        one[WHOLE + ALONE] = replace(one[WHOLE + ALONE], ranks=ranks)
    found = explain(observed)
    assert "equal parameters" in found.not_examined["exchange"]
    assert found.part("exchange") is None


def test_parts_that_overlap_are_said_to():
    observed = rounds(
        whole=run(0.10, 0.10),
        loading=run(0.09, 0.09),
        whole_alone=run(0.09, 0.09),
        loading_alone=run(0.05, 0.05),
    )
    assert "they overlap" in sentences(explain(observed))[-1]


def test_a_gain_is_named_as_a_change_of_a_line():
    observed = rounds(whole=run(0.08), workers=run(0.04))
    assert sentences(explain(observed))[-1].startswith("`num_workers=2` in place of 1 gives 2 times")


def planned(*ranks: Rank, seconds: float = 5.0) -> Rounds:
    """What is tried of a script whose first run took these seconds, 1 s of it in ten steps."""
    plan = Rounds(Observation(ranks, seconds))
    possible_removals(plan)
    return plan


def test_gains_are_given_up_before_parts_where_time_is_short():
    plan = planned(RANK)
    assert (plan_rounds(plan, 200, left_s=40.0), list(plan.removals)) == (3, [WHOLE, "loading"])
    assert plan.not_examined["workers"].startswith("no time")


def test_loading_and_exchange_are_examined_however_long_the_script_takes_to_start():
    ranks = [replace(RANK, rank=number, world=2, is_distributed=True) for number in range(2)]
    plan = planned(*ranks, seconds=60.0)
    assert (plan_rounds(plan, 200, left_s=60.0), list(plan.removals)) == (3, [WHOLE, "loading"])
    assert plan.round_s == pytest.approx(2 * (59 + 0.1 * (6 + 2 * plan.steps + 3)))
    assert plan.examines_exchange
    assert plan.steps == 59  # a shorter window would save no time


def taken(monkeypatch, folder, fails=lambda *_: False):
    """Rounds of a script of two ranks, of which rank 1 is slow by itself, where some runs fail."""

    def observed(_command, removal, steps, _warmup, _timeout_s, _folder, exchange=(True,)):
        whole, alone = run(0.06, 0.06, is_distributed=True), run(0.02, 0.05, is_distributed=True)
        failure = "it hangs" if fails(removal.name, steps, len(exchange)) else ""
        return [replace(whole if on else alone, failure=failure) for on in exchange]

    monkeypatch.setattr(takeaway, "observe", observed)
    return takeaway.take_away(["python"], folder, 10, 300.0, lambda text: None)


def test_a_round_has_each_part_taken_away_with_and_without_exchange(monkeypatch, tmp_path):
    seen = taken(monkeypatch, tmp_path)
    names = {WHOLE, WHOLE + ALONE, "loading", "loading" + ALONE, "workers"}
    assert [set(one) for one in seen.rounds] == [names] * takeaway.MAX_ROUNDS
    assert explain(seen).slow_rank == 1


@pytest.mark.parametrize(
    ("fails", "reasons", "names"),
    [
        (lambda name, steps, windows: windows == 2, {"exchange": "not measured without it: it hangs"}, {WHOLE, "loading", "workers"}),
        (lambda name, steps, windows: name == "workers", {"workers": "not measured under this change: it hangs"},
         {WHOLE, WHOLE + ALONE, "loading", "loading" + ALONE}),
    ],
)  # fmt: skip
def test_a_run_that_fails_under_a_change_is_made_without_it(monkeypatch, tmp_path, fails, reasons, names):
    seen = taken(monkeypatch, tmp_path, fails)
    assert seen.not_examined == reasons
    assert set(seen.rounds[-1]) == names


def test_a_script_that_fails_after_its_first_run_is_not_explained(monkeypatch, tmp_path):
    seen = taken(monkeypatch, tmp_path, lambda name, steps, windows: steps != takeaway.CALIBRATION_STEPS)
    assert seen.calibration.failure == "it hangs" and seen.rounds == []


def test_copies_are_what_is_lost_beyond_loading():
    assert {"loading", "copies"} <= set(planned(replace(RANK, on_gpu=True)).removals)
    found = explain(rounds(whole=run(0.08, on_gpu=True), loading=run(0.05), copies=run(0.04)))
    assert found.part("copies").seconds == pytest.approx(0.01)


def test_a_script_that_fails_within_its_window_is_no_run_and_one_that_ends_there_is(tmp_path):
    log = tmp_path / "output.log"
    log.write_text("ValueError: no such batch\n")
    ranks = (RANK,)
    assert _failure(ranks, 0, 20, 1.0, tmp_path, log) == ""
    assert _failure(ranks, 1, RANK.steps, 1.0, tmp_path, log) == "", "a launcher may not like how its ranks ended"
    assert "ValueError: no such batch" in _failure(ranks, 1, 20, 1.0, tmp_path, log)
