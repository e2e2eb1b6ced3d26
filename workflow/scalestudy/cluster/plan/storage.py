"""Bytes and files that jobs leave, and their copies of the data on a node. Nothing is deleted while studies run."""

from __future__ import annotations

import math
from dataclasses import dataclass

from scalestudy.cluster.plan.costs import data_of, model_cost, used_in_place, work_of
from scalestudy.data.catalogue import Synthetic
from scalestudy.spec.run import RunSpec

RESULT_BYTES = 200_000
STEP_BYTES = 60
"""Approximate bytes that a run leaves in addition to its weights: result, system samples, a row per rank and step."""
RUN_FILES = 10
"""About how many files a run leaves, beside a log of each rank."""
STATE_BYTES = 8
"""Bytes of a checkpoint per parameter: weights and momentum in float32."""


@dataclass(frozen=True)
class Stored:
    """Bytes and files that one job leaves."""

    written_bytes: int = 0
    files: int = 0
    node_bytes: int = 0
    """Its copies of the data on a node's own disk."""


NOTHING = Stored()


def of_run(spec: RunSpec, nodes: int, links: int) -> Stored:
    """Roughly the bytes that a run leaves, and copies to each of its nodes. A chain of jobs leaves a checkpoint."""
    data, cost = data_of(spec), model_cost(spec)
    parameters = cost.parameters if cost else 0
    written = RESULT_BYTES + (4 * parameters if spec.keep == "weights" else 0)
    written += STATE_BYTES * parameters if links > 1 else 0
    node_bytes = 0
    if data is not None:
        written += STEP_BYTES * spec.ranks * work_of(spec, data).steps
        if spec.stage.to is not None:
            node_bytes = data.train_bytes // (nodes if spec.stage.share == "by_shard" else 1)
    return Stored(written, RUN_FILES + spec.ranks, node_bytes)


def of_dataset(spec: RunSpec) -> Stored:
    """Rough bytes that preparing the data of a run writes, and its files: one per image, or shards.

    Nothing for files that are used where they lie; no file of data that is made while it is read.
    """
    data, shard = data_of(spec), spec.data.shard
    if data is None or used_in_place(spec):
        return NOTHING
    size = data.train_samples * 3 * spec.data.resize**2 if spec.data.preprocess == "raw" else data.train_bytes
    files = data.train_samples + data.test_samples
    if shard.format != "files":
        files = 2 + (0 if shard.format == "lmdb" else 2 * math.ceil(size / (shard.mib * 2**20)))
    return Stored(size, 0 if isinstance(spec.data, Synthetic) else files)
