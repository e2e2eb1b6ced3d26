"""Storing what a source provides: arrays, a file per image, tar shards as WebDataset reads them, pixels, or databases;
of images that are used where they lie, only an index.

A tar shard holds `000000012.jpg` and `000000012.cls` (the class as text; `.json`, a list, for many labels) for each
sample, in the order of the index. A raw shard holds pixels, uint8 height x width x 3, one image after the other.
"""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import functools
import hashlib
import json
import math
import shutil
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import lmdb
import numpy as np
import xxhash
from numpy.typing import NDArray

from scalestudy.data import tar
from scalestudy.data.catalogue import FORMAT_OF_SHARD, DatasetSpec
from scalestudy.data.decode import images
from scalestudy.data.index import joined, write_index
from scalestudy.data.manifest import INDEX, SPLITS, Manifest, Split, SplitInfo, database_key, shard_name
from scalestudy.data.prepare.describe import describe_pictures, shape_of, task_of
from scalestudy.data.prepare.parts import IMAGES_PER_PART, Job, Kept, Part, begin_work, end_work, stored
from scalestudy.data.prepare.select import Converted, Selection, converted, evenly_spread, plan_of, selected
from scalestudy.data.scale import chosen, wanted_samples
from scalestudy.data.sources import Arrays, EncodedImages
from scalestudy.data.verify import size_of
from scalestudy.errors import UserError
from scalestudy.files import atomic_path, sha256_text, write_json

BLOCK_SAMPLES = 1 << 16
"""Samples of arrays copied at once."""
MAX_FILES_PER_FOLDER = 1000
"""Most files in one folder."""
FIRST_MAP_BYTES = 1 << 26


def write_arrays(manifest: Manifest, scale: float | str, source: Arrays, folder: Path) -> Manifest:
    """<split>.npy uint8 [samples, C, H, W] and <split>_labels.npy int64 [samples]; UserError where there is no room."""
    digest = hashlib.sha256()
    infos: dict[str, Any] = {}
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()

    def hashed(block: bytes) -> bytes:
        digest.update(block)
        return block

    for split in SPLITS:
        x, y = source.splits[split]
        count = wanted_samples(scale, len(x), x[0].nbytes) if split == "train" else len(x)
        _require_room(folder, count * x[0].nbytes)
        order = chosen(y, count)
        for name, array in ((f"{split}.npy", x), (f"{split}_labels.npy", y)):
            parts = (order[begin : begin + BLOCK_SAMPLES] for begin in range(0, count, BLOCK_SAMPLES))
            _write_array(folder / name, array, count, (hashed(array[part].tobytes()) for part in parts))
        infos[split] = SplitInfo(count, count * x[0].nbytes)
    more = {**infos, **shape_of(x.shape[1:]), "task": task_of(y), "fingerprint": digest.hexdigest()}
    return dataclasses.replace(manifest, **more, bulk_bytes=size_of(folder))


def _write_array(path: Path, like: NDArray[Any], rows: int, blocks: Iterable[bytes]) -> int:
    """A .npy file of at most so many rows, each as those of `like`; returns how many there are.

    As bytes: where a disk or a quota is full, a mapped array ends the process without a message (SIGBUS), and numpy.save
    raises an error without a cause.
    """
    with open(path, "wb") as stream:

        def head(rows: int) -> None:
            facts = {"descr": like.dtype.str, "fortran_order": False, "shape": (rows, *like.shape[1:])}
            np.lib.format.write_array_header_1_0(stream, facts)

        head(rows)
        written = sum(map(stream.write, blocks)) // (like.itemsize * math.prod(like.shape[1:]))
        stream.seek(0)  # numpy leaves room for a shorter count
        head(written)
    return written


def index_in_place(manifest: Manifest, spec: DatasetSpec, source: EncodedImages, folder: Path, work: Path) -> Manifest:
    """Write the index into `folder`; with `on_error: skip`, decode every image first. Records lie in `work`."""
    left_out = []
    selection = selected(spec, source)
    indexes = {split: source.indexes[split].taken(pictures.order) for split, pictures in selection.items()}
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


