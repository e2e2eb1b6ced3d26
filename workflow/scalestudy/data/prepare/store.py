"""Storing what a source provides, and describing it: each function returns the manifest with what it now knows."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import hashlib
import os
import shutil
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from scalestudy.data import draw
from scalestudy.data.catalogue import DatasetSpec
from scalestudy.data.decode import images
from scalestudy.data.index import Index, fingerprint, joined, write_index
from scalestudy.data.manifest import INDEX, LISTED, Cost, Manifest, Payload, Split, SplitInfo, Task
from scalestudy.data.prepare import lmdb_store, parts, shard
from scalestudy.data.prepare.convert import Converted, Unreadable, converted
from scalestudy.data.prepare.parts import Gathered, Job, Part
from scalestudy.data.progress import Progress
from scalestudy.data.scale import chosen, wanted_samples
from scalestudy.data.sources import Arrays, Labels, Live, Pictures
from scalestudy.errors import UserError
from scalestudy.files import canonical_json, sha256_text

PARTS, PLAN, LISTING = "parts", "plan", "listing"
"""Below a bulk that is being made: what is known of whole parts, of what they are parts, and of the source's folders."""
PER_FOLDER = shard.PER_FOLDER
SAMPLED = 64
"""Pictures by which mean sizes are estimated."""
SPLITS: tuple[Split, Split] = ("train", "test")
PIXEL_PICTURES_AHEAD = 32
"""Pictures of pixels converted ahead of the one that is written, per core."""


def is_whole(bulk: Path, manifest: Manifest) -> bool:
    """Whether all files of a stored bulk are there, by their number or their bytes."""
    if manifest.format in ("shards", "database"):
        return _size(bulk) == manifest.cost.bytes_out
    files = manifest.train.samples + manifest.test.samples + 1 if manifest.format == "files" else 4
    record = 1
    return sum(len(names) for _, _, names in os.walk(bulk)) == files + record


def live(manifest: Manifest, scale: float | str, source: Live) -> Manifest:
    """Nothing is stored; `data.scale` says how many samples there are."""
    counts = dict(source.samples)
    counts["train"] = wanted_samples(scale, counts["train"], source.sample_bytes)
    infos: dict[str, Any] = {split: SplitInfo(count, count * source.sample_bytes) for split, count in counts.items()}
    recipe = sha256_text(f"{manifest.id} {canonical_json(manifest.spec)}")
    return dataclasses.replace(manifest, **infos, **_pixels(source.shape), task=source.task, fingerprint=recipe)


def _pixels(shape: tuple[int, ...]) -> dict[str, Any]:
    """Channels, height and width of samples [C, H, W]; other shapes have no height and width."""
    height, width = shape[1:] if len(shape) == 3 else (None, None)
    return {"channels": shape[0] if shape else 1, "height": height, "width": width}


def arrays(manifest: Manifest, scale: float | str, source: Arrays, folder: Path) -> Manifest:
    """<split>.npy uint8 [samples, C, H, W] and <split>_labels.npy int64 [samples]."""
    digest = hashlib.sha256()
    infos: dict[str, Any] = {}
    for split in SPLITS:
        x, y = source.splits[split]
        count = wanted_samples(scale, len(x), x[0].nbytes) if split == "train" else len(x)
        _needs_room(folder, count * x[0].nbytes)
        order = chosen(y, count)
        stored = np.lib.format.open_memmap(folder / f"{split}.npy", "w+", np.uint8, (count, *x.shape[1:]))
        for begin in range(0, count, 1 << 16):
            block = x[order[begin : begin + (1 << 16)]]
            stored[begin : begin + len(block)] = block
            digest.update(block.tobytes())
        stored.flush()
        np.save(folder / f"{split}_labels.npy", y[order])
        digest.update(y[order].tobytes())
        infos[split] = SplitInfo(count, stored.nbytes)
    cost = Cost(bytes_in=sum(x.nbytes for x, _ in source.splits.values()), bytes_out=_size(folder))
    return dataclasses.replace(
        manifest, **infos, **_pixels(stored.shape[1:]), task=_task(y), fingerprint=digest.hexdigest(), cost=cost
    )


@dataclass(frozen=True)
class Selection:
    """Which of a source's pictures one split consists of, in the order in which they are stored."""

    order: NDArray[np.int64]
    labels: Labels
    sizes: NDArray[np.int64]
    """[samples] bytes of each as stored, as far as they are known beforehand: else all the mean."""


