"""The manifest of a dataset: small, written last, and all that a rule depends on. Imports no torch."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from pydantic import TypeAdapter, ValidationError

from scalestudy.errors import UserError
from scalestudy.files import finite, read_json, visible_texts, write_json

Split = Literal["train", "test"]
SPLITS: tuple[Split, Split] = ("train", "test")
Format = Literal["tensors", "files", "raw", "shards", "database"]
Payload = Literal["coded", "pixels"]
Task = Literal["classification", "multilabel"]

INDEX = "index.npz"
"""Name of the index of a dataset whose samples are files, shards, or records of a database."""


@dataclass(frozen=True)
class SplitInfo:
    """How much one split holds."""

    samples: int = 0
    bytes: int = 0
    """As stored, without indexes; of data made while reading, what reading all of it moves."""
    shards: int = 0
    """Files that hold many samples each: numbered shards, or containers that were there before."""


def replace_remedy(dataset: str) -> str:
    """How a damaged file of prepared data is mended."""
    return f"replace it, or make the data again: scalestudy prepare --again --out results/data/{dataset}/manifest.json"


@dataclass(frozen=True)
class SourceFiles:
    """The files of a source's folder, as they were when the data was made."""

    root: str
    listing: str
    """SHA-256 over names, sizes and modification times."""


@dataclass(frozen=True)
class Manifest:
    """The data that was prepared, or the reason why none was."""

    id: str
    status: Literal["ready", "skipped"]
    spec: dict[str, Any]
    """The DatasetSpec as plain data."""
    reason: str = ""
    """Why it was skipped and what to do; empty when ready."""
    format: Format = "tensors"
    """`tensors`: arrays of pixels, or samples made while reading; `files`: JPEG and PNG; `raw`: square images of
    pixels in one array; `shards`: byte ranges of larger files; `database`: one LMDB per split."""
    payload: Payload = "coded"
    """What a sample of shards or a database is: a coded image, or its pixels (uint8, height x width x 3)."""
    classes: int = 0
    task: Task = "classification"
    channels: int = 0
    train: SplitInfo = SplitInfo()
    test: SplitInfo = SplitInfo()
    bulk: str = ""
    """Folder of the data: relative to the manifest's folder where it lies in it, else absolute; empty: none."""
    index: str = ""
    """Index of the samples, placed like `bulk`; empty for `tensors` and `raw`."""
    containers: dict[str, list[str]] = field(default_factory=dict)
    """By split, the files below `bulk` that byte ranges lie in, where they were there before; empty: named by rule."""
    fingerprint: str = ""
    """SHA-256 over what is stored (images by their CRC-32) or, used where it lies, over its names and sizes."""
    source_files: SourceFiles | None = None
    """Compared when the data is used; None where no folder is named."""
    seconds: float | None = None
    """Duration of the preparation; None where it was resumed after a kill."""
    cpu_s: float | None = None
    """CPU time of all its threads, seconds; None like `seconds`."""
    bulk_bytes: int = 0
    """Of all files of the bulk, with what containers and indexes add."""
    width: float | None = None
    """Of samples of one size, pixels; None for coded images."""
    height: float | None = None
    """Like `width`."""
    left_out: int = 0
    """Images and links of the source that cannot be used, left out by `on_error: skip`."""
    left_out_list: list[str] = field(default_factory=list)
    """The first MAX_LISTED of them: name and what is wrong."""

    def split(self, name: Split) -> SplitInfo:
        """Samples and bytes of one split."""
        return self.train if name == "train" else self.test


_ADAPTER = TypeAdapter(Manifest)
MAX_LISTED = 100
"""Most things that a manifest lists as left out."""


def shard_names(manifest: Manifest, split: Split) -> list[str]:
    """Files of the shards below the bulk, as `shard` of the index counts them."""
    if manifest.containers:
        return manifest.containers[split]
    return [shard_name(split, number, manifest.payload) for number in range(manifest.split(split).shards)]


def shard_name(split: Split, number: int, payload: Payload) -> str:
    """`train-000012.tar`, or `.raw` for pixels."""
    return f"{split}-{number:06d}.{'tar' if payload == 'coded' else 'raw'}"


def database_key(sample: int) -> bytes:
    """Key of a sample in its split's LMDB environment: nine decimal digits."""
    return b"%09d" % sample


def bulk_folder(manifest_path: Path | str, manifest: Manifest) -> Path:
    """Where the data lies; nothing is there for data made while reading."""
    return Path(manifest_path).parent / manifest.bulk


def index_file(manifest_path: Path | str, manifest: Manifest) -> Path:
    """Where the index of the files lies."""
    return Path(manifest_path).parent / manifest.index


REMEDY = "delete it; it will be made again"


def read_manifest(path: Path | str) -> Manifest:
    """Read a manifest; UserError where there is none, or it is that of another version."""
    try:
        return _ADAPTER.validate_python(read_json(path))
    except ValidationError as error:
        first = error.errors()[0]
        key = ".".join(map(str, first["loc"]))
        raise UserError(f"is not a manifest: `{key}`: {first['msg']}", str(path), REMEDY) from None


def is_in_place(manifest: Manifest) -> bool:
    """Whether the data is used where it was found: only the index is ours, next to the manifest."""
    return manifest.index == INDEX and manifest.bulk not in ("", ".")


def write_manifest(path: Path | str, manifest: Manifest) -> None:
    """Write a manifest, whole or not at all."""
    write_json(path, visible_texts(finite(dataclasses.asdict(manifest))))
