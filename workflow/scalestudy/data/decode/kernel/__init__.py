"""The kernel: from JPEGs or stored pixels to a batch of images, in one call without the interpreter lock.

kernel.c describes what it computes. `python -m scalestudy.data.decode.kernel.build` compiles it once, where there is a C
compiler and libjpeg-turbo's headers. Without it, or with `SCALESTUDY_KERNEL=0`, the plain path is used, whose images
are the same to within a few levels.
"""

from __future__ import annotations

import ctypes
import functools
import hashlib
import os
import platform
import threading
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from scalestudy.data.decode import MAX_PIXELS

FOLDER = Path(__file__).parent
SOURCE = FOLDER / "kernel.c"
BUILT = FOLDER / "built"
BUILD = "python3 -m scalestudy.data.decode.kernel.build"
"""The command that builds it, where there are a C compiler and libjpeg-turbo's headers."""
INSTRUCTIONS = ("plain C", "AVX2")
PICTURE = np.dtype(
    [("bytes", "u8"), ("start", "i8"), ("size", "i8"), ("name", "i8"), ("descriptor", "i4"), ("status", "i4")]
)
"""Where one picture's bytes are. `bytes`: their address; 0: they are `size` bytes of a file, from `start` on. `name`: where
the file's path begins among all names; -1: it is open as `descriptor`."""


def source_key() -> str:
    """What a library must have been built from to be used: this source, for this kind of processor."""
    return f"{hashlib.sha256(SOURCE.read_bytes()).hexdigest()[:16]}-{platform.machine()}"


class Kernel:
    """The compiled functions. All methods may be called by several threads at once.

    `most`: 1 uses AVX2 where the processor has it, 0 never; both give the same bytes.
    """

    def __init__(self, library: Path, most: int = 1) -> None:
        self._c = ctypes.CDLL(os.fspath(library))
        address, number = ctypes.c_void_p, ctypes.c_int
        self._c.kernel_new.restype = address
        self._c.kernel_free.argtypes = [address]
        self._c.kernel_batch.restype = None
        self._c.kernel_batch.argtypes = [
            address, address, ctypes.c_char_p, *[number] * 3, ctypes.c_double, address, number, number, address
        ]  # fmt: skip
        self.instructions = INSTRUCTIONS[self._c.kernel_choose(most)]
        self._local = threading.local()

    def show(
        self,
        pictures: NDArray[np.void],
        names: bytes,
        draws: NDArray[np.float64] | None,
        crop: bool,
        out: NDArray[np.uint8],
        *,
        max_pixels: int = MAX_PIXELS,
        stored: tuple[int, int] = (0, 0),
    ) -> list[int]:
        """Write a view of each picture into `out`, uint8 [B, side, side, 3]; the rows that the kernel does not take.

        It takes JPEGs of at most `max_pixels`, or, with `stored`, pixels of this height and width. Others are progressive
        JPEGs, CMYK, PNG, and what is damaged or cannot be read. `pictures`: PICTURE [B]; each of their `names` ends with a 0.
        `draws`: uniform numbers [B, DRAWS] (scalestudy.data.decode.images); None: the centre, never mirrored. `crop`: a random
        view, not the centre.
        """
        count, side = out.shape[:2]
        assert out.shape == (count, side, side, 3) and len(pictures) == count and (draws is not None or not crop)
        places = _address(pictures), names, count, *stored, max_pixels, None if draws is None else _address(draws)
        self._c.kernel_batch(self._context().pointer, *places, crop, side, _address(out))
        return np.flatnonzero(pictures["status"]).tolist()

    def _context(self) -> _Context:
        if not hasattr(self._local, "context"):
            self._local.context = _Context(self._c)
        context: _Context = self._local.context
        return context


class _Context:
    """What a thread keeps between calls: a decoder and its buffers."""

    def __init__(self, c: ctypes.CDLL) -> None:
        self._free, self.pointer = c.kernel_free, c.kernel_new()

    def __del__(self) -> None:
        self._free(self.pointer)


def _address(array: NDArray[Any]) -> int:
    assert array.flags.c_contiguous
    return array.ctypes.data


def in_memory(*buffers: Any) -> NDArray[np.void]:
    """PICTURE [B] of buffers, which have to live as long."""
    wholes = [np.frombuffer(data, np.uint8) for data in buffers]
    return np.array([(whole.ctypes.data, 0, whole.size, -1, 0, 0) for whole in wholes], PICTURE)


@functools.cache
def loaded() -> Kernel | None:
    """The kernel, where it is built and wanted."""
    if os.environ.get("SCALESTUDY_KERNEL") == "0":
        return None
    built = BUILT.glob(f"kernel-{source_key()}-*.so")
    for library in sorted(built, key=lambda path: path.stat().st_mtime, reverse=True):  # compilers differ
        try:
            return Kernel(library)
        except OSError:  # built on a system with another C library or libjpeg
            continue
    return None


def state() -> str:
    """How images are decoded here, as text for results."""
    kernel = loaded()
    return f"kernel, {kernel.instructions}" if kernel else "plain: simplejpeg and torch"
