"""Images as a model sees them: decoded, a region of each, resized. Arrays are uint8 [height, width, 3].

`show_batch` makes a batch: usually in one call of the kernel (`kernel/kernel.c`). `show_coded` and all below it are the
fallback, for images that the kernel leaves, and for all of them where it is not built. The fallback alone needs torch,
which is imported where it is used: a worker process that has the kernel works without it.
"""

from __future__ import annotations

import contextlib
import functools
import io
import math
import struct
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import simplejpeg
from numpy.typing import NDArray
from PIL import Image, PngImagePlugin, UnidentifiedImageError

from scalestudy.data.decode import MAX_PIXELS, kernel

if TYPE_CHECKING:
    import torch

Pixels = NDArray[np.uint8]

ATTEMPTS = 10
DRAWS = 2 * ATTEMPTS + 3
"""Uniform numbers that one random view takes."""
UNREADABLE = (
    OSError, ValueError, SyntaxError, EOFError, KeyError, struct.error, Image.DecompressionBombError, MemoryError,
)  # fmt: skip
"""What decoders raise on damaged images; pillow has SyntaxError for broken PNG."""
PngImagePlugin.MAX_TEXT_CHUNK = PngImagePlugin.MAX_TEXT_MEMORY
"""Of a PNG's compressed texts and colour profile, which are not used: 64 MiB, where Pillow refuses an image from 1 MiB on."""
KINDS = {"JPEG": b"\xff\xd8", "PNG": b"\x89PNG"}
"""Formats that are read, by their first bytes: names of files cannot be trusted. Pillow may try no others, because some
of its loaders start programs on the data (Ghostscript on PostScript)."""


class View(NamedTuple):
    """A region of an image, in its pixels, and whether it is mirrored."""

    top: int
    left: int
    height: int
    width: int
    flip: bool = False


Draws = NDArray[np.float64] | None
"""DRAWS uniform numbers for each image, which choose its view and flip; None: the centre, not mirrored."""


class Damaged(Exception):
    """Why an image cannot be read, and its row in the batch."""

    def __init__(self, row: int, error: BaseException) -> None:
        super().__init__(reason(error))
        self.row = row


def show_batch(
    places: tuple[NDArray[np.void], bytes] | None,
    read: Callable[[int], Any],
    draws: Draws,
    crop: bool,
    out: Pixels,
    *,
    stored_side: int | None,
    changed: Callable[[int, Any], bool],
) -> None:
    """Write a view of each image into `out`, uint8 [B, side, side, 3]: by the kernel, and one by one what it leaves.

    `places`: where the kernel finds them in local files (kernel.PICTURE [B], and the files' names); None: in the bytes
    that `read` returns of a row. `crop`: a random view, not the centre. `stored_side`: height and width of images that
    are stored as pixels. `changed`: whether the bytes of a row are not those that were stored. Raises Damaged.
    """
    row, rows = 0, list(range(len(out)))
    held: list[Any] = []
    try:
        if (fast := kernel.loaded()) is not None:
            if places is None:
                for row in rows:
                    held.append(read(row))
                places = kernel.in_memory(*held), b""
            rows = fast.show(*places, draws, crop, out, stored=(stored_side or 0, stored_side or 0))
        for row in rows:
            data, numbers = held[row] if held else read(row), None if draws is None else draws[row]
            if stored_side is None:
                show_coded(data, numbers, crop, out[row], functools.partial(changed, row, data))
            else:
                pixels = np.frombuffer(data, np.uint8).reshape(stored_side, stored_side, 3)
                show(pixels, view_of(stored_side, stored_side, numbers, crop), out[row])
    except UNREADABLE as error:
        raise Damaged(row, error) from None


