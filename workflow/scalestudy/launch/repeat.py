"""Whether a run that others disturbed can be measured once more as it was measured the first time."""

from __future__ import annotations

import time
from pathlib import Path

from scalestudy.data.manifest import read_manifest
from scalestudy.launch.attempts import Chain
from scalestudy.launch.job_environment import JobEnvironment
from scalestudy.spec.run import RunSpec

LONGEST_S = 300.0
"""A run that took longer is marked, not repeated: on a cluster its node hours would be spent twice."""


def possible(chain: Chain, spec: RunSpec, manifest_file: Path, wall_s: float) -> bool:
    """Whether a run of one window, which took `wall_s` from its start to its result, can be made again at once.

    Not a whole training, nor what began from a checkpoint of its own or leaves some, nor what would now find its data
    in the page cache or on the node, nor where the job's time would run out.
    """
    saves = spec.checkpoint.every_steps is not None or spec.checkpoint.every_minutes is not None
    if spec.runs_full_training or saves or chain.resume is not None or not _finds_data_as_before(spec, manifest_file):
        return False
    deadline = JobEnvironment().deadline
    return wall_s <= LONGEST_S and (deadline is None or time.time() + 2 * wall_s < deadline)


def _finds_data_as_before(spec: RunSpec, manifest_file: Path) -> bool:
    loader = spec.loader
    if spec.stage.to is not None:
        return False
    if loader.cache != "as_found" or loader.memory_limit_mib is not None or loader.mode == "synthetic":
        return True
    return read_manifest(manifest_file).format == "tensors"


def sentence(foreign_cpu_share: float) -> str:
    """What a reader of the result is told."""
    return f"other processes took {foreign_cpu_share:.0%} of the cores during the window, which was measured once more"
