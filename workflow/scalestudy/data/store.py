"""Storing what a source provides, and describing it: each function returns the manifest with what it now knows."""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import os
import shutil
import zlib
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray

from scalestudy.data import images
from scalestudy.data.catalogue import DatasetSpec
from scalestudy.data.index import Index, fingerprint, write_index
from scalestudy.data.manifest import Manifest, Split, SplitInfo
from scalestudy.data.scale import chosen, wanted_samples
from scalestudy.data.sources import Arrays, Labels, Live, Pictures
from scalestudy.errors import UserError
from scalestudy.files import canonical_json, sha256_text

INDEX = "index.npz"
PER_FOLDER = 1000
"""Files in one folder at most."""
SAMPLED = 64
"""Pictures by which mean sizes are estimated."""
SPLITS: tuple[Split, Split] = ("train", "test")
UNREADABLE = (OSError, ValueError, SyntaxError)
"""What decoders raise; pillow has SyntaxError for broken PNG."""
T = TypeVar("T")


def file_count(manifest: Manifest) -> int:
    """Files of a stored bulk: pictures and their index, or arrays and labels of two splits."""
    return manifest.train.samples + manifest.test.samples + 1 if manifest.format == "files" else 4


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
    return dataclasses.replace(manifest, **infos, **_pixels(stored.shape[1:]), fingerprint=digest.hexdigest())


@dataclass(frozen=True)
class Selection:
    """Which of a source's pictures one split consists of."""

    order: NDArray[np.int64]
    labels: Labels


def _selected(source: Pictures, count: int) -> dict[Split, Selection]:
    """`count` pictures for training: beyond those that are there, more, or the same again; and all held-out ones."""
    there = source.labels["train"]
    test = Selection(np.arange(len(source.labels["test"])), source.labels["test"])
    if source.endless:
        return {"train": Selection(np.arange(count), np.arange(count) % source.classes), "test": test}
    order = chosen(there, count)
    return {"train": Selection(order, there[order]), "test": test}


def _train_count(spec: DatasetSpec, source: Pictures) -> int:
    """How many training pictures `data.scale` asks for."""
    mean = _mean_bytes(spec, source) if isinstance(spec.scale, str) else 0.0
    return wanted_samples(spec.scale, len(source.labels["train"]), mean)


def _mean_bytes(spec: DatasetSpec, source: Pictures) -> float:
    """Mean size of a training picture as it will be stored."""
    if spec.preprocess == "none" and source.sizes:
        return float(source.sizes["train"].mean())
    numbers = _spread(len(source.labels["train"]))
    return float(np.mean([len(_converted(spec, source, "train", number)) for number in numbers]))


