"""Several tests that are judged together."""

from __future__ import annotations

import pytest

from scalestudy.analysis.multiplicity import holm


def test_p_values_are_adjusted_as_holm_does_it() -> None:
    assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])


def test_an_adjusted_p_value_is_at_most_1_and_a_single_one_stays() -> None:
    assert holm([0.9, 0.8]) == [1.0, 1.0]
    assert holm([0.02]) == [0.02]
    assert holm([]) == []