def _selected(spec: DatasetSpec, source: Pictures) -> dict[Split, Selection]:
    """As many training pictures as `data.scale` asks for, beyond those that are there more or the same; all others."""
    known = spec.preprocess == "none" and all(len(index.bytes) for index in source.indexes.values())
    mean = _mean_bytes(spec, source)
    there = source.indexes["train"].labels
    count = wanted_samples(spec.scale, len(there), mean)
    endless = source.endless
    orders = {
        "train": np.arange(count) if endless else chosen(there, count),
        "test": np.arange(len(source.indexes["test"])),
    }
    found: dict[Split, Selection] = {}
    for split in SPLITS:
        order = orders[split]
        if spec.shard.format != "files":
            # Shuffled when written, or reading in sequence would show one class after the other.
            order = order[draw.permutation(len(order), draw.SHARD, split == "test")]
        labels = order % source.classes if endless and split == "train" else source.indexes[split].labels[order]
        sizes = source.indexes[split].bytes[order] if known else np.full(len(order), max(1, round(mean)))
        found[split] = Selection(order, labels, sizes)
    return found


def _mean_bytes(spec: DatasetSpec, source: Pictures) -> float:
    """Mean size of a training picture as it will be stored; of those that can be read."""
    index = source.indexes["train"]
    if spec.preprocess == "raw":
        return float(3 * spec.resize**2)
    if spec.preprocess == "none" and len(index.bytes):
        return float(index.bytes.mean())
    sizes = []
    for number in _spread(len(index)):
        with contextlib.suppress(Unreadable):
            sizes.append(len(converted(spec, source, "train", number).data))
    return float(np.mean(sizes)) if sizes else 1.0


