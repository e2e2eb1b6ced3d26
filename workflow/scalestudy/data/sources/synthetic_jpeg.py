"""Photo-like JPEG files of a stated number and size, for studies of storage and decoding without anyone's photos.

All arithmetic on pixels is in integers, so that the same options give the same bytes on every machine that has the
same libjpeg-turbo.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import simplejpeg
from numpy.typing import NDArray

from scalestudy.data import counter_rng
from scalestudy.data.catalogue import SyntheticJpeg
from scalestudy.data.index import Index
from scalestudy.data.manifest import Split
from scalestudy.data.sources import EncodedImages
from scalestudy.errors import UserError
from scalestudy.spec.config import Site

TEXTURES = 4
"""Textures in the pool; an image mixes two."""
MARGIN = 96
"""How much wider and higher than an image a texture is: each image shows another part of it."""
CALIBRATION_PIXELS = 48 * 500 * 375
"""Pixels of the images by which detail is chosen; 4 to 48 images."""
MIN_QUALITY, QUALITY, MAX_QUALITY = 5, 85, 100
MAX_DETAIL = 255
TINTS = 12
"""Classes told apart by hue; further ones by where their patch lies."""


def provide(spec: SyntheticJpeg, site: Site) -> EncodedImages:
    """As many images as requested, and a tenth as many held out; sample i is of class i modulo `classes`."""
    maker = Maker(spec)
    counts: dict[Split, int] = {"train": spec.samples, "test": max(1, spec.samples // 10)}
    unknown = np.zeros(0, np.int64), np.zeros(0, np.uint32)
    indexes = {split: Index.of(None, np.arange(count) % spec.classes, *unknown) for split, count in counts.items()}
    return EncodedImages(indexes, spec.classes, maker.picture, endless=True)


def calibrated(maker: Maker) -> int:
    """The setting at which the first images have the requested mean size; UserError where none has it."""
    spec = maker.spec
    pictures = min(spec.samples, max(4, min(48, CALIBRATION_PIXELS // (spec.width * spec.height))))
    target_bytes = spec.mean_kib * 1024

    def mean_bytes(setting: int) -> float:
        return sum(len(maker.picture("train", index, setting)) for index in range(pictures)) / pictures

    low, high = 0, MAX_QUALITY - MIN_QUALITY + MAX_DETAIL
    sizes = {low: mean_bytes(low), high: mean_bytes(high)}
    while high - low > 1:
        middle = (low + high) // 2
        sizes[middle] = mean_bytes(middle)
        low, high = (middle, high) if sizes[middle] <= target_bytes else (low, middle)
    best = min(sizes, key=lambda setting: abs(sizes[setting] - target_bytes))
    if abs(sizes[best] / target_bytes - 1) > 0.08:
        reach = f"{min(sizes.values()) / 1024:.1f} to {max(sizes.values()) / 1024:.1f}"
        what = f"images of {spec.width}x{spec.height} have {reach} KiB, not {spec.mean_kib:g} KiB"
        raise UserError(what, "data.mean_kib", "change `mean_kib`, `width` or `height`")
    return best


def quality_and_detail(setting: int) -> tuple[int, int]:
    """One number from small to large files: first quality up to 85, then fine detail, then quality beyond."""
    below = QUALITY - MIN_QUALITY
    if setting <= below:
        return MIN_QUALITY + setting, 0
    if setting <= below + MAX_DETAIL:
        return QUALITY, setting - below
    return QUALITY + setting - below - MAX_DETAIL, MAX_DETAIL


class Maker:
    """Makes images of one kind from a pool of textures; its methods may run in several threads."""

    def __init__(self, spec: SyntheticJpeg) -> None:
        """Make the pool for these options, and calibrate the setting of all images."""
        self.spec, height, width = spec, spec.height + MARGIN, spec.width + MARGIN
        self.textures = [texture(height, width, number) for number in range(TEXTURES)]
        self.grain = noise(height, width, 1 << 20)
        self.setting = calibrated(self)

    def picture(self, split: Split, index: int, setting: int | None = None) -> bytes:
        """One JPEG, 4:2:0: two textures mixed, grain, the tint of its class and a patch where its class has it."""
        label = index % self.spec.classes
        quality, detail = quality_and_detail(self.setting if setting is None else setting)
        n = counter_rng.hashed(counter_rng.PICTURE, split == "test", index, np.arange(12)).astype(np.int64) & 0xFFFF
        first, second, colour = (self._window(self.textures[n[k] % TEXTURES], n[k + 1], n[k + 2]) for k in (0, 3, 6))
        weight = 96 + n[9] % 96
        # Mean grain over images is `detail`; single ones have 3/4 to 5/4 of it, so that sizes vary somewhat.
        grain = detail * (192 + n[10] % 129) >> 8
        luma = (first * np.int16(weight) >> 7) + (second * np.int16(256 - weight) >> 7)
        luma += 128 + (n[11] % 33 - 16)
        luma += self._window(self.grain, n[2], n[4]) * np.int16(grain >> 1) >> 7

        # The patch of its class: one of three by three places.
        size, cell = min(self.spec.height, self.spec.width) // 3, label // TINTS
        top = (cell % 3) * (self.spec.height - size) // 2
        left = (cell // 3 % 3) * (self.spec.width - size) // 2
        luma[top : top + size, left : left + size] += 40
        blue, red = self._chroma(colour, label, (top // 2, left // 2, size // 2))
        return encoded((luma, blue, red), quality)

    def _window(self, texture: NDArray[np.int16], down: int, across: int) -> NDArray[np.int16]:
        top, left = down % MARGIN, across % MARGIN
        return texture[top : top + self.spec.height, left : left + self.spec.width]

    def _chroma(self, texture: NDArray[np.int16], label: int, patch: tuple[int, int, int]) -> list[NDArray[np.int16]]:
        """Cb and Cr at half resolution: the class's hue, stronger in its patch, on colours that vary slowly."""
        angle = 2 * math.pi * (label % TINTS) / TINTS
        top, left, size = patch
        planes = []
        for tint, slow in ((round(24 * math.cos(angle)), 2), (round(24 * math.sin(angle)), 3)):
            plane = (texture[::2, ::2] >> slow) + np.int16(128 + tint)
            plane[top : top + size, left : left + size] += tint
            planes.append(plane)
        return planes


