"""A run's data on its nodes' own disks: copied before the ranks open it, a phase that is timed separately."""

from __future__ import annotations

import time
from dataclasses import replace
from datetime import timedelta

import numpy as np
import torch.distributed as dist

from scalestudy.data.load.sampler import NodeShare, node_steps
from scalestudy.data.manifest import read_manifest
from scalestudy.data.stage import Share, Staged, StageOptions, staged
from scalestudy.data.stage.wanted import own_samples
from scalestudy.emulation.storage import Throttle
from scalestudy.files import sha256_text
from scalestudy.spec.config import read_site
from scalestudy.training.job import Job
from scalestudy.training.report import Staging

LONGEST = timedelta(days=7)
"""Nodes wait so long for the slowest. A node that fails ends the run before this time is over."""


class StagedCopies:
    """The copies that one process uses. It opens `manifest` with `loader` in place of the run's own."""

    def __init__(self, job: Job, rank: int) -> None:
        self.job, self.spec = job, job.spec
        self.node = job.node_of(rank)
        nodes = job.resolved.nodes
        self.share = Share() if self.spec.stage.share == "all" or nodes == 1 else Share(self.node, nodes)
        begin = time.perf_counter()
        self.copies = copies = self._copies()
        if job.processes > 1:
            # However long the slowest takes: an exchange has a shorter time limit.
            group = dist.new_group(backend="gloo", timeout=LONGEST)
            assert isinstance(group, dist.ProcessGroup)
            dist.barrier(group=group)
            dist.destroy_process_group(group)
        self.report = Staging(
            self.node, time.perf_counter() - begin, copies.copied_bytes, copies.bytes, copies.files, copies.origin,
            copies.sentence,
        )  # fmt: skip
        self.manifest = copies.manifest
        self.loader = self.spec.loader.model_copy(update={"origin": None, "storage": None})
        """The run's way of loading, from the node's own disk: without the limits of the storage that it was copied from."""

    def node_share(self) -> NodeShare | None:
        """The samples of this node, where not every node has all."""
        if self.share.whole:
            return None
        manifest, nodes = read_manifest(self.job.manifest), self.job.resolved.nodes
        all_nodes = [own_samples(self.job.manifest, manifest, Share(node, nodes)) for node in range(nodes)]
        counts = np.array([len(samples) for samples in all_nodes])
        node_batch = self.spec.rank_batch * self.job.resolved.ranks_per_node
        return NodeShare(all_nodes[self.node], node_steps(counts, node_batch, self.spec.loader.last_batch))

    def end(self) -> None:
        """Release the copies; those that no later run may use are deleted by the last process to release them."""
        self.copies.release(remove=not self.spec.stage.reuse)

    def _copies(self) -> Staged:
        stage, storage, throttle = self.spec.stage, self.spec.loader.storage, None
        if storage is not None:
            throttle = Throttle(storage.mib_per_s, storage.latency_ms, str(self.job.folder / f"storage.{self.node}"))
        # Logical nodes of one machine have copies of their own, as real ones do.
        logical = len(self.job.hosts) == 1 and self.job.resolved.nodes > 1
        labels = [f"node{self.node}"] if logical else []
        labels += [] if stage.reuse else [sha256_text(str(self.job.folder))[:8]]
        options = StageOptions(
            origin=stage.from_ or self.spec.loader.origin,
            streams=stage.streams,
            mib_per_s=stage.mib_per_s,
            cold=self.spec.loader.cache == "cold",
            throttle=throttle,
            label="-".join(labels),
            private=not stage.reuse,
        )
        try:
            return staged(self.job.manifest, options, self.share, read_site())
        finally:
            if throttle is not None:
                throttle.close()


def together(earlier: Staging, now: Staging) -> Staging:
    """Sum the staging of all attempts of a stopped run."""
    return replace(now, seconds=earlier.seconds + now.seconds, copied_bytes=earlier.copied_bytes + now.copied_bytes)
