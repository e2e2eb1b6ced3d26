"""Cost formulas against numbers worked out by hand."""

from __future__ import annotations

import pytest

from scalestudy.strategies import cost

MB = 1e6
BETWEEN = cost.Link(bytes_per_s=100 * MB, latency_s=0.001)
INSIDE = cost.Link(bytes_per_s=1000 * MB, latency_s=0.0)


def test_a_ring_of_four_sends_one_and_a_half_buffers_in_six_messages() -> None:
    assert cost.ring(100 * MB, 4, BETWEEN) == pytest.approx(1.506)


def test_halving_and_doubling_sends_as_much_in_fewer_messages() -> None:
    assert cost.halving_doubling(100 * MB, 4, BETWEEN) == pytest.approx(1.504)


def test_a_fifth_rank_costs_halving_and_doubling_two_whole_buffers_more() -> None:
    assert cost.halving_doubling(100 * MB, 5, BETWEEN) == pytest.approx(1.504 + 2.002)


def test_recursive_doubling_sends_the_whole_buffer_each_time() -> None:
    assert cost.recursive_doubling(100 * MB, 8, BETWEEN) == pytest.approx(3.003)


@pytest.mark.parametrize(("ranks", "seconds"), [(1, 0.0), (2, 1.001), (3, 3.003), (4, 2.002), (6, 4.004), (8, 3.003)])
def test_ranks_beyond_a_power_of_two_cost_recursive_doubling_two_messages_more(ranks: int, seconds: float) -> None:
    assert cost.recursive_doubling(100 * MB, ranks, BETWEEN) == pytest.approx(seconds)


def test_recursive_doubling_sums_once_more_where_ranks_are_folded() -> None:
    link = cost.Link(bytes_per_s=1e30, sum_bytes_per_s=100 * MB)
    assert cost.recursive_doubling(100 * MB, 3, link) == pytest.approx(2.0)


def test_one_server_takes_every_workers_gradients_and_four_servers_a_quarter_each() -> None:
    assert cost.parameter_server(100 * MB, 4, 1, BETWEEN) == pytest.approx(8.002)
    assert cost.parameter_server(100 * MB, 4, 4, BETWEEN) == pytest.approx(2.002)


def test_a_server_among_two_ranks_exchanges_with_the_other_only() -> None:
    assert cost.colocated_server(100 * MB, 2, 1, BETWEEN) == pytest.approx(2.002)
    assert cost.colocated_server(100 * MB, 1, 1, BETWEEN) == 0.0


def test_two_nodes_of_four_gain_by_a_hierarchy_what_the_flat_ring_sends_twice() -> None:
    assert cost.flat_ring(100 * MB, 2, 4, INSIDE, BETWEEN) == pytest.approx(1.764)
    # Inside: three quarters of the buffer twice to reduce, the whole buffer twice to broadcast.
    assert cost.hierarchical(100 * MB, 2, 4, INSIDE, BETWEEN) == pytest.approx(0.15 + 0.2 + 1.002)


@pytest.mark.parametrize(("ranks", "seconds"), [(1, 0.0), (2, 0.1 + 0.1), (4, 0.15 + 0.2), (8, 0.175 + 0.3)])
def test_inside_a_node_a_hierarchy_costs_a_round_more_for_twice_the_ranks(ranks: int, seconds: float) -> None:
    assert cost.hierarchical(100 * MB, 1, ranks, INSIDE, BETWEEN) == pytest.approx(seconds)


def test_flat_halving_sends_between_nodes_only_what_a_hierarchy_sends() -> None:
    flat = cost.flat_halving_doubling(100 * MB, 2, 2, INSIDE, cost.Link(100 * MB))
    assert flat == pytest.approx(0.1 + 1.0)


def test_two_dimensions_share_the_link_and_send_a_part_each() -> None:
    assert cost.two_dimensional(100 * MB, 2, 4, INSIDE, cost.Link(100 * MB)) == pytest.approx(0.15 + 0.075 + 1.0)


def test_on_one_node_nothing_is_sent_between() -> None:
    assert cost.hierarchical(100 * MB, 1, 4, INSIDE, BETWEEN) == pytest.approx(0.35)
    assert cost.two_dimensional(100 * MB, 1, 4, INSIDE, BETWEEN) == pytest.approx(0.225)


def test_buckets_are_exchanged_one_after_the_other_as_they_fill() -> None:
    # Full at 0.1 and 0.2 s, half a second each: the second waits for the first and outlasts backward.
    step = cost.overlapped(0.1, 0.3, [0.1, 0.2], [50 * MB, 50 * MB], lambda size: size / (100 * MB))
    assert step == pytest.approx(0.1 + 1.1)
    assert cost.overlapped(0.1, 0.3, [0.1, 0.2], [5 * MB, 5 * MB], lambda size: size / (100 * MB)) == pytest.approx(0.4)
