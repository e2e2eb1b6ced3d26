from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from scalestudy.data.index import Index, joined


def of(names: list[str]) -> Index:
    count = len(names)
    return Index.of(names, np.arange(count), np.arange(count) * 10, np.zeros(0, np.uint32))


@given(st.lists(st.lists(st.text("aé", max_size=3), max_size=5), min_size=1, max_size=5))
def test_parts_are_joined_in_their_order_also_empty_ones(parts: list[list[str]]) -> None:
    whole = joined([of(part) for part in parts])
    assert [whole.path(n) for n in range(len(whole))] == [name for part in parts for name in part]


@given(st.lists(st.text("aé/図", max_size=5), min_size=1, max_size=30), st.data())
def test_samples_are_taken_with_their_names_in_any_order(names: list[str], data: st.DataObject) -> None:
    order = data.draw(st.lists(st.integers(0, len(names) - 1), min_size=1, max_size=40))
    taken = of(names).taken(np.array(order))
    assert [taken.path(n) for n in range(len(order))] == [names[n] for n in order]
    assert taken.labels.tolist() == order and len(taken.checks) == 0
