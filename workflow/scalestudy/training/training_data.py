"""The data of one rank: opened in place or from copies on the node, in the order of the run, with a known page cache."""

from __future__ import annotations

import hashlib
import itertools
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch
import torch.distributed as dist

from scalestudy.data.catalogue import OwnData
from scalestudy.data.load.dataset import Dataset, open_dataset
from scalestudy.data.load.loader import Loader
from scalestudy.data.load.sampler import NodeShare, batches, node_steps, steps_per_epoch
from scalestudy.data.manifest import Manifest, read_manifest
from scalestudy.data.pagecache import drop, resident_bytes, warm
from scalestudy.errors import UserError
from scalestudy.files import sha256_text
from scalestudy.limits import free_memory_bytes
from scalestudy.spec.config import read_site
from scalestudy.spec.labels import counted
from scalestudy.spec.run import SlowDecode
from scalestudy.training.job import Job
from scalestudy.training.report import Staging

if TYPE_CHECKING:
    from scalestudy.data.stage import Share, Staged
    from scalestudy.emulation.page_cache import CacheLimit

DIGESTED = 32
"""Samples of the user's own that are compared with each other."""
MIN_DIGESTED = 4
DIGEST_S = 0.1
"""Their time; where items take so long that fewer would be compared, none are."""
MAX_WAIT = timedelta(days=7)
"""Nodes wait so long for the slowest to copy. A node that fails ends the run before this time is over."""


def _refuse_too_large(data: Manifest, ranks: int, copies: Staged | None) -> None:
    """Raise UserError where the ranks of a node, each with all data of the node, need more memory than is free now."""
    of_node = data.train.bytes + data.test.bytes if copies is None or copies.share.whole else copies.bytes
    needed, free = ranks * of_node, free_memory_bytes()
    if data.bulk and needed > free:
        what = f"{needed / 2**20:,.0f} MiB for {counted(ranks, 'rank')} of a node"
        what = f"{what} do not fit into the {free / 2**20:,.0f} MiB of free memory"
        raise UserError(what, "loader.mode: memory", "set another mode, or lower `data.scale` or `ranks_per_node`")


