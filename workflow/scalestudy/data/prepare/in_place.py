"""Images used where they lie: only an index of them is written."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import hashlib
import shutil
from pathlib import Path

import numpy as np

from scalestudy.data.catalogue import DatasetSpec
from scalestudy.data.index import joined, write_index
from scalestudy.data.manifest import INDEX, Manifest
from scalestudy.data.prepare.describe import describe_pictures
from scalestudy.data.prepare.parts import IMAGES_PER_PART, Job, begin_work, stored
from scalestudy.data.prepare.select import converted, evenly_spread, mean_bytes, plan_of, selected
from scalestudy.data.scale import wanted_samples
from scalestudy.data.sources import EncodedImages
from scalestudy.files import sha256_text


def usable_in_place(spec: DatasetSpec, source: EncodedImages) -> bool:
    """Whether the images can be used where they lie: none has to be changed, and none is needed twice."""
    if source.root is None or spec.preprocess != "none" or spec.shard.format != "files":
        return False
    available = len(source.indexes["train"])
    return wanted_samples(spec.scale, available, mean_bytes(spec, source)) <= available


def index_in_place(manifest: Manifest, spec: DatasetSpec, source: EncodedImages, folder: Path, work: Path) -> Manifest:
    """Write the index into `folder`; with `on_error: skip`, decode every image first. Records lie in `work`."""
    left_out = []
    selection = selected(spec, source)
    indexes = {split: source.indexes[split].taken(chosen.order) for split, chosen in selection.items()}
    if spec.on_error == "skip":
        records = begin_work(work, plan_of(spec, source, selection))
        for split, index in indexes.items():
            convert = functools.partial(converted, spec, dataclasses.replace(source, indexes=indexes), split)
            job = Job("examining", split, index.labels, convert, True, records)
            edges = np.append(np.arange(0, len(index), IMAGES_PER_PART), len(index))
            # In the index of a part, `start` is the planned number of each image.
            parts = stored(job, edges, lambda _, kept: {"start": np.array([n for n, _ in kept], np.int64)})
            kept = joined([part.index for part in parts])
            left_out += [name for part in parts for name in part.left_out]
            indexes[split] = index.taken(kept.start)
        shutil.rmtree(work)
    write_index(folder / INDEX, indexes)
    manifest = dataclasses.replace(
        manifest,
        format="shards" if source.containers else "files",
        bulk=str(source.root),
        containers={str(split): names for split, names in source.containers.items()},
    )
    containers = {split: len(source.containers.get(split, [])) for split in indexes}
    manifest = describe_pictures(manifest, source, selection, indexes, left_out, containers)
    # The index has names and sizes alone: the bytes of some images count too.
    digest = hashlib.sha256()
    for split in sorted(source.indexes):
        for number in evenly_spread(len(source.indexes[split])):
            with contextlib.suppress(OSError):
                digest.update(source.read(split, number))
    return dataclasses.replace(manifest, fingerprint=sha256_text(f"{manifest.fingerprint} {digest.hexdigest()}"))