def write_pictures(manifest: Manifest, spec: DatasetSpec, source: EncodedImages, folder: Path) -> Manifest:
    """Images in the form that the spec requests, and their index; UserError where there is no room."""
    selection = selected(spec, source)
    _require_room(folder, sum(int(pictures.sizes.sum()) for pictures in selection.values()))
    records = begin_work(folder, plan_of(spec, source, selection))
    parts = {
        split: _Split(spec, source, split, pictures, folder).written(records) for split, pictures in selection.items()
    }
    indexes = {split: joined([part.index for part in split_parts]) for split, split_parts in parts.items()}
    pixels = spec.preprocess == "raw"
    form: Any = "raw" if pixels and spec.shard.format == "files" else FORMAT_OF_SHARD[spec.shard.format]
    shards = {split: len(parts[split]) if form == "shards" else 0 for split in SPLITS}
    for split in SPLITS if form == "shards" else ():
        _write_list(folder, split, parts[split], pixels)
    if form != "raw":
        write_index(folder / INDEX, indexes)
    end_work(folder)
    out = sum(int(index.bytes.sum()) for index in indexes.values()) if form == "files" else size_of(folder)
    more: dict[str, Any] = {"format": form, "payload": "pixels" if pixels else "coded"}
    more |= dict.fromkeys(("height", "width"), float(spec.resize)) if pixels else {}
    manifest = dataclasses.replace(manifest, **more, bulk_bytes=out)
    left_out = [name for split_parts in parts.values() for part in split_parts for name in part.left_out]
    return describe_pictures(manifest, source, selection, indexes, left_out, shards)


def _require_room(folder: Path, size: int) -> None:
    """UserError where `folder`, with what it already holds, cannot take `size` bytes."""
    free = shutil.disk_usage(folder.parent).free + size_of(folder)
    if size > free:
        what = f"the data takes about {size / 1e9:,.2g} GB, and {free / 1e9:,.2g} GB are free"
        raise UserError(what, str(folder.parent), "set `paths.data` to a larger place, or lower `data.scale`")


class _Split:
    """One split on its way into a form of storage."""

    def __init__(
        self, spec: DatasetSpec, source: EncodedImages, split: Split, selection: Selection, folder: Path
    ) -> None:
        self.spec, self.source, self.split, self.selection, self.folder = spec, source, split, selection, folder
        self.labels, self.pixels = selection.labels, spec.preprocess == "raw"

    def written(self, records: Path) -> list[Part]:
        """The parts of the split, written."""
        form, count = self.spec.shard.format, len(self.labels)
        as_files = form == "files" and not self.pixels
        convert = self._as_file if as_files else self._converted
        job = Job("preparing", self.split, self.labels, convert, self.spec.on_error == "skip", records)
        runs = np.append(np.arange(0, count, IMAGES_PER_PART), count)
        if as_files:
            return stored(job, runs, lambda _, kept: {"paths": [self._path(n, data) for n, data in kept]})
        if form == "files":
            parts = stored(job, np.array([0, count]), self._array)
            labels = parts[0].index.labels
            _write_array(self.folder / f"{self.split}_labels.npy", labels, len(labels), [labels.tobytes()])
            return parts
        if form == "lmdb":
            with _database(self.folder / f"{self.split}.lmdb") as environment:
                return stored(job, runs, lambda parts, kept: _put(environment, parts, kept))
        return stored(job, shard_edges(self.spec, self.selection), self._shard)

    def _converted(self, number: int) -> Converted:
        return converted(self.spec, self.source, self.split, int(self.selection.order[number]))

    def _path(self, number: int, data: bytes) -> str:
        return f"{self.split}/{number // MAX_FILES_PER_FOLDER:06d}/{number:09d}.{_suffix(data)}"

    def _as_file(self, number: int) -> Converted:
        """Convert and write: on a network file system, making files takes longest."""
        image = self._converted(number)
        path = self.folder / self._path(number, image.data)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(image.data)
        return image

    def _array(self, _parts: list[Part], kept: Kept) -> dict[str, Any]:
        """<split>.npy uint8 [samples, side, side, 3]."""
        like = np.zeros((1, self.spec.resize, self.spec.resize, 3), np.uint8)
        rows = _write_array(self.folder / f"{self.split}.npy", like, len(self.labels), (data for _, data in kept))
        return {"paths": [""] * rows}

    def _shard(self, parts: list[Part], kept: Kept) -> dict[str, Any]:
        """The next shard."""
        number, starts, digest = len(parts), [], xxhash.xxh3_64()
        path = self.folder / shard_name(self.split, number, "pixels" if self.pixels else "coded")
        with atomic_path(path) as temporary, open(temporary, "wb") as stream:

            def put(data: bytes) -> None:
                stream.write(data)
                digest.update(data)

            for sample, data in kept:
                if not self.pixels:
                    put(tar.header(f"{sample:09d}.{_suffix(data)}", len(data)))
                starts.append(stream.tell())
                put(data)
                if not self.pixels:
                    kind, text = _label(self.labels[sample])
                    put(bytes(tar.padded(len(data)) - len(data)) + tar.member(f"{sample:09d}.{kind}", text))
            if not self.pixels:
                put(tar.END)
            size = stream.tell()
        shards = np.full(len(starts), number, np.int32)
        return {"written": (size, digest.intdigest()), "shard": shards, "start": np.array(starts, np.int64)}