@contextlib.contextmanager
def one_torch_thread() -> Iterator[None]:
    """One torch thread in this block: on images this small, sharing the work costs more than the work."""
    import torch

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def header(data: Any) -> tuple[int, int]:
    """Height and width of coded bytes (JPEG, PNG) without decoding them; ValueError or OSError if damaged."""
    if bytes(data[:2]) == KINDS["JPEG"]:
        with contextlib.suppress(ValueError, KeyError):  # pillow may know more
            return limited(*simplejpeg.decode_jpeg_header(data)[:2])
    with _opened(data) as image:
        return limited(image.height, image.width)


def reason(error: BaseException) -> str:
    """Why a picture cannot be read, of what UNREADABLE lists."""
    return str(error) or ("memory ran out" if isinstance(error, MemoryError) else type(error).__name__)


def limited(height: int, width: int) -> tuple[int, int]:
    """The size that a header states; OSError (on a ValueError, another decoder is tried) where no memory is given to it."""
    if height * width > MAX_PIXELS:
        raise OSError(f"it claims {width:,} x {height:,} pixels, and {MAX_PIXELS:,} are the most that are decoded")
    return height, width


def _opened(data: Any) -> Image.Image:
    """JPEG or PNG as pillow opens it; ValueError with the reason where it cannot."""
    try:
        return Image.open(io.BytesIO(data), formats=list(KINDS))
    except UnidentifiedImageError:  # whose message is about an object in memory
        has_signature = bytes(data[:4]).startswith(tuple(KINDS.values()))
        why = "the header is damaged" if has_signature else "unknown kind, neither JPEG nor PNG"
        raise ValueError(why if len(data) else "it is empty") from None


