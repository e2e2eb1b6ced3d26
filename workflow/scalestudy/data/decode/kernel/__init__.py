"""The kernel: from a JPEG, or stored pixels, to one image of a batch, in one call without the interpreter lock.

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

FOLDER = Path(__file__).parent
SOURCE = FOLDER / "kernel.c"
BUILT = FOLDER / "built"
BUILD = "python3 -m scalestudy.data.decode.kernel.build"
"""The command that builds it, where there are a C compiler and libjpeg-turbo's headers."""
DONE = 0
INSTRUCTIONS = ("plain C", "SSSE3", "AVX2")
Region = tuple[float, float, float, float, bool]
"""A view, as scalestudy.data.decode.images has it: top, left, height, width, flip."""


def source_key() -> str:
    """What a library must have been built from to be used: this source, for this kind of processor."""
    return f"{hashlib.sha256(SOURCE.read_bytes()).hexdigest()[:16]}-{platform.machine()}"


class Kernel:
    """The compiled functions. All methods may be called by several threads at once.

    `most`: 2 uses AVX2 where the processor has it, 1 only SSSE3, 0 neither; all give the same bytes.
    """

    def __init__(self, library: Path, most: int = 2) -> None:
        self._c = ctypes.CDLL(os.fspath(library))
        address, size, number = ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int
        self._c.kernel_new.restype = address
        self._c.kernel_free.argtypes = [address]
        self._c.kernel_header.argtypes = [address, address, size, address, address]
        self._c.kernel_jpeg.argtypes = [address, address, size, number, *[ctypes.c_double] * 4, number, number, address]
        self._c.kernel_pixels.argtypes = [address, address, *[number] * 8, address]
        self.instructions = INSTRUCTIONS[self._c.kernel_choose(most)]
        self._local = threading.local()

    def header(self, data: Any) -> tuple[int, int] | None:
        """Height and width of a JPEG; None for what the kernel does not take: other formats, CMYK, progressive,
        damaged."""
        mine = self._context()
        place, size = _address(data)
        if self._c.kernel_header(mine.pointer, place, size, mine.height_at, mine.width_at) != DONE:
            return None
        return mine.height.value, mine.width.value

    def show_jpeg(self, data: Any, shrink: int, view: Region, out: NDArray[np.uint8]) -> bool:
        """Write a view of a JPEG into `out`, uint8 [side, side, 3]; False where the kernel does not take it.

        The JPEG is decoded 1/shrink as large (1, 2, 4 or 8), and the view counts in pixels of that size, or parts of them.
        """
        place, size = _address(data)
        *box, flip = view
        side, target = _target(out)
        status = self._c.kernel_jpeg(self._context().pointer, place, size, shrink, *box, side, flip, target)
        return bool(status == DONE)

    def show_pixels(self, data: Any, height: int, width: int, view: Region, out: NDArray[np.uint8]) -> None:
        """Write a view of pixels, uint8 [height, width, 3], into `out`, uint8 [side, side, 3]."""
        place, size = _address(data)
        assert size >= height * width * 3
        *box, flip = map(int, view)
        side, target = _target(out)
        status = self._c.kernel_pixels(self._context().pointer, place, height, width, *box, side, flip, target)
        if status != DONE:
            raise MemoryError(f"the kernel could not show {view} of {height} x {width} pixels (status {status})")

    def _context(self) -> _Context:
        if not hasattr(self._local, "context"):
            self._local.context = _Context(self._c)
        found: _Context = self._local.context
        return found


class _Context:
    """What a thread keeps between calls: a decoder and its buffers."""

    def __init__(self, c: ctypes.CDLL) -> None:
        self._free, self.pointer = c.kernel_free, c.kernel_new()
        if not self.pointer:
            raise MemoryError("no decoder could be made")
        self.height, self.width = ctypes.c_int(), ctypes.c_int()
        self.height_at, self.width_at = ctypes.addressof(self.height), ctypes.addressof(self.width)

    def __del__(self) -> None:
        if getattr(self, "pointer", None):
            self._free(self.pointer)


def _address(data: Any) -> tuple[int, int]:
    array = np.frombuffer(data, np.uint8)
    return array.__array_interface__["data"][0], array.size


def _target(out: NDArray[np.uint8]) -> tuple[int, int]:
    face = out.__array_interface__
    side = out.shape[0]
    assert out.shape == (side, side, 3) and face["strides"] is None and not face["data"][1], "a contiguous place"
    return side, face["data"][0]


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
