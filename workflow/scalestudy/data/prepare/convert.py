"""One image of a source as it will be stored, or the reason why it cannot be."""

from __future__ import annotations

import zlib
from typing import NamedTuple

from scalestudy.data.catalogue import DatasetSpec
from scalestudy.data.decode import images
from scalestudy.data.manifest import Split
from scalestudy.data.sources import EncodedImages
from scalestudy.errors import UserError

KEPT = "what is done is kept"


class Unreadable(UserError):
    """An image that no decoder reads."""


class Converted(NamedTuple):
    """An image as it will be stored."""

    data: bytes
    check: int
    """CRC-32 of `data`."""
    width: int
    height: int
    bytes_in: int
    """Coded bytes that it was made of."""


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
            height, width = images.header(data) if source.make else images.decode(data).shape[:2]
        else:
            image = images.stored_form(images.decode(data), spec.resize, crop=spec.preprocess == "raw")
            height, width = image.shape[:2]
            stored = image.tobytes() if spec.preprocess == "raw" else images.encode(image, spec.quality)
    except images.UNREADABLE as error:
        what = f"cannot be read as an image: {images.reason(error)}"
        remedy = f"replace or remove it and start again ({KEPT}), or set `data.on_error: skip` to leave such files out"
        raise Unreadable(what, source.name(split, number), remedy) from None
    return Converted(stored, zlib.crc32(stored), width, height, len(data))
