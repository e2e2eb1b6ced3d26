"""Writing images: a file each, ustar shards as WebDataset reads them, shards of pixels, or one array of pixels.

A tar shard holds `000000012.jpg` and `000000012.cls` (the class as text; `.json`, a list, for many labels) for each
sample, in the order of the index. A raw shard holds pixels, uint8 height x width x 3, one image after the other.
"""

from __future__ import annotations

import dataclasses
import json
import os
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import xxhash
from numpy.typing import NDArray

from scalestudy.data import tar
from scalestudy.data.decode import images
from scalestudy.data.index import Labels
from scalestudy.data.manifest import Split, shard_name
from scalestudy.data.prepare import parts
from scalestudy.data.prepare.convert import Converted
from scalestudy.data.prepare.parts import Gathered, PartJob, PreparedPart
from scalestudy.data.progress import Progress
from scalestudy.files import naming, write_json
from scalestudy.limits import usable_cores

PER_FOLDER = 1000
"""Most files in one folder."""
FILES_PER_PART = 250
"""Most files that are written again after a kill, per thread."""
PART_BYTES = 1 << 20
"""Shards smaller than half of it are made and recorded together; those smaller than it are synced together."""
AHEAD = 32
"""Images converted ahead of the one that is written, per core."""
Gather = Callable[[], Gathered]


def bounds(sizes: NDArray[np.int64], limit: int) -> NDArray[np.int64]:
    """[shards + 1] where each shard begins, so that none is larger than `limit`, unless a single sample is."""
    ends = np.cumsum(sizes)
    found, position, before = [0], 0, 0
    while position < len(sizes):
        position = max(position + 1, int(np.searchsorted(ends, before + limit, side="right")))
        before = int(ends[position - 1])
        found.append(position)
    return np.array(found, np.int64)


def file_jobs(split: Split, samples: int) -> Iterator[PartJob]:
    """Parts of a split whose samples are a file each."""
    for number, begin in enumerate(range(0, samples, FILES_PER_PART)):
        yield PartJob(split, number, begin, min(begin + FILES_PER_PART, samples))


def shard_jobs(split: Split, edges: NDArray[np.int64], sizes: NDArray[np.int64]) -> Iterator[PartJob]:
    """Parts of a split in shards: a shard each, or several small ones."""
    shards: list[tuple[int, int, int]] = []
    gathered = number = 0
    for shard, (begin, end) in enumerate(zip(edges[:-1].tolist(), edges[1:].tolist(), strict=True)):
        shards.append((shard, begin, end))
        gathered += int(sizes[begin:end].sum())
        if gathered >= PART_BYTES // 2 or end == edges[-1]:
            yield PartJob(split, number, shards[0][1], end, tuple(shards))
            shards, gathered, number = [], 0, number + 1


