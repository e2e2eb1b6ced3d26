"""The manifest of a dataset: small, written last, and all that a rule depends on. Imports no torch."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from scalestudy.errors import UserError
from scalestudy.files import read_json, write_json

Split = Literal["train", "test"]
Format = Literal["tensors", "files", "raw"]
Task = Literal["classification", "multilabel"]


@dataclass(frozen=True)
class SplitInfo:
    """How much one split holds."""

    samples: int = 0
    bytes: int = 0
    """As stored, without indexes; of data made while reading, what reading all of it moves."""


@dataclass(frozen=True)
class Manifest:
    """What was prepared, or why nothing was."""

    id: str
    status: Literal["ready", "skipped"]
    spec: dict[str, Any]
    """The DatasetSpec as plain data."""
    reason: str = ""
    """Why it was skipped and what to do; empty when ready."""
    format: Format = "tensors"
    """`tensors`: arrays of pixels, or samples made while reading; `files`: JPEG and PNG; `raw`: 256x256 pixels."""
    classes: int = 0
    task: Task = "classification"
    channels: int = 0
    train: SplitInfo = SplitInfo()
    test: SplitInfo = SplitInfo()
    bulk: str = ""
    """Folder of the data: relative to the manifest's folder where it lies beside it, else absolute; empty: none."""
    index: str = ""
    """Index of the files, placed like `bulk`; empty for other formats."""
    fingerprint: str = ""
    """SHA-256 over what is stored (pictures by their CRC-32) or, used where it lies, over its names and sizes."""
    seconds: float = 0.0
    """What preparing took."""
    width: float | None = None
    """Mean width of a stored image, pixels; of files, from a sample of them."""
    height: float | None = None
    """Mean height of a stored image, pixels."""

    def split(self, name: Split) -> SplitInfo:
        """Samples and bytes of one split."""
        return self.train if name == "train" else self.test


def bulk_folder(manifest_path: Path | str, manifest: Manifest) -> Path:
    """Where the data lies; nothing is there for data made while reading."""
    return Path(manifest_path).parent / manifest.bulk


def index_file(manifest_path: Path | str, manifest: Manifest) -> Path:
    """Where the index of the files lies."""
    return Path(manifest_path).parent / manifest.index


def read_manifest(path: Path | str) -> Manifest:
    """Read a manifest; UserError where there is none or it is damaged."""
    plain = read_json(path)
    try:
        splits: dict[str, Any] = {name: SplitInfo(**plain.pop(name)) for name in ("train", "test")}
        return Manifest(**plain, **splits)
    except (AttributeError, KeyError, TypeError) as error:
        raise UserError(f"is no manifest: {error}", str(path), "delete it; it will be made again") from None


def write_manifest(path: Path | str, manifest: Manifest) -> None:
    """Write a manifest, whole or not at all."""
    write_json(path, dataclasses.asdict(manifest))