def decode(data: Any, shrink: int = 1, strict: bool = False) -> Pixels:
    """Pixels of JPEG or PNG, grey and CMYK made RGB; ValueError or OSError where the data is damaged.

    `strict`: ValueError or KeyError also for a JPEG that libjpeg-turbo warns of. `shrink` (a power of two) lets a
    JPEG be decoded smaller by about that factor, never by more.
    """
    if bytes(data[:2]) == KINDS["JPEG"]:
        height, width = header(data)
        least = {"min_height": -(-height // shrink), "min_width": -(-width // shrink)} if shrink > 1 else {}
        suppressed: Any = contextlib.nullcontext() if strict else contextlib.suppress(ValueError, KeyError)
        with suppressed:  # it refuses images that can be repaired; pillow decides
            return simplejpeg.decode_jpeg(data, "RGB", **least)
    with _opened(data) as image:
        limited(image.height, image.width)
        if image.mode.startswith("I"):  # 16 bits of grey, which pillow would cut off at 255
            grey = np.clip(np.array(image) // 256, 0, 255).astype(np.uint8)
            return np.repeat(grey[:, :, None], 3, axis=2)
        return np.array(image.convert("RGB"))


def random_view(height: int, width: int, draws: Sequence[float]) -> View:
    """A random resized crop (area .08..1, ratio 3/4..4/3, as torchvision's) and a flip, from DRAWS uniform numbers.

    The kernel chooses the same (kernel/kernel.c).
    """
    flip = draws[2 * ATTEMPTS] < 0.5
    for attempt in range(ATTEMPTS):
        area = height * width * (0.08 + 0.92 * draws[2 * attempt])
        ratio = (3 / 4) * (16 / 9) ** draws[2 * attempt + 1]
        crop_width, crop_height = round(math.sqrt(area * ratio)), round(math.sqrt(area / ratio))
        if 0 < crop_width <= width and 0 < crop_height <= height:
            top = int(draws[2 * ATTEMPTS + 1] * (height - crop_height + 1))
            left = int(draws[2 * ATTEMPTS + 2] * (width - crop_width + 1))
            return View(top, left, crop_height, crop_width, flip)
    crop_width, crop_height = min(width, round(height * 4 / 3)), min(height, round(width * 4 / 3))
    return View((height - crop_height) // 2, (width - crop_width) // 2, crop_height, crop_width, flip)


def centre_view(height: int, width: int, flip: bool = False) -> View:
    """The centre square that remains of a shorter side of 256 when 224 are kept.

    Cropped before it is resized: the same region as resizing the shorter side to size*256/224 and then cropping, to
    the rounding of one pixel, for less work.
    """
    side = max(1, round(min(height, width) * 224 / 256))
    return View((height - side) // 2, (width - side) // 2, side, side, flip)


TINY = 16
"""Pixels from which on every half, quarter or eighth of a side has a distinct length among libjpeg's eighths."""


def shrink_for(view: View, side: int) -> int:
    """The power of two by which a JPEG may be decoded smaller without enlarging `view` to `side` afterwards.

    A view of fewer than TINY pixels is decoded as it is: half of 3 pixels and three eighths of them are both 2, and
    decoders that get a size choose either.
    """
    factor = min(view.height, view.width) // side if min(view.height, view.width) >= TINY else 1
    return 8 if factor >= 8 else 4 if factor >= 4 else 2 if factor >= 2 else 1


def view_of(height: int, width: int, draws: Draws, crop: bool) -> View:
    """The view that these draws choose: random with `crop`, else the centre."""
    if draws is None:
        return centre_view(height, width)
    return random_view(height, width, draws.tolist()) if crop else centre_view(height, width, draws[2 * ATTEMPTS] < 0.5)


def show_coded(data: Any, draws: Draws, crop: bool, out: Pixels, changed: Callable[[], bool]) -> None:
    """Decode all of a JPEG or PNG and write a view of it into `out`, uint8 [side, side, 3].

    Where libjpeg-turbo finds a JPEG damaged, pillow has the last word, unless `changed()` says that the bytes are not
    those that were stored: then ValueError.
    """
    height, width = header(data)
    view = view_of(height, width, draws, crop)
    shrink = shrink_for(view, out.shape[0])
    try:
        image = decode(data, shrink, strict=True)
    except (ValueError, KeyError):
        if changed():
            raise ValueError("it is damaged: its checksum is not the one that it was stored with") from None
        image = decode(data, shrink)
    if image.shape[:2] == (height, width):
        show(image, view, out)
    else:
        show_scaled(image, view, (height, width), out)


def show(image: Pixels, view: View, out: Pixels) -> None:
    """Write the view into `out`, uint8 [side, side, 3]."""
    import torch

    top, left, rows, columns, flip = view
    # Stored pixels may be read-only, which torch does not know; those are copied.
    pixels = np.require(image[top : top + rows, left : left + columns], requirements="W")
    crop = torch.from_numpy(pixels).permute(2, 0, 1)[None]
    shown = resized(crop, (out.shape[0], out.shape[1]))
    torch.from_numpy(out).permute(2, 0, 1).copy_((shown.flip(-1) if flip else shown)[0])


def show_scaled(image: Pixels, view: View, size: tuple[int, int], out: Pixels) -> None:
    """Write a view of an image of this `size`, which was decoded smaller, into `out`, resized as `resized` does."""
    down, across = image.shape[0] / size[0], image.shape[1] / size[1]
    # The region need not begin or end with a whole pixel.
    top, left, height, width = view.top * down, view.left * across, view.height * down, view.width * across
    last_row, last_column = math.ceil(top + height - 1e-6), math.ceil(left + width - 1e-6)
    touched = Image.fromarray(image[int(top) : last_row, int(left) : last_column])
    top, left = top - int(top), left - int(left)
    region = (left, top, min(touched.width, left + width), min(touched.height, top + height))
    shown = np.asarray(touched.resize((out.shape[1], out.shape[0]), Image.Resampling.BILINEAR, region))
    out[:] = shown[:, ::-1] if view.flip else shown


def resized(x: torch.Tensor, size: tuple[int, int]) -> torch.Tensor:
    """[B, C, H, W] at another height and width: bilinear, antialiased where it shrinks."""
    if x.shape[2:] == size:
        return x
    import torch.nn.functional as F

    return F.interpolate(x, size=size, mode="bilinear", antialias=True)
