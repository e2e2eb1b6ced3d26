"""Bytes that jobs write and read, and the most storage at one time. Nothing is deleted while studies run."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import accumulate

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
CHECKPOINTS = 3
"""Checkpoints that lie there while one is written: two are kept (training/checkpoint.py)."""
CHECKPOINT_FILES = 3
"""Files of a checkpoint, beside one of each rank."""


@dataclass(frozen=True)
class Stored:
    """Bytes and files of one job."""

    written_bytes: int = 0
    """What is left when it has ended."""
    files: int = 0
    temporary_bytes: int = 0
    """What lies there in addition while it runs, at most."""
    temporary_files: int = 0
    node_bytes: int = 0
    """Its copies of the data on a node's own disk."""


NOTHING = Stored()


@dataclass(frozen=True)
class Peak:
    """Storage of a whole plan."""

    bytes: int
    files: int
    node_bytes: int
    """On a node's own disk, at most at one time: the largest of the copies."""


def of_run(spec: RunSpec, nodes: int, links: int) -> Stored:
    """Roughly the bytes that a run writes, and copies to each of its nodes."""
    data, cost = data_of(spec), model_cost(spec)
    parameters = cost.parameters if cost else 0
    state = STATE_BYTES * parameters
    left = state if links > 1 else 0  # the last checkpoint
    written = RESULT_BYTES + left + (4 * parameters if spec.keep == "weights" else 0)
    node_bytes = 0
    if data is not None:
        written += STEP_BYTES * spec.ranks * work_of(spec, data).steps
        if spec.stage.to is not None:
            node_bytes = data.train_bytes // (nodes if spec.stage.share == "by_shard" else 1)
    files, of_checkpoints = RUN_FILES + spec.ranks, CHECKPOINTS * (CHECKPOINT_FILES + spec.ranks)
    return Stored(written, files, CHECKPOINTS * state - left, of_checkpoints, node_bytes)


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


def peak(jobs: Iterable[tuple[Stored, int, int]]) -> Peak:
    """The most at one time, of jobs with the seconds of their start and end: everything that is left at the end, and all that
    lies there in addition while the jobs run that need most of it together."""
    jobs = list(jobs)
    # What ends at a moment makes room for what begins then.
    changes = sorted(
        (at, sign, sign * stored.temporary_bytes, sign * stored.temporary_files)
        for stored, begin, end in jobs
        for at, sign in ((begin, 1), (end, -1))
    )
    most_bytes, most_files = (max(accumulate((one[place] for one in changes), initial=0)) for place in (2, 3))
    return Peak(
        sum(stored.written_bytes for stored, _, _ in jobs) + most_bytes,
        sum(stored.files for stored, _, _ in jobs) + most_files,
        max((stored.node_bytes for stored, _, _ in jobs), default=0),
    )