def _spread(count: int) -> list[int]:
    """At most SAMPLED numbers below `count`, evenly spread."""
    return sorted({number * count // SAMPLED for number in range(SAMPLED)})


def may_stay(spec: DatasetSpec, source: Pictures) -> bool:
    """Whether the pictures are files that can be used where they lie."""
    if source.root is None or spec.preprocess != "none":
        return False
    return _train_count(spec, source) <= len(source.labels["train"])


def in_place(manifest: Manifest, spec: DatasetSpec, source: Pictures, beside: Path) -> Manifest:
    """Only an index is written, into the folder `beside`."""
    assert source.root is not None
    indexes: dict[Split, Index] = {}
    for split, selection in _selected(source, _train_count(spec, source)).items():
        paths = [source.paths[split][sample] for sample in selection.order]
        sizes = source.sizes[split][selection.order]
        indexes[split] = Index.of(paths, selection.labels, sizes, np.zeros(0, np.uint32))
    write_index(beside / INDEX, indexes)
    return _of_files(dataclasses.replace(manifest, bulk=str(source.root)), indexes, source.root)


def pictures(manifest: Manifest, spec: DatasetSpec, source: Pictures, folder: Path) -> Manifest:
    """One file per picture and an index, or for `preprocess: raw` arrays as of tensors: uint8 [samples, H, W, 3]."""
    count = _train_count(spec, source)
    _needs_room(folder, (count + len(source.labels["test"])) * len(_converted(spec, source, "train", 0)))
    indexes: dict[Split, Index] = {}
    for split, selection in _selected(source, count).items():

        def made(number: int, split: Split = split, selection: Selection = selection) -> bytes:
            return _converted(spec, source, split, int(selection.order[number]))

        write = _write_raw if spec.preprocess == "raw" else _write_files
        indexes[split] = write(folder, split, selection.labels, made)
    if spec.preprocess != "raw":
        write_index(folder / INDEX, indexes)
        return _of_files(manifest, indexes, folder)
    side = images.STORED_SIDE
    return dataclasses.replace(_counted(manifest, indexes), format="raw", height=side, width=side)


def _converted(spec: DatasetSpec, source: Pictures, split: Split, number: int) -> bytes:
    """A picture as it will be stored: as it is, as smaller JPEG, or as pixels."""
    data = source.read(split, number)
    if spec.preprocess == "none":
        return data
    try:
        image = images.stored_form(images.decode(data), crop=spec.preprocess == "raw")
    except UNREADABLE as error:
        path = str(source.root / source.paths[split][number]) if source.root else f"{split} {number}"
        raise UserError(f"cannot be read as a picture: {error}", path, "replace or remove it") from None
    return image.tobytes() if spec.preprocess == "raw" else images.encode(image, images.STORED_QUALITY)


def _write_files(folder: Path, split: Split, labels: Labels, made: Callable[[int], bytes]) -> Index:
    for number in range(0, len(labels), PER_FOLDER):
        (folder / split / f"{number // PER_FOLDER:06d}").mkdir(parents=True)

    def stored(number: int) -> tuple[str, int, int]:
        data = made(number)
        suffix = "jpg" if data[:2] == b"\xff\xd8" else "png"
        path = f"{split}/{number // PER_FOLDER:06d}/{number:09d}.{suffix}"
        (folder / path).write_bytes(data)
        return path, len(data), zlib.crc32(data)

    paths, sizes, checks = zip(*_in_threads(stored, len(labels)), strict=True)
    return Index.of(paths, labels, np.array(sizes, np.int64), np.array(checks, np.uint32))


def _write_raw(folder: Path, split: Split, labels: Labels, made: Callable[[int], bytes]) -> Index:
    shape = (len(labels), images.STORED_SIDE, images.STORED_SIDE, 3)
    pixels = np.lib.format.open_memmap(folder / f"{split}.npy", "w+", np.uint8, shape)

    def stored(number: int) -> int:
        data = made(number)
        pixels[number] = np.frombuffer(data, np.uint8).reshape(shape[1:])
        return zlib.crc32(data)

    checks = np.array(_in_threads(stored, len(labels)), np.uint32)
    pixels.flush()
    np.save(folder / f"{split}_labels.npy", labels)
    return Index.of([""] * len(labels), labels, np.full(len(labels), pixels[0].nbytes), checks)


def _in_threads(function: Callable[[int], T], count: int) -> Sequence[T]:
    """`function` of all numbers below `count`, by as many threads as cores; the first error ends all."""
    cores = len(os.sched_getaffinity(0))
    torch.set_num_threads(torch.get_num_threads())  # pins the caller's before the threads choose 1
    pool = ThreadPoolExecutor(cores, initializer=torch.set_num_threads, initargs=(1,))
    try:
        results: list[T] = []
        for begin in range(0, count, PER_FOLDER):  # piece by piece: a million waiting tasks take a gigabyte
            results += pool.map(function, range(begin, min(begin + PER_FOLDER, count)))
        return results
    finally:
        pool.shutdown(cancel_futures=True)


def _of_files(manifest: Manifest, indexes: dict[Split, Index], folder: Path) -> Manifest:
    shapes = []
    for sample in _spread(len(indexes["train"])):
        # A damaged picture is an error where it is read for training, with its number; not here.
        with contextlib.suppress(*UNREADABLE):
            shapes.append(images.header((folder / indexes["train"].path(sample)).read_bytes()))
    height, width = np.mean(shapes, axis=0).tolist() if shapes else (None, None)
    return dataclasses.replace(_counted(manifest, indexes), format="files", index=INDEX, height=height, width=width)


def _counted(manifest: Manifest, indexes: dict[Split, Index]) -> Manifest:
    infos: dict[str, Any] = {split: SplitInfo(len(index), int(index.bytes.sum())) for split, index in indexes.items()}
    return dataclasses.replace(manifest, **infos, channels=3, fingerprint=fingerprint(indexes))


def _needs_room(folder: Path, size: int) -> None:
    free = shutil.disk_usage(folder).free
    if size > free:
        what = f"the data takes about {size / 1e9:.1f} GB, and {free / 1e9:.1f} GB are free"
        raise UserError(
            what, str(folder.parent), "let `paths.data` of the configuration name a larger place, or lower `data.scale`"
        )