def tar_sizes(payloads: NDArray[np.int64], labels: Labels) -> NDArray[np.int64]:
    """[samples] bytes that a sample takes in a tar: its image and its label, each with header and padding."""
    label_bytes = tar.padded(max((len(_label(labels[n])[1]) for n in range(min(1, len(labels)))), default=1))
    return 2 * tar.BLOCK + -(-payloads // tar.BLOCK) * tar.BLOCK + label_bytes


def write_files(folder: Path, job: PartJob, labels: Labels, gather: Gather) -> PreparedPart:
    """`<split>/000012/000012345.jpg` for each sample, numbered as planned."""
    gathered, paths, sizes, checks = gather(), [], [], []
    for number, data in gathered.samples(job.begin, job.end):
        place = f"{job.split}/{number // PER_FOLDER:06d}"
        (folder / place).mkdir(parents=True, exist_ok=True)
        paths.append(f"{place}/{number:09d}.{images.suffix(data)}")
        (folder / paths[-1]).write_bytes(data)
        sizes.append(len(data))
        checks.append(zlib.crc32(data))
    return gathered.part(labels, sizes, checks, paths)


def write_array(
    folder: Path, split: Split, side: int, labels: Labels, convert: Callable[[int], Converted], gather: Gather,
    progress: Progress,
) -> PreparedPart:  # fmt: skip
    """<split>.npy uint8 [samples, side, side, 3] and <split>_labels.npy."""
    gathered, checks = gather(), []

    def head(count: int) -> dict[str, Any]:
        return {"descr": "|u1", "fortran_order": False, "shape": (count, side, side, 3)}

    with open(folder / f"{split}.npy", "wb") as stream:
        np.lib.format.write_array_header_1_0(stream, head(len(labels)))
        with parts.in_order(convert, len(labels), AHEAD * usable_cores()) as ready:
            for number, made in enumerate(ready):
                if (data := gathered.one(number, made)) is not None:
                    stream.write(data)
                    checks.append(zlib.crc32(data))
                progress.add(1)
        if len(checks) < len(labels):  # numpy leaves room for a shorter count
            stream.seek(0)
            np.lib.format.write_array_header_1_0(stream, head(len(checks)))
    np.save(folder / f"{split}_labels.npy", labels[gathered.kept])
    return gathered.part(labels, [3 * side * side] * len(checks), checks, [""] * len(checks))


def write_shards(folder: Path, job: PartJob, labels: Labels, gather: Gather, pixels: bool) -> PreparedPart:
    """The shards of a part; each gets its name when it is whole and synced."""
    gathered, rows = gather(), []
    samples: list[tuple[int, int, int, int]] = []
    for shard, begin, end in job.shards:
        path = folder / shard_name(job.split, shard, "pixels" if pixels else "coded")
        temporary = path.with_suffix(".part")
        before = len(samples)
        with naming(path), open(temporary, "wb") as stream:
            written = _Shard(stream)
            for number, data in gathered.samples(begin, end):
                start = written.pixels(data) if pixels else written.sample(number, data, labels[number])
                samples.append((shard, start, len(data), zlib.crc32(data)))
            written.end(pixels)
            stream.flush()
            if written.bytes >= PART_BYTES:  # small ones are synced once, at the end
                os.fsync(stream.fileno())
        temporary.replace(path)
        rows.append((shard, len(samples) - before, written.bytes, written.digest.intdigest()))
    numbers, starts, sizes, checks = np.array(samples, np.int64).reshape(-1, 4).T.copy()
    places: dict[str, Any] = {"shard": numbers.astype(np.int32), "start": starts}
    part = gathered.part(labels, sizes.tolist(), checks.tolist(), **places)
    return dataclasses.replace(part, shards=np.array(rows, np.uint64).reshape(-1, 4))


class _Shard:
    """A shard as it is written: its length and checksum so far."""

    def __init__(self, stream: BinaryIO) -> None:
        self._stream, self.bytes, self.digest = stream, 0, xxhash.xxh3_64()

    def _write(self, data: bytes) -> None:
        self._stream.write(data)
        self.digest.update(data)
        self.bytes += len(data)

    def pixels(self, data: bytes) -> int:
        self._write(data)
        return self.bytes - len(data)

    def sample(self, number: int, data: bytes, label: Any) -> int:
        """Where the image begins."""
        self._write(tar.header(f"{number:09d}.{images.suffix(data)}", len(data)))
        start = self.bytes
        self._write(data)
        self._write(bytes(tar.padded(len(data)) - len(data)))
        kind, text = _label(label)
        self._write(tar.member(f"{number:09d}.{kind}", text))
        return start

    def end(self, pixels: bool) -> None:
        if not pixels:
            self._write(tar.END)


def _label(label: Any) -> tuple[str, bytes]:
    """Suffix and text of a label, as WebDataset decodes them."""
    if np.ndim(label) == 0:
        return "cls", b"%d" % label
    return "json", json.dumps([int(mark) for mark in label], separators=(",", ":")).encode()


def write_list(folder: Path, split: Split, parts: list[PreparedPart], pixels: bool) -> int:
    """`<split>.json`: each shard with its samples, bytes and checksum; returns how many there are."""
    rows = np.concatenate([part.shards for part in parts]).tolist()
    shards, first = [], 0
    for number, samples, size, digest in rows:
        name = shard_name(split, number, "pixels" if pixels else "coded")
        shards.append(
            {"name": name, "first_sample": first, "samples": samples, "bytes": size, "xxh3_64": f"{digest:016x}"}
        )
        first += samples
    whole = {"split": split, "samples": first, "bytes": sum(row[2] for row in rows), "shards": shards}
    write_json(folder / f"{split}.json", whole)
    return len(shards)
