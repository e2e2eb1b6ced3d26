from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from scalestudy.data.scale import stratified_order, wanted_samples


@pytest.mark.parametrize(
    ("scale", "samples"), [(0.25, 250), (3.0, 3000), (1e-9, 1), ("1 MB", 1000), ("64 MiB", 67109), ("0.5 KB", 1)]
)
def test_scale_is_a_factor_or_a_size_of_the_data_as_stored(scale: float | str, samples: int) -> None:
    assert wanted_samples(scale, 1000, 1000.0) == samples


@given(st.lists(st.integers(0, 4), min_size=1, max_size=80))
def test_every_prefix_holds_the_classes_in_proportion(labels: list[int]) -> None:
    array = np.array(labels)
    order = stratified_order(array)
    assert sorted(order) == list(range(len(labels)))
    share = np.bincount(array, minlength=5) / len(labels)
    for count in range(1, len(labels) + 1):
        held = np.bincount(array[order[:count]], minlength=5)
        assert (np.abs(held - share * count) <= 3).all()
