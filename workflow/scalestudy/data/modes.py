"""The ways of reading that each format of data has. Imports nothing: specs are checked with it."""

from __future__ import annotations

from typing import Literal

Mode = Literal["file", "shards", "stream", "database", "memory", "synthetic"]

MODES: dict[str, tuple[Mode, ...]] = {
    "files": ("file", "stream", "memory", "synthetic"),
    "shards": ("shards", "stream", "memory", "synthetic"),
    "raw": ("shards", "stream", "memory", "synthetic"),
    "database": ("database", "memory", "synthetic"),
    "tensors": ("memory", "synthetic"),
}
"""The input modes that each format of data has, its own first."""

FORMAT_OF_SHARD = {"files": "files", "tar": "shards", "raw": "shards", "lmdb": "database"}
"""The format that `data.shard.format` leads to, where images are stored by us."""
TENSOR_SOURCES = ("digits", "fashion_mnist", "synthetic")
