"""The index of coded images: arrays and one blob of names, because a list of a million tuples takes 180 MiB."""

from __future__ import annotations

import contextlib
import hashlib
import os
import struct
import zipfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from scalestudy.data.manifest import Split
from scalestudy.errors import REMEDIES, UserError
from scalestudy.files import write_with

Labels = NDArray[Any]
"""int64 [samples] classes, or float32 [samples, classes] of zeros and ones."""


@dataclass(frozen=True)
class Index:
    """The samples of one split, in the order in which training numbers them."""

    names: NDArray[np.uint8]
    """All names, one after the other: paths relative to the bulk; empty where samples need none (shards, database)."""
    offsets: NDArray[np.int64]
    """[samples + 1] where each name begins in `names`; empty where there are none."""
    labels: Labels
    """int64 [samples], or float32 [samples, classes] where a sample has any number of labels."""
    bytes: NDArray[np.int64]
    """[samples] size of each payload."""
    checks: NDArray[np.uint32]
    """[samples] CRC-32 of each payload; empty for images used where they lie."""
    shard: NDArray[np.int32] = field(default_factory=lambda: np.zeros(0, np.int32))
    """[samples] number of the shard that holds it; empty where each sample is a file or a record."""
    start: NDArray[np.int64] = field(default_factory=lambda: np.zeros(0, np.int64))
    """[samples] where its payload begins in that shard, bytes; empty like `shard`."""

    @classmethod
    def of(
        cls,
        paths: Sequence[Any] | None,
        labels: Labels,
        sizes: NDArray[np.int64],
        checks: NDArray[np.uint32],
        **more: Any,
    ) -> Index:
        """An index of paths (text or bytes), in their order, or of samples without names; `more` are further fields."""
        coded = [os.fsencode(path) for path in paths or ()]
        offsets = np.cumsum([0, *map(len, coded)] if paths is not None else [], dtype=np.int64)
        return cls(np.frombuffer(b"".join(coded), np.uint8), offsets, labels, sizes, checks, **more)

    def __len__(self) -> int:
        return len(self.labels)

    def path(self, sample: int) -> str:
        """Path of a sample's file, relative to the bulk."""
        return os.fsdecode(self.names[self.offsets[sample] : self.offsets[sample + 1]].tobytes())

    def taken(self, order: NDArray[np.int64]) -> Index:
        """The samples that `order` lists, in that order; names are copied as bytes, never decoded."""
        if len(order) == len(self) and (order == np.arange(len(self))).all():
            return self
        taken = {name: value[order] if len(value) else value for name, value in vars(self).items() if name not in NAMES}
        names = self._names_of(order) if len(self.offsets) else (self.names, self.offsets)
        return Index(*names, **taken)

    def _names_of(self, order: NDArray[np.int64]) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
        blob, begins, ends = self.names.tobytes(), self.offsets[:-1][order], self.offsets[1:][order]
        names = b"".join(blob[begin:end] for begin, end in zip(begins.tolist(), ends.tolist(), strict=True))
        return np.frombuffer(names, np.uint8), np.concatenate([np.zeros(1, np.int64), np.cumsum(ends - begins)])


NAMES = ("names", "offsets")


def joined(parts: Sequence[Index]) -> Index:
    """One index of several, one after the other; all have the same fields filled."""
    if len(parts) == 1:
        return parts[0]
    lengths = [np.diff(part.offsets) for part in parts if len(part.offsets)]
    offsets = np.cumsum(np.concatenate([np.zeros(1, np.int64), *lengths])) if lengths else np.zeros(0, np.int64)
    others = [one.name for one in fields(Index) if one.name != "offsets"]
    return Index(offsets=offsets, **{name: np.concatenate([getattr(part, name) for part in parts]) for name in others})


def write_index(path: Path, splits: dict[Split, Index]) -> None:
    """Write the index of both splits as one .npz file."""
    arrays = {f"{split}_{name}": value for split, index in splits.items() for name, value in vars(index).items()}
    write_with(path, lambda temporary: np.savez(temporary, **arrays))


def fingerprint(splits: dict[Split, Index]) -> str:
    """SHA-256 over names, labels, sizes, checks and places of both splits."""
    digest = hashlib.sha256()
    for split in sorted(splits):
        for value in vars(splits[split]).values():
            digest.update(np.ascontiguousarray(value).data)
    return digest.hexdigest()


def refuse_unlearnable(train: Labels, test: Labels, where: str) -> None:
    """UserError where every model, or none, is right about the held-out data, whatever it learns."""
    if (train == train[:1]).all() and (test == train[:1]).all():
        what, remedy = "all samples have the same label: nothing can be learned", "name the folder above its classes"
        raise UserError(what, where, remedy)
    if train.ndim == 1 and not len(np.intersect1d(train, test)):
        what = "no label of the held-out data occurs in the training data: no model can be right"
        raise UserError(what, where, "use the same classes in both")


@contextlib.contextmanager
def _missing_or_damaged(path: Path) -> Iterator[None]:
    """Turn an error of reading prepared data in this block into a UserError."""
    try:
        yield
    except (OSError, EOFError, KeyError, ValueError, zipfile.BadZipFile) as error:
        if isinstance(error, OSError) and error.errno in REMEDIES:
            raise  # a limit or a disk: the data is as it was
        raise UserError(f"prepared data cannot be read: {error}", str(path), "prepare it again") from None


def mapped_array(path: Path) -> np.memmap[Any, Any]:
    """A .npy file of prepared data, mapped; UserError where it is missing or damaged."""
    with _missing_or_damaged(path):
        array: np.memmap[Any, Any] = np.load(path, mmap_mode="r")
    return array


def mapped_index(path: Path, split: Split) -> Index:
    """One split of an index, its arrays mapped from the file; UserError where it is missing or damaged."""
    arrays = {}
    with _missing_or_damaged(path), zipfile.ZipFile(path) as archive, open(path, "rb") as stream:
        members = {one.name: archive.getinfo(f"{split}_{one.name}.npy") for one in fields(Index)}
        for name, info in members.items():
            # The zip's local header (PKWARE's APPNOTE.TXT, 4.3.7) has 30 bytes, the name and an extra field.
            stream.seek(info.header_offset + 26)
            stream.seek(sum(struct.unpack("<HH", stream.read(4))), 1)
            np.lib.format.read_magic(stream)  # of version 1.0, as numpy.savez writes them
            shape, fortran, dtype = np.lib.format.read_array_header_1_0(stream)
            if 0 in shape:
                arrays[name] = np.zeros(shape, dtype)
            else:
                mapped = np.memmap(path, dtype, "r", stream.tell(), shape, "F" if fortran else "C")
                arrays[name] = np.asarray(mapped)
    return Index(**arrays)
