"""Square images of pixels in one array per split, filled by one writer."""

from __future__ import annotations

import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from scalestudy.data.index import Index, Labels
from scalestudy.data.manifest import Split
from scalestudy.data.prepare import parts
from scalestudy.data.prepare.convert import Converted
from scalestudy.data.prepare.parts import PreparedPart
from scalestudy.data.prepare.shard import Gather
from scalestudy.data.progress import Progress
from scalestudy.limits import usable_cores

AHEAD = 32
"""Images converted ahead of the one that is written, per core."""


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
    kept = labels[gathered.kept]
    np.save(folder / f"{split}_labels.npy", kept)
    sizes = np.full(len(checks), 3 * side * side)
    index = Index.of([""] * len(checks), kept, sizes, np.array(checks, np.uint32), **gathered.sides())
    return PreparedPart(index, gathered.bytes_in, gathered.left_out)
