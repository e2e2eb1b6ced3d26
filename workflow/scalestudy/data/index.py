"""The index of coded pictures: arrays and one blob of names, because a list of a million tuples takes 180 MiB."""

from __future__ import annotations

import hashlib
import os
import zipfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from scalestudy.data.manifest import Split
from scalestudy.errors import UserError
from scalestudy.files import write_with


@dataclass(frozen=True)
class Index:
    """The files of one split."""

    names: NDArray[np.uint8]
    """All paths, relative to the bulk, one after the other."""
    offsets: NDArray[np.int64]
    """[samples + 1] where each path begins in `names`."""
    labels: NDArray[np.int64]
    """[samples]"""
    bytes: NDArray[np.int64]
    """[samples] size of each file."""
    checks: NDArray[np.uint32]
    """[samples] CRC-32 of each file, or empty for files that were there before."""

    @classmethod
    def of(
        cls, paths: Sequence[str], labels: NDArray[np.int64], sizes: NDArray[np.int64], checks: NDArray[np.uint32]
    ) -> Index:
        """An index of paths, in their order."""
        coded = [os.fsencode(path) for path in paths]
        offsets = np.cumsum([0, *map(len, coded)], dtype=np.int64)
        return cls(np.frombuffer(b"".join(coded), np.uint8), offsets, labels, sizes, checks)

    def __len__(self) -> int:
        return len(self.labels)

    def path(self, sample: int) -> str:
        """Path of a sample's file, relative to the bulk."""
        return os.fsdecode(self.names[self.offsets[sample] : self.offsets[sample + 1]].tobytes())


def write_index(path: Path, splits: dict[Split, Index]) -> None:
    """Write the index of both splits as one .npz file."""
    arrays = {f"{split}_{field}": value for split, index in splits.items() for field, value in vars(index).items()}

    def write(temporary: Path) -> None:
        with open(temporary, "wb") as stream:
            np.savez(stream, **arrays)

    write_with(path, write)


def read_index(path: Path, split: Split) -> Index:
    """Read one split of an index; UserError where it is missing or damaged."""
    try:
        with np.load(path) as arrays:
            return Index(**{field: arrays[f"{split}_{field}"] for field in Index.__dataclass_fields__})
    except (OSError, KeyError, ValueError, zipfile.BadZipFile) as error:
        raise UserError(f"the index cannot be read: {error}", str(path), "prepare the data again") from None


def fingerprint(splits: dict[Split, Index]) -> str:
    """SHA-256 over names, labels, sizes and checks of both splits."""
    digest = hashlib.sha256()
    for split in sorted(splits):
        for value in vars(splits[split]).values():
            digest.update(np.ascontiguousarray(value).tobytes())
    return digest.hexdigest()
