"""What stands below a figure."""

from __future__ import annotations

from typing import Any

import pytest

from scalestudy.figures import notes

ROW = {"device": None, "ranks": 1, "data.source": "synthetic_jpeg", "loader.mode": None, "emulated": False}


@pytest.mark.parametrize(
    ("rows", "words"),
    [
        ([{}], ""),
        ([{"device": "cuda"}], ""),
        ([{"device": "emulated:infinite"}], "Compute is left out: it takes no time. Real: loading"),
        (
            [{"device": "emulated:a100_mixed", "ranks": 2}, {"device": "emulated:v100"}],
            "Compute is emulated: a step waits as long as published for A100 MIXED; V100. Real: exchange and loading",
        ),
        (
            [{"device": "emulated:p100", "data.source": "synthetic"}],
            "Compute is emulated: a step waits as long as published for P100. Samples are made in memory",
        ),
        (
            [{"loader.storage.mib_per_s": 40.0, "loader.storage.latency_ms": 5.0}, {}],
            "Storage is emulated: 40 MiB/s, 5 ms per request",
        ),
        (
            [{"device": "emulated:infinite", "network.mib_per_s": 32.0, "ranks": 4, "data.source": "synthetic"}],
            "Compute is left out: it takes no time. The network is emulated: 32 MiB/s per node. Real: exchange. "
            "Samples are made in memory",
        ),
    ],
)
def test_a_figure_says_what_of_its_runs_is_emulated_and_what_is_real(rows: list[dict[str, Any]], words: str) -> None:
    assert notes.emulated([{**ROW, **row} for row in rows]) == words
