"""The rule by which injected causes are judged: a part counts where it exceeds what one more clean case would show."""

from __future__ import annotations

import math
from typing import Any

import pytest

from tests.soak.bottleneck import growth_of, named, reach_s


def answer(loading_s: float) -> dict[str, Any]:
    part = {"name": "loading", "seconds": loading_s, "low": loading_s - 0.01, "high": loading_s + 0.01}
    return {"step_s": 5.0, "parts": [part]}


CLEAN = [answer(seconds) for seconds in (1.0, 2.0, 3.0, 1.0, 2.0, 3.0, 1.0, 2.0, 3.0)]
"""Mean 2 s, standard deviation 0.866 s; t(0.99, 8) = 2.896."""


@pytest.mark.parametrize(("loading_s", "part"), [(2.4, "none"), (3.5, "none"), (4.7, "loading")])
def test_a_part_that_is_as_long_as_that_of_some_clean_case_is_not_named(loading_s: float, part: str) -> None:
    assert reach_s("loading", CLEAN) == pytest.approx(2.896 * 0.866 * math.sqrt(10 / 9), rel=1e-3)
    assert named(growth_of(answer(loading_s), CLEAN), CLEAN, 5.0) == part
