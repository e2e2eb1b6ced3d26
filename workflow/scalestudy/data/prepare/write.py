"""Storing what a source provides: arrays, files, shards or databases, and their index."""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from scalestudy.data.catalogue import DatasetSpec
from scalestudy.data.index import joined, write_index
from scalestudy.data.manifest import INDEX, Manifest, Payload, PreparationCost, Split, SplitInfo
from scalestudy.data.prepare import lmdb_store, parts, shard
from scalestudy.data.prepare.convert import Converted, converted
from scalestudy.data.prepare.describe import describe_pictures, shape_of, size_of, task_of
from scalestudy.data.prepare.parts import Gathered, PartJob, PreparedPart
from scalestudy.data.prepare.select import SPLITS, Selection, plan_of, selected
from scalestudy.data.progress import Progress, shown
from scalestudy.data.scale import chosen, wanted_samples
from scalestudy.data.sources import Arrays, EncodedImages
from scalestudy.errors import UserError

BLOCK_SAMPLES = 1 << 16
"""Samples of arrays copied at once."""


def write_arrays(manifest: Manifest, scale: float | str, source: Arrays, folder: Path) -> Manifest:
    """<split>.npy uint8 [samples, C, H, W] and <split>_labels.npy int64 [samples]; UserError where there is no room."""
    digest = hashlib.sha256()
    infos: dict[str, Any] = {}
    for split in SPLITS:
        x, y = source.splits[split]
        count = wanted_samples(scale, len(x), x[0].nbytes) if split == "train" else len(x)
        _require_room(folder, count * x[0].nbytes)
        order = chosen(y, count)
        stored = np.lib.format.open_memmap(folder / f"{split}.npy", "w+", np.uint8, (count, *x.shape[1:]))
        for begin in range(0, count, BLOCK_SAMPLES):
            block = x[order[begin : begin + BLOCK_SAMPLES]]
            stored[begin : begin + len(block)] = block
            digest.update(block.tobytes())
        stored.flush()
        np.save(folder / f"{split}_labels.npy", y[order])
        digest.update(y[order].tobytes())
        infos[split] = SplitInfo(count, stored.nbytes)
    cost = PreparationCost(bytes_in=sum(x.nbytes for x, _ in source.splits.values()), bytes_out=size_of(folder))
    shape = shape_of(stored.shape[1:])
    more = {**infos, **shape, "task": task_of(y), "fingerprint": digest.hexdigest()}
    return dataclasses.replace(manifest, **more, cost=cost)


def write_pictures(manifest: Manifest, spec: DatasetSpec, source: EncodedImages, folder: Path) -> Manifest:
    """Images in the form that the spec requests, and their index; UserError where there is no room."""
    selection = selected(spec, source)
    _require_room(folder, sum(int(chosen_pictures.sizes.sum()) for chosen_pictures in selection.values()))
    records = parts.records_folder(folder, plan_of(spec, source, selection))
    written: dict[Split, list[PreparedPart]] = {}
    for split, pictures in selection.items():
        with shown(f"preparing {split}", len(pictures.order)) as progress:
            written[split] = _write_split(spec, source, split, pictures, folder, records, progress)
    indexes = {split: joined([part.index for part in found]) for split, found in written.items()}
    payload: Payload = "pixels" if spec.preprocess == "raw" else "coded"
    form: Any = {"files": "raw" if payload == "pixels" else "files", "lmdb": "database"}
    manifest = dataclasses.replace(manifest, format=form.get(spec.shard.format, "shards"), payload=payload)
    shards = {}
    if manifest.format == "shards":
        shards = {split: shard.write_list(folder, split, written[split], payload == "pixels") for split in SPLITS}
    if manifest.format != "raw":
        write_index(folder / INDEX, indexes)
    parts.forget_records(folder)
    everything = [part for found in written.values() for part in found]
    out = sum(int(index.bytes.sum()) for index in indexes.values()) if manifest.format == "files" else size_of(folder)
    cost = PreparationCost(bytes_in=sum(part.bytes_in for part in everything), bytes_out=out)
    left_out = [name for part in everything for name in part.left_out]
    manifest = dataclasses.replace(manifest, cost=cost)
    return describe_pictures(manifest, spec, source, selection, indexes, left_out, shards)


def _write_split(
    spec: DatasetSpec, source: EncodedImages, split: Split, selection: Selection, folder: Path, records: Path,
    progress: Progress,
) -> list[PreparedPart]:  # fmt: skip
    """Convert and write one split."""
    labels, pixels, form = selection.labels, spec.preprocess == "raw", spec.shard.format

    def convert(number: int) -> Converted:
        return converted(spec, source, split, int(selection.order[number]))

    def gather() -> Gathered:
        return Gathered(convert, spec.on_error == "skip")

    if form == "lmdb":
        return lmdb_store.write_database(folder, records, split, labels, convert, gather, progress)
    if form == "files" and pixels:
        return [shard.write_array(folder, split, spec.resize, labels, convert, gather, progress)]
    if form == "files":
        write: Callable[[PartJob], PreparedPart] = functools.partial(
            shard.write_files, folder, labels=labels, gather=gather
        )
        jobs = list(shard.file_jobs(split, len(labels)))
        return parts.done(records, jobs, write, progress)
    sizes = selection.sizes if pixels else shard.tar_sizes(selection.sizes, labels)
    edges = shard.bounds(sizes, round(spec.shard.mib * 2**20) - (0 if pixels else len(shard.tar.END)))
    write = functools.partial(shard.write_shards, folder, labels=labels, gather=gather, pixels=pixels)
    return parts.done(records, list(shard.shard_jobs(split, edges, sizes)), write, progress)


def _require_room(folder: Path, size: int) -> None:
    """UserError where `folder`, with what it already holds, cannot take `size` bytes."""
    free = shutil.disk_usage(folder).free + size_of(folder)
    if size > free:
        what = f"the data takes about {size / 1e9:,.2g} GB, and {free / 1e9:,.2g} GB are free"
        raise UserError(what, str(folder.parent), "set `paths.data` to a larger place, or lower `data.scale`")