def _spread(count: int) -> list[int]:
    """At most SAMPLED numbers below `count`, evenly spread."""
    return sorted({number * count // SAMPLED for number in range(SAMPLED)})


def may_stay(spec: DatasetSpec, source: Pictures) -> bool:
    """Whether the pictures can be used where they lie: nothing is to change, and none is needed twice."""
    if source.root is None or spec.preprocess != "none" or spec.shard.format != "files":
        return False
    there = len(source.indexes["train"])
    return wanted_samples(spec.scale, there, _mean_bytes(spec, source)) <= there


def in_place(manifest: Manifest, spec: DatasetSpec, source: Pictures, beside: Path, work: Path) -> Manifest:
    """Only an index is written, into the folder `beside`; with `on_error: skip` all pictures are looked at."""
    assert source.root is not None
    indexes, left_out, bytes_in = {}, [], 0
    selected = _selected(spec, source)
    for split, selection in selected.items():
        indexes[split] = source.indexes[split].taken(selection.order)
        if spec.on_error == "skip":
            found = _looked_at(spec, source, split, selection, work)
            kept = joined([part.index for part in found])
            left_out += [name for part in found for name in part.left_out]
            bytes_in += sum(part.bytes_in for part in found)
            # What was looked at carries the planned number of each picture where others carry its place.
            readable = indexes[split].taken(kept.start)
            indexes[split] = dataclasses.replace(readable, width=kept.width, height=kept.height)
    write_index(beside / INDEX, indexes)
    manifest = dataclasses.replace(
        manifest,
        format="shards" if source.containers else "files",
        bulk=str(source.root),
        containers={str(split): names for split, names in source.containers.items()},
        cost=Cost(bytes_in=bytes_in),
    )
    return _described(manifest, spec, source, selected, indexes, left_out)


def _looked_at(spec: DatasetSpec, source: Pictures, split: Split, selection: Selection, work: Path) -> list[Part]:
    """Parts whose index says which pictures can be decoded: `start` is their planned number."""
    nothing = np.zeros(0, np.int64)

    def look(job: Job) -> Part:
        gathered = Gathered(lambda n: converted(spec, source, split, int(selection.order[n])), skip=True)
        for _ in gathered.samples(job.begin, job.end):
            pass
        kept = np.array(gathered.kept, np.int64)
        blank = Index(
            np.zeros(0, np.uint8), nothing, kept, nothing, np.zeros(0, np.uint32), start=kept, **gathered.sides()
        )
        return Part(blank, gathered.bytes_in, gathered.left_out)

    folder = _planned(work, spec, source, {split: selection}, split)
    with _progress(f"looking at {split}", len(selection.order)) as progress:
        jobs = list(shard.file_jobs(split, len(selection.order)))
        return parts.done(folder, jobs, look, lambda part: True, progress)


def pictures(manifest: Manifest, spec: DatasetSpec, source: Pictures, folder: Path) -> Manifest:
    """One file per picture, shards, or a database, and an index; for `preprocess: raw` and `files` arrays of pixels."""
    selected = _selected(spec, source)
    _needs_room(folder, sum(int(selection.sizes.sum()) for selection in selected.values()))
    records = _planned(folder, spec, source, selected, "")
    made: dict[Split, list[Part]] = {}
    for split, selection in selected.items():
        with _progress(f"preparing {split}", len(selection.order)) as progress:
            made[split] = _written(spec, source, split, selection, folder, records, progress)
    indexes = {split: joined([part.index for part in found]) for split, found in made.items()}
    payload: Payload = "pixels" if spec.preprocess == "raw" else "coded"
    form: Any = {"files": "raw" if payload == "pixels" else "files", "lmdb": "database"}
    manifest = dataclasses.replace(manifest, format=form.get(spec.shard.format, "shards"), payload=payload)
    shards = {}
    if manifest.format == "shards":
        shards = {split: shard.write_list(folder, split, made[split], payload == "pixels") for split in SPLITS}
    if manifest.format != "raw":
        write_index(folder / INDEX, indexes)
    shutil.rmtree(records)
    shutil.rmtree(folder / LISTING, ignore_errors=True)
    (folder / PLAN).unlink()
    everything = [part for found in made.values() for part in found]
    out = sum(int(index.bytes.sum()) for index in indexes.values()) if manifest.format == "files" else _size(folder)
    cost = Cost(bytes_in=sum(part.bytes_in for part in everything), bytes_out=out)
    left_out = [name for part in everything for name in part.left_out]
    return _described(dataclasses.replace(manifest, cost=cost), spec, source, selected, indexes, left_out, shards)


def _written(
    spec: DatasetSpec, source: Pictures, split: Split, selection: Selection, folder: Path, records: Path,
    progress: Progress,
) -> list[Part]:  # fmt: skip
    """Convert and write one split in the form that the spec asks for."""
    labels, pixels, form = selection.labels, spec.preprocess == "raw", spec.shard.format

    def convert(number: int) -> Converted:
        return converted(spec, source, split, int(selection.order[number]))

    def gather() -> Gathered:
        return Gathered(convert, spec.on_error == "skip")

    if form == "lmdb":
        return lmdb_store.write_database(folder, records, split, labels, convert, gather, progress)
    if form == "files":
        if pixels:
            return [_write_array(folder, split, spec.resize, labels, convert, gather, progress)]
        write: Callable[[Job], Part] = functools.partial(shard.write_files, folder, labels=labels, gather=gather)
        jobs = list(shard.file_jobs(split, len(labels)))
        return parts.done(records, jobs, write, shard.files_there(folder), progress)
    sizes = selection.sizes if pixels else shard.tar_sizes(selection.sizes, labels)
    edges = shard.bounds(sizes, round(spec.shard.mib * 2**20) - (0 if pixels else len(shard.tar.END)))
    write = functools.partial(shard.write_shards, folder, labels=labels, gather=gather, pixels=pixels)
    there = shard.shards_there(folder, split, pixels)
    return parts.done(records, list(shard.shard_jobs(split, edges, sizes)), write, there, progress)


def _write_array(
    folder: Path, split: Split, side: int, labels: Labels, convert: Callable[[int], Converted],
    gather: Callable[[], Gathered], progress: Progress,
) -> Part:  # fmt: skip
    """<split>.npy uint8 [samples, side, side, 3] and <split>_labels.npy."""
    gathered, checks = gather(), []

    def head(count: int) -> dict[str, Any]:
        return {"descr": "|u1", "fortran_order": False, "shape": (count, side, side, 3)}

    with open(folder / f"{split}.npy", "wb") as stream:
        np.lib.format.write_array_header_1_0(stream, head(len(labels)))
        ready = parts.in_order(convert, len(labels), PIXEL_PICTURES_AHEAD * parts.cores())
        for number, made in enumerate(ready):
            if (data := gathered.one(number, made)) is not None:
                stream.write(data)
                checks.append(zlib.crc32(data))
            progress.add(1)
        if len(checks) < len(labels):  # numpy leaves room for a shorter count
            stream.seek(0)
            np.lib.format.write_array_header_1_0(stream, head(len(checks)))
    kept = labels[gathered.kept]
    np.save(folder / f"{split}_labels.npy", kept)
    sizes = np.full(len(checks), 3 * side * side)
    index = Index.of([""] * len(checks), kept, sizes, np.array(checks, np.uint32), **gathered.sides())
    return Part(index, gathered.bytes_in, gathered.left_out)


def _planned(folder: Path, spec: DatasetSpec, source: Pictures, selected: dict[Split, Selection], name: str) -> Path:
    """The folder of records of parts; emptied, with all that was made, where the plan was another one."""
    digest = hashlib.sha256(canonical_json(spec.plain()).encode())
    for split, selection in selected.items():
        index = source.indexes[split]
        for array in (selection.order, selection.labels, selection.sizes, index.names, index.start):
            digest.update(np.ascontiguousarray(array).data)
    plan, kept = digest.hexdigest(), folder / f"{PLAN}{name}"
    if not kept.is_file() or kept.read_text() != plan:
        for left in folder.iterdir() if not name else [folder / f"{PARTS}{name}"]:
            if left.name == LISTING:
                continue
            if left.is_dir():
                shutil.rmtree(left)
            else:
                left.unlink(missing_ok=True)
        (folder / f"{PARTS}{name}").mkdir()
        kept.write_text(plan)
    return folder / f"{PARTS}{name}"


@contextlib.contextmanager
def _progress(what: str, total: int) -> Any:
    progress = Progress(what, total)
    yield progress
    progress.end()


def _described(
    manifest: Manifest, spec: DatasetSpec, source: Pictures, selected: dict[Split, Selection],
    indexes: dict[Split, Index], left_out: list[str], shards: dict[Split, int] | None = None,
) -> Manifest:  # fmt: skip
    """The manifest with what the indexes tell."""
    for split, index in indexes.items():
        if not len(index):
            what = f"none of the pictures of {split} can be read; the first: {left_out[0]}"
            raise UserError(what, str(source.root or manifest.id), "see what became of them")
    _refuse_lost_classes(selected["train"].labels, indexes["train"].labels, source)
    left_out = [*source.left_out, *left_out]
    infos: dict[str, Any] = {}
    for split, index in indexes.items():
        count = (shards or {}).get(split, len(manifest.containers.get(split, [])))
        infos[split] = SplitInfo(len(index), int(index.bytes.sum()), count)
    width, height = _mean_sides(manifest, spec, source, indexes["train"])
    return dataclasses.replace(
        manifest,
        **infos,
        task=_task(indexes["train"].labels),
        channels=3,
        index="" if manifest.format == "raw" else INDEX,
        fingerprint=fingerprint(indexes),
        width=width,
        height=height,
        left_out=len(left_out),
        left_out_list=left_out[:LISTED],
    )


def _refuse_lost_classes(chosen: Labels, kept: Labels, source: Pictures) -> None:
    """UserError where a class has lost all its training pictures: the model would have an output that nothing trains."""
    lost = np.setdiff1d(chosen, kept) if chosen.ndim == 1 else np.zeros(0, np.int64)
    if len(lost):
        index = source.indexes["train"]
        first = source.name("train", int(np.flatnonzero(index.labels == lost[0])[0]))
        more = f" (and of {len(lost) - 1:,} more classes)" if len(lost) > 1 else ""
        what = f"none of the training pictures of its class can be read{more}"
        raise UserError(what, first, "mend them, or remove the folder of the class")


def _task(labels: Labels) -> Task:
    return "multilabel" if labels.ndim == 2 else "classification"


def _mean_sides(
    manifest: Manifest, spec: DatasetSpec, source: Pictures, index: Index
) -> tuple[float | None, float | None]:
    """Mean width and height of training pictures; of those used where they lie, from a sample of them."""
    if len(index.width):
        return float(index.width.mean()), float(index.height.mean())
    shapes = []
    there = dataclasses.replace(source, indexes={"train": index})
    for sample in _spread(len(index)):
        # A damaged picture is an error where it is read for training, with its number; not here.
        with contextlib.suppress(*images.UNREADABLE):
            shapes.append(images.header(there.read("train", sample)))
    height, width = np.mean(shapes, axis=0).tolist() if shapes else (None, None)
    return width, height


def _size(folder: Path) -> int:
    """Bytes of all files below a folder, but for the manifest's copy and what readers of a database leave."""
    found = (Path(place) / name for place, _, names in os.walk(folder) for name in names)
    return sum(file.stat().st_size for file in found if file.name not in ("manifest.json", "lock.mdb"))


def _needs_room(folder: Path, size: int) -> None:
    free = shutil.disk_usage(folder).free + _size(folder)
    if size > free:
        what = f"the data takes about {size / 1e9:.1f} GB, and {free / 1e9:.1f} GB are free"
        raise UserError(
            what, str(folder.parent), "let `paths.data` of the configuration name a larger place, or lower `data.scale`"
        )
