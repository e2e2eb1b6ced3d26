"""Cost formulas against numbers worked out by hand."""

from __future__ import annotations

import pytest

from scalestudy.strategies import cost

SIZE = 100e6
BETWEEN = cost.Link(bytes_per_s=100e6, latency_s=0.001)
INSIDE = cost.Link(bytes_per_s=1000e6)
NO_LATENCY = cost.Link(100e6)
CASES = {
    "a ring of 4 sends one and a half buffers in 6 messages": (cost.ring(SIZE, 4, BETWEEN), 1.506),
    "halving and doubling sends as much in 4": (cost.halving_doubling(SIZE, 4, BETWEEN), 1.504),
    "a fifth rank costs two whole buffers more": (cost.halving_doubling(SIZE, 5, BETWEEN), 1.504 + 2.002),
    "one server takes all gradients of 4 workers": (cost.parameter_server(SIZE, 4, 1, BETWEEN), 8.002),
    "4 servers take a quarter each": (cost.parameter_server(SIZE, 4, 4, BETWEEN), 2.002),
    "a flat ring over 2 nodes of 4": (cost.flat_ring(SIZE, 2, 4, INSIDE, BETWEEN), 1.764),
    # Inside: three quarters of the buffer twice to reduce, the whole buffer twice to broadcast.
    "a hierarchy of 2 nodes of 4": (cost.hierarchical(SIZE, 2, 4, INSIDE, BETWEEN), 0.15 + 0.2 + 1.002),
    "inside one node of 4": (cost.hierarchical(SIZE, 1, 4, INSIDE, BETWEEN), 0.15 + 0.2),
    "inside one node of 8": (cost.hierarchical(SIZE, 1, 8, INSIDE, BETWEEN), 0.175 + 0.3),
    "flat halving": (cost.flat_halving_doubling(SIZE, 2, 2, INSIDE, NO_LATENCY), 0.1 + 1.0),
    "two dimensions share the link": (cost.two_dimensional(SIZE, 2, 4, INSIDE, NO_LATENCY), 0.15 + 0.075 + 1.0),
    "two dimensions on one node": (cost.two_dimensional(SIZE, 1, 4, INSIDE, BETWEEN), 0.225),
}


@pytest.mark.parametrize(("seconds", "expected"), CASES.values(), ids=CASES)
def test_a_formula_gives_the_seconds_worked_out_by_hand(seconds: float, expected: float) -> None:
    assert seconds == pytest.approx(expected)