def shard_edges(spec: DatasetSpec, selection: Selection) -> NDArray[np.int64]:
    """[shards + 1] where each shard begins, so that none is larger than `shard.mib`, unless a single sample is."""
    limit, sizes = round(spec.shard.mib * 2**20), selection.sizes
    if spec.preprocess != "raw":
        # An image and its label, each with header and padding.
        label_bytes = tar.padded(len(_label(selection.labels[0])[1]))
        sizes = 2 * tar.BLOCK + -(-sizes // tar.BLOCK) * tar.BLOCK + label_bytes
        limit -= len(tar.END)
    return bounds(sizes, limit)


def bounds(sizes: NDArray[np.int64], limit: int) -> NDArray[np.int64]:
    """[parts + 1] where each part begins, so that none is larger than `limit`, unless a single sample is."""
    ends = np.cumsum(sizes)
    starts, position, before = [0], 0, 0
    while position < len(sizes):
        position = max(position + 1, int(np.searchsorted(ends, before + limit, side="right")))
        before = int(ends[position - 1])
        starts.append(position)
    return np.array(starts, np.int64)


def _suffix(data: bytes) -> str:
    """Ending of the name of a file of these bytes, without a dot."""
    return "png" if data.startswith(images.KINDS["PNG"]) else "jpg"


def _label(label: Any) -> tuple[str, bytes]:
    """Suffix and text of a label, as WebDataset decodes them."""
    if np.ndim(label) == 0:
        return "cls", b"%d" % label
    return "json", json.dumps([int(mark) for mark in label], separators=(",", ":")).encode()


def _write_list(folder: Path, split: Split, parts: list[Part], pixels: bool) -> None:
    """`<split>.json`: each shard with its bytes and checksum."""
    shards = []
    for number, (size, digest) in enumerate(part.written for part in parts):
        name = shard_name(split, number, "pixels" if pixels else "coded")
        shards.append({"name": name, "bytes": size, "xxh3_64": f"{digest:016x}"})
    write_json(folder / f"{split}.json", {"shards": shards})


@contextlib.contextmanager
def _database(place: Path) -> Iterator[lmdb.Environment]:
    """The LMDB environment of a split, for this one writer; OSError in this block where its disk is full."""
    place.mkdir(exist_ok=True)
    # No other process uses the folder while it is made, so LMDB's own lock file is not needed.
    environment = lmdb.open(str(place), map_size=FIRST_MAP_BYTES, lock=False)
    try:
        yield environment
    except lmdb.Error as error:
        # LMDB hides which error of the system it was: where a disk or a quota is full, the next write tells.
        with tempfile.TemporaryFile(dir=place) as more:
            more.write(bytes(1 << 20))
        raise OSError(errno.EIO, str(error), str(place)) from None
    finally:
        environment.close()


def _put(environment: lmdb.Environment, parts: list[Part], kept: Kept) -> dict[str, Any]:
    """One synced transaction; the map grows as needed. Sample i of the index has the key `database_key(i)`."""
    first = sum(len(part.index) for part in parts)
    values = [data for _, data in kept]
    while True:
        try:
            with environment.begin(write=True) as transaction:
                for number, value in enumerate(values, first):
                    key = database_key(number)
                    # A transaction that a kill left without a record is there already.
                    _ = transaction.put(key, value, append=True) or transaction.put(key, value)
            return {}
        except lmdb.MapFullError:
            environment.set_mapsize(2 * environment.info()["map_size"])
