"""Judgements of paired differences against a margin."""

from __future__ import annotations

import numpy as np

from scalestudy.analysis.paired import compare, judged


def verdict(differences: list[float], margin: float = 0.05) -> str:
    found = compare(differences, margin)
    assert found is not None
    return judged([found])[0][0]


def test_a_difference_beyond_the_margin_is_more_or_less() -> None:
    assert verdict([0.20, 0.21, 0.19]) == "more"
    assert verdict([-0.20, -0.21, -0.19]) == "less"


def test_a_difference_within_the_margin_is_the_same() -> None:
    assert verdict([0.010, 0.011, 0.009]) == "same"


def test_a_certain_difference_that_straddles_the_margin_is_undecided() -> None:
    assert verdict([0.045, 0.055, 0.050]) == "undecided"


def test_pairs_that_disagree_are_undecided() -> None:
    assert verdict([0.3, -0.3, 0.1]) == "undecided"


def test_differences_without_spread_are_judged_by_their_mean() -> None:
    assert verdict([0.0, 0.0, 0.0]) == "same"
    assert verdict([0.1, 0.1, 0.1]) == "more"


def test_two_pairs_are_not_judged() -> None:
    assert compare([0.1, 0.1], 0.05) is None


def test_twenty_comparisons_of_equals_rarely_hold_a_difference() -> None:
    generator, wrong = np.random.default_rng(0), 0
    for _ in range(300):
        found = [compare(generator.normal(0, 0.05, 3).tolist(), 0.0) for _ in range(20)]
        wrong += any(said in ("more", "less") for said, _ in judged([one for one in found if one is not None]))
    # 5 % of 300, and two standard errors of such a count.
    assert wrong <= 22


def test_a_difference_at_the_margin_is_called_beyond_it_in_at_most_five_percent() -> None:
    generator, wrong = np.random.default_rng(1), 0
    for _ in range(1000):
        wrong += verdict(generator.normal(0.05, 0.02, 5).tolist()) == "more"
    assert wrong <= 50