def encoded(planes: Sequence[NDArray[np.int16]], quality: int) -> bytes:
    """Y, Cb and Cr (4:2:0) as JPEG.

    libjpeg-turbo's encoder of planes reads them to even height and width, beyond the end of an odd one. So each lies in
    a larger buffer, its last row and column repeated.
    """
    views = []
    for plane in planes:
        height, width = plane.shape
        pixels = np.clip(plane, 0, 255).astype(np.uint8)
        views.append(np.pad(pixels, ((0, height % 2), (0, width % 2)), mode="edge")[:height, :width])
    return bytes(simplejpeg.encode_jpeg_yuv_planes(*views, quality))


def texture(height: int, width: int, number: int) -> NDArray[np.int16]:
    """Noise with amplitude falling as 1/f, standard deviation about 30.

    In two dimensions that is equal variance in each octave: noise on ever finer grids, interpolated and summed.
    """
    total = np.zeros((height, width), np.int32)
    cell = 1 << max(1, (min(height, width) // 2).bit_length() - 1)
    octave = 0
    while cell >= 2:
        grid = noise(height // cell + 2, width // cell + 2, number * 32 + octave).astype(np.int32)
        total += _enlarged(_enlarged(grid, cell, height).T, cell, width).T
        cell, octave = cell // 2, octave + 1
    # Uniform -128..127 has deviation 74; interpolating leaves about 2/3 of it.
    return (total * 30 // (49 * math.isqrt(max(1, octave * 100)) // 10)).astype(np.int16)


def _enlarged(grid: NDArray[np.int32], cell: int, length: int) -> NDArray[np.int32]:
    """Linear interpolation of the rows of `grid`, `cell` steps apart, to `length` rows; in integers."""
    position = np.arange(length)
    row, part = position // cell, (position % cell)[:, None]
    return (grid[row] * (cell - part) + grid[row + 1] * part) // cell


def noise(height: int, width: int, number: int) -> NDArray[np.int16]:
    """Independent uniform numbers from -128 to 127."""
    drawn = counter_rng.hashed(counter_rng.POOL, number, np.arange(-(-height * width // 8)))
    return drawn.view(np.int8)[: height * width].reshape(height, width).astype(np.int16)
