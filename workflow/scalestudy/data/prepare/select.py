"""Which of a source's images each split consists of, and each of them as it will be stored."""

from __future__ import annotations

import contextlib
import hashlib
import zlib
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import simplejpeg
from numpy.typing import NDArray

from scalestudy.data import counter_rng
from scalestudy.data.catalogue import DatasetSpec
from scalestudy.data.decode import images
from scalestudy.data.manifest import SPLITS, Split
from scalestudy.data.scale import chosen, wanted_samples
from scalestudy.data.sources import EncodedImages, Labels
from scalestudy.errors import UserError
from scalestudy.files import canonical_json

SAMPLED = 64
"""Images by which mean sizes are estimated."""
KEPT = "what is done is kept"
MAX_SIDE = 65_500
"""Pixels of a stored image: libjpeg's limit (JPEG_MAX_DIMENSION in jmorecfg.h)."""


@dataclass(frozen=True)
class Selection:
    """The images of one split, in the order in which they are stored."""

    order: NDArray[np.int64]
    """[samples] numbers of the source's images."""
    labels: Labels
    sizes: NDArray[np.int64]
    """[samples] stored bytes of each image; the mean for all of them where sizes are not known beforehand."""


def selected(spec: DatasetSpec, source: EncodedImages) -> dict[Split, Selection]:
    """As many training images as `data.scale` requests, repeated or made anew beyond those available; all others."""
    has_sizes = spec.preprocess == "none" and all(len(index.bytes) for index in source.indexes.values())
    mean = mean_bytes(spec, source)
    selections: dict[Split, Selection] = {}
    for split in SPLITS:
        index = source.indexes[split]
        count = wanted_samples(spec.scale, len(index), mean) if split == "train" else len(index)
        endless = source.endless and split == "train"
        order = np.arange(count) if endless or split == "test" else chosen(index.labels, count)
        if spec.shard.format != "files" or spec.preprocess == "raw":
            # Shuffled when written: otherwise, reading in sequence would show one class after the other.
            order = order[counter_rng.permutation(len(order), counter_rng.SHARD, split == "test")]
        labels = order % source.classes if endless else index.labels[order]
        sizes = index.bytes[order] if has_sizes else np.full(len(order), max(1, round(mean)))
        selections[split] = Selection(order, labels, sizes)
    return selections


def mean_bytes(spec: DatasetSpec, source: EncodedImages) -> float:
    """Mean size of a training image as it will be stored; images that cannot be read do not count."""
    index = source.indexes["train"]
    if spec.preprocess == "raw":
        return float(3 * spec.resize**2)
    if spec.preprocess == "none" and len(index.bytes):
        return float(index.bytes.mean())
    sizes = []
    for number in evenly_spread(len(index)):
        with contextlib.suppress(Unreadable):
            sizes.append(len(converted(spec, source, "train", number).data))
    return float(np.mean(sizes)) if sizes else 1.0


def usable_in_place(spec: DatasetSpec, source: EncodedImages) -> bool:
    """Whether the images can be used where they lie: none has to be changed, and none is needed twice."""
    if source.root is None or spec.preprocess != "none" or spec.shard.format != "files":
        return False
    available = len(source.indexes["train"])
    return wanted_samples(spec.scale, available, mean_bytes(spec, source)) <= available


def evenly_spread(count: int) -> list[int]:
    """At most SAMPLED numbers below `count`, evenly spread."""
    return sorted({number * count // SAMPLED for number in range(SAMPLED)})


def plan_of(spec: DatasetSpec, source: EncodedImages, selection: dict[Split, Selection]) -> str:
    """SHA-256 of everything that decides which bytes a part of the work holds."""
    digest = hashlib.sha256(canonical_json(spec.to_dict()).encode())
    for split, pictures in selection.items():
        index = source.indexes[split]
        for array in (pictures.order, pictures.labels, pictures.sizes, index.names, index.start):
            digest.update(np.ascontiguousarray(array).data)
    return digest.hexdigest()


class Unreadable(UserError):
    """An image that no decoder reads."""


class Converted(NamedTuple):
    """An image as it will be stored."""

    data: bytes
    check: int
    """CRC-32 of `data`."""


def converted(spec: DatasetSpec, source: EncodedImages, split: Split, number: int) -> Converted:
    """The image as it is, as smaller JPEG, or as pixels; Unreadable where it is damaged.

    An image that is stored unchanged is decoded once too, unless the source has just made it: a damaged one should be
    found now, not after hours of training.
    """
    try:
        data = source.read(split, number)
    except OSError as error:
        remedy = f"make it readable and start again: {KEPT}"
        raise UserError(f"cannot be read: {error.strerror or error}", source.name(split, number), remedy) from None
    try:
        if spec.preprocess == "none":
            stored = data
            if source.make is None:
                images.decode(data)
        else:
            stored = _preprocessed(spec, images.decode(data))
    except images.UNREADABLE as error:
        what = f"cannot be read as an image: {images.reason(error)}"
        remedy = "replace or remove it and start again, or set `data.on_error: skip` to leave such files out"
        raise Unreadable(what, source.name(split, number), remedy) from None
    return Converted(stored, zlib.crc32(stored))


def _preprocessed(spec: DatasetSpec, image: images.Pixels) -> bytes:
    """The image with its shorter side `resize` pixels as JPEG (4:2:0), or the pixels of its centre square.

    Raises ValueError where its longer side would be more than MAX_SIDE.
    """
    import torch

    height, width = image.shape[:2]
    side, short = spec.resize, min(height, width)
    size = (round(height * side / short), round(width * side / short))
    if max(size) > MAX_SIDE:
        was, becomes = f"{width:,} x {height:,}", f"{size[1]:,} x {size[0]:,}"
        raise ValueError(f"its {was} pixels would become {becomes}, and a side has at most {MAX_SIDE:,}")
    with images.one_torch_thread():
        pixels = images.resized(torch.from_numpy(image).permute(2, 0, 1)[None], size)[0].permute(1, 2, 0).numpy()
    if spec.preprocess == "resized":
        return bytes(simplejpeg.encode_jpeg(np.ascontiguousarray(pixels), spec.quality, "RGB", "420"))
    top, left = (size[0] - side) // 2, (size[1] - side) // 2
    return pixels[top : top + side, left : left + side].tobytes()
