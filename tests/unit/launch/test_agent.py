"""An agent's configuration: JSON, which carries a run unchanged."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from scalestudy.launch.agent import AS_JSON, AgentConfig
from scalestudy.spec.base import parse
from scalestudy.spec.run import RunSpec
from scalestudy.training.job import Job, Resolved

RUNS: dict[str, dict[str, Any]] = {
    "defaults": {},
    "names alone": {"model": "resnet50", "strategy": "allreduce", "data": {"source": "image_folder"}, "ranks": 4},
    "own classes": {
        "model": {"import": "nets:Net", "kwargs": {"width": 3, "deep": [1, 2.5, None, "x"]}},
        "data": {"import": "sets:Set", "kwargs": {"root": "/data"}},
    },
    "global batch": {"batch": {"per_rank": None, "global": 64}, "ranks": 2, "device": "emulated:v100"},
    "faults": {"faults": [{"kind": "slow_rank", "rank": 0, "seconds": 0.1}, {"kind": "killed_rank", "rank": 1, "at_step": 3}]},
    "tuples and floats": {"data": {"source": "synthetic", "shape": [3, 8, 8]}, "optimiser": {"learning_rate": 0.1 + 0.2}},
}  # fmt: skip


def config_of(data: dict[str, Any]) -> AgentConfig:
    """What the agents of a run on two nodes are told."""
    spec, problems = parse(RunSpec, data)
    assert spec is not None, problems
    resolved = Resolved(2, 2, 1, "cpu", 4, step_time_s=0.0125)
    here = Path("a folder")
    job = Job("run", spec, resolved, here / "manifest.json", here, here / "own", None, hosts=("n1", "n2"), resume=here)
    return AgentConfig(job, ["10.0.0.1", "fe80::1"], 4711, "token", "ssh")


@pytest.mark.parametrize("data", RUNS.values(), ids=RUNS.keys())
def test_an_agent_reads_the_run_that_was_written(data: dict[str, Any]) -> None:
    config = config_of(data)
    assert AS_JSON.validate_json(AS_JSON.dump_json(config, by_alias=True)) == config
