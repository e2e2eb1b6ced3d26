"""What the probe measured of a machine's links, in its machine file."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pandas as pd
import pytest

from scalestudy.cluster.doctor import links
from scalestudy.errors import UserError
from scalestudy.spec.config import read_machine
from scalestudy.spec.run import RunSpec

pytestmark = pytest.mark.usefixtures("here")
MACHINE = """\
# ours
nodes: 4
devices_per_node: 4
device: cuda  # all of them
network_gb_per_s: 50
peak_tflops: {float32: 10.6, float16: 21.2}
sources:
  nodes: "the contract"
"""
RATES = {2: (1.0e11, 1.01e11, 0.99e11), 4: (8e10,), 8: (1.2e10, 1.21e10, 1.19e10), 16: (9e9,)}
"""Bytes of bus bandwidth per second, by ranks; the machine has four on a node."""


def written(monkeypatch: pytest.MonkeyPatch, **of_all: Any) -> str:
    """The file after runs with these rates, which have `of_all` else."""
    Path("config/machines").mkdir(parents=True)
    Path("config/machines/mine.yaml").write_text(MACHINE)
    row = {"status": "valid", "part": "allreduce", "buffer_kib": 65536, "started": "2026-11-27T10:00:00Z"}
    rows = [{**row, "bytes_per_s": rate, **of_all, "ranks": ranks} for ranks, rates in RATES.items() for rate in rates]
    runs = [SimpleNamespace(spec=RunSpec(ranks=each["ranks"])) for each in rows]
    monkeypatch.setattr(links, "study_rows", lambda study, machine: pd.DataFrame(rows))
    links.write_links(SimpleNamespace(runs=runs, scale="paper"), "mine+night")  # type: ignore[arg-type]
    return Path("config/machines/mine.yaml").read_text()


def test_the_rates_of_links_are_written_with_date_and_interval_and_all_else_stays(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    source = "study probe, 2026-11-27: all-reduce of 64 MiB on"
    assert written(monkeypatch) == (
        MACHINE.replace("network_gb_per_s: 50", "network_gb_per_s: 12.0").replace(
            "sources", "device_link_gb_per_s: 200.0\nsources"
        )
        + f"  device_link_gb_per_s: '{source} 2 ranks, 200.0 ± 5.0 GB/s, n = 3'\n"
        + f"  network_gb_per_s: '{source} 8 ranks, 12.00 ± 0.25 GB/s, n = 3'\n"
    )
    assert read_machine("mine").network_gb_per_s == 12.0


@pytest.mark.parametrize("of_all", [{"status": "invalid"}, {"buffer_kib": 1}, {"part": "gemm"}])
def test_where_no_run_tells_a_rate_nothing_is_written(of_all: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UserError, match="no valid run of probe at scale paper"):
        written(monkeypatch, **of_all)
    assert Path("config/machines/mine.yaml").read_text() == MACHINE
