"""Which disturbed runs are measured once more."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest

from scalestudy.data.prepare.datasets import prepare
from scalestudy.launch.attempts import Chain
from scalestudy.launch.launch import can_remeasure
from scalestudy.spec.config import Site
from scalestudy.spec.run import RunSpec

WINDOW = {"measure": {"steps": 8}}
JPEG = {"source": "synthetic_jpeg", "samples": 10, "width": 32, "height": 32, "mean_kib": 1.0}


def decided(folder: Path, data: dict[str, Any], wall_s: float = 10.0, resume: Path | None = None) -> bool:
    spec = RunSpec.model_validate_json(json.dumps(data))
    manifest = folder / spec.data.source / "manifest.json"
    if not manifest.exists():
        prepare(spec.data, manifest, None, Site())
    return can_remeasure(Chain("r", folder, resume=resume), spec, manifest, wall_s)


@pytest.mark.parametrize(
    ("data", "again"),
    [
        (WINDOW, True),
        ({"measure": {"minutes": 0.1}}, True),
        ({}, False),  # a whole training
        ({**WINDOW, "checkpoint": {"every_steps": 5}}, False),
        ({**WINDOW, "data": JPEG}, False),  # would be in the page cache
        ({**WINDOW, "data": JPEG, "loader": {"cache": "cold"}}, True),
        ({**WINDOW, "data": JPEG, "loader": {"cache": "warm"}}, True),
        ({**WINDOW, "data": JPEG, "loader": {"memory_limit_mib": 1.0}}, True),
        ({**WINDOW, "data": JPEG, "loader": {"mode": "synthetic"}}, True),
        (
            {**WINDOW, "data": JPEG, "loader": {"cache": "cold"}, "stage": {"to": "scratch"}},
            False,
        ),  # would be on the node
    ],
)
def test_a_window_is_taken_again_where_it_would_find_things_as_before(
    tmp_path: Path, data: dict[str, Any], again: bool
) -> None:
    assert decided(tmp_path, data) is again


def test_long_and_resumed_runs_and_those_near_their_jobs_end_are_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert not decided(tmp_path, WINDOW, wall_s=301.0)
    assert not decided(tmp_path, WINDOW, resume=tmp_path)
    monkeypatch.setenv("SCALESTUDY_DEADLINE", str(time.time() + 15))
    assert not decided(tmp_path, WINDOW, wall_s=10.0)
    monkeypatch.setenv("SCALESTUDY_DEADLINE", str(time.time() + 60))
    assert decided(tmp_path, WINDOW, wall_s=10.0)