class TrainingData:
    """Training and held-out samples of one run, as one of its ranks reads them."""

    def __init__(self, job: Job, rank: int, train: Dataset, held_out: Dataset, copies: Staged | None = None) -> None:
        self.job, self.spec, self.rank = job, job.spec, rank
        self.train, self.held_out, self.copies = train, held_out, copies
        self.staging: Staging | None = None
        self.share = None if copies is None or copies.share.whole else _node_share(job, copies.share)
        """Where each node has samples of its own and no others."""
        self.cache_limit: CacheLimit | None = None
        if limit := self.spec.loader.memory_limit_mib:
            from scalestudy.emulation.page_cache import CacheLimit

            self.cache_limit = CacheLimit(int(limit * 2**20 / job.resolved.ranks_per_node))
        self.slow_decode_s = sum(fault.seconds for fault in self.spec.faults if isinstance(fault, SlowDecode))
        """An injected fault: what each batch takes longer."""

    @classmethod
    def open(cls, job: Job, rank: int) -> TrainingData:
        """The data in place, or the node's copies, which are made first: then all processes of the run wait here."""
        manifest, loader, copies, begin = job.manifest, job.spec.loader, None, time.perf_counter()
        if job.spec.stage.to:
            copies = _copies(job, rank)
            # From the node's own disk, without the limits of the storage that it was copied from.
            manifest, loader = copies.manifest, loader.model_copy(update={"origin": None, "storage": None})
        seconds = time.perf_counter() - begin
        if loader.mode == "memory":
            _refuse_too_large(read_manifest(manifest), job.resolved.ranks_per_node, copies)
        # Ranks of a node share the rate of an emulated storage.
        place = job.folder / f"storage.{rank // job.resolved.ranks_per_node}"
        train, held_out = (open_dataset(manifest, split, loader, place) for split in ("train", "test"))
        data = cls(job, rank, train, held_out, copies)
        if copies is not None:
            data.staging = Staging(job.node_of(rank), seconds, copies.copied_bytes, copies.bytes)
        return data

    @property
    def files(self) -> list[Path]:
        """The training files that this node reads: in place, or its copies."""
        return self.train.files if self.copies is None else self.copies.here(self.train.files)

    def one_file(self) -> Path | None:
        """A training file that this node reads; None where it reads none. There may be a million: not all are listed."""
        own = np.zeros(1, np.int64) if self.share is None else self.share.samples[:1]
        for path, *_ in self.train.ranges(own):
            return Path(path)
        return next(iter(self.files), None)

    @property
    def steps_per_epoch(self) -> int:
        """Steps of one epoch. Raises UserError where a step takes more samples than there are."""
        steps = steps_per_epoch(self.train.samples, self.spec.global_batch)
        return steps if self.share is None else self.share.steps

    def order(self, epoch: int) -> np.ndarray:
        """[steps, rank_batch] this rank's samples of an epoch."""
        spec, rank, per_node = self.spec, self.rank, self.job.resolved.ranks_per_node
        stream = self.train.stream
        if self.share is not None:
            node_batch = per_node * spec.rank_batch
            return self.share.batches(node_batch, rank % per_node, per_node, spec.seed, epoch, stream)
        return batches(self.train.samples, spec.global_batch, rank, spec.ranks, spec.seed, epoch, stream=stream)

    def plan(self, first: int, last: int) -> Iterator[tuple[int, np.ndarray]]:
        """Epoch and sample indices of this rank's batches, from step `first` to the one before `last`."""
        steps = self.steps_per_epoch
        for epoch in range(first // steps, -(-last // steps)):
            begin = epoch * steps
            for indices in self.order(epoch)[max(0, first - begin) : last - begin]:
                yield epoch, indices

    def loader(self, first: int, last: int) -> Loader:
        """The batches of the steps from `first` to the one before `last`."""
        spec = self.spec
        return Loader(self.train, self.plan(first, last), spec.loader, spec.seed, self.slow_decode_s, self.cache_limit)

    def measure_loader(self, count: int, convert: Callable[[torch.Tensor], torch.Tensor]) -> float | None:
        """Samples/s of `count` batches per worker, converted, while nothing else is done.

        They are the training's first, after those that fill the loader's queue, which are not counted. None where the
        training has fewer batches than both take: batches made before the clock starts would count.
        """
        workers = max(1, self.spec.loader.workers)
        ahead, timed = workers * self.spec.loader.prefetch, workers * count
        batches = self.steps_per_epoch * self.spec.train.epochs
        if batches < ahead + timed:
            return None
        with closing(self.loader(0, batches)) as loader:
            stream = iter(loader)
            for _ in range(ahead):
                next(stream)
            begin, samples = time.perf_counter(), 0
            for x, y in itertools.islice(stream, timed):
                convert(x)
                samples += len(y)
            if torch.cuda.is_initialized():
                torch.cuda.synchronize()  # the last conversions have only been queued
            return samples / (time.perf_counter() - begin)

    def unusual(self) -> list[str]:
        """Find unusual samples in data of the user's own: its first rank digests some items, each fetched twice."""
        if self.rank or not isinstance(self.spec.data, OwnData):
            return []
        for _ in range(2):  # the first time it may open files
            begin = time.perf_counter()
            self._digests(self.train, np.zeros(1, np.int64))
        digested = min(DIGESTED, int(DIGEST_S / 3 / (time.perf_counter() - begin)))
        if digested < MIN_DIGESTED:
            return []
        count = min(self.train.samples, self.held_out.samples)
        places = np.sort(np.random.default_rng(0).permutation(count)[:digested])
        first, again, held_out = (self._digests(data, places) for data in (self.train, self.train, self.held_out))
        checks = {
            "differ when they are fetched again: they are augmented at random, or not what their number says": sum(
                one != other for one, other in zip(first, again, strict=True)
            ),
            "are equal to another one: does an item depend on its number?": len(places) - len(set(first)),
            "are held-out samples too: does the class look at `train`?": len(set(first) & set(held_out)),
        }
        few = len(places) // 10
        return [f"{n} of {len(places)} training samples of your own {what}" for what, n in checks.items() if n > few]

    def _digests(self, data: Dataset, places: np.ndarray) -> list[bytes]:
        """Of these samples without their labels, fetched as a batch is."""
        x, _ = data.batch(places, size=self.spec.loader.size, augment="none", seed=self.spec.seed, epoch=0)
        return [hashlib.blake2b(sample.numpy().tobytes()).digest() for sample in x]

    def prepare_cache(self) -> float | None:
        """Bring the page cache into the state that the spec names, once on each node.

        Returns the share of its training files resident then, None where that is not known here.
        """
        if self.rank % self.job.resolved.ranks_per_node:
            return None
        cache = self.spec.loader.cache
        if cache == "as_found" and self.cache_limit is None:
            return None
        files = self.files
        if cache == "warm":
            warm(files)
        elif cache == "cold" or self.cache_limit is not None:
            drop(files)
        if cache == "as_found" or not files:
            return None
        resident, size = resident_bytes(files), sum(file.stat().st_size for file in files)
        return None if resident is None or not size else min(1.0, resident / size)

    def close(self) -> None:
        """Release the copies; those that no later run may use are deleted by the last process to release them."""
        if self.copies is not None:
            self.copies.release(remove=not self.spec.stage.reuse)


def _copies(job: Job, rank: int) -> Staged:
    """Copy the node's data to its own disk, and wait until all nodes have theirs."""
    from scalestudy.data.stage import Share, StageOptions, staged

    spec, node, storage, throttle = job.spec, job.node_of(rank), job.spec.loader.storage, None
    if storage is not None:
        from scalestudy.emulation.storage import Throttle

        throttle = Throttle(storage.mib_per_s, storage.latency_ms, str(job.folder / f"storage.{node}"))
    # Logical nodes of one machine have copies of their own, as real ones do.
    labels = [f"node{node}"] if len(job.hosts) == 1 and job.resolved.nodes > 1 else []
    labels += [] if spec.stage.reuse else [sha256_text(str(job.folder))[:8]]
    options = StageOptions(
        origin=spec.stage.from_ or spec.loader.origin,
        streams=spec.stage.streams,
        mib_per_s=spec.stage.mib_per_s,
        cold=spec.loader.cache == "cold",
        throttle=throttle,
        label="-".join(labels),
    )
    nodes = job.resolved.nodes
    share = Share() if spec.stage.share == "all" or nodes == 1 else Share(node, nodes)
    copies = staged(job.manifest, options, share, read_site())
    if job.processes > 1:
        # However long the slowest takes: an exchange has a shorter time limit.
        group = dist.new_group(backend="gloo", timeout=MAX_WAIT)
        assert isinstance(group, dist.ProcessGroup)
        dist.barrier(group=group)
        dist.destroy_process_group(group)
    return copies


def _node_share(job: Job, share: Share) -> NodeShare:
    """The samples of a node that has a part of them."""
    from scalestudy.data.stage.file_set import Share, own_samples

    manifest = read_manifest(job.manifest)
    all_nodes = [own_samples(job.manifest, manifest, Share(part, share.of)) for part in range(share.of)]
    counts = np.array([len(samples) for samples in all_nodes])
    node_batch = job.spec.rank_batch * job.resolved.ranks_per_node
    return NodeShare(all_nodes[share.part], node_steps(counts, node_batch))
