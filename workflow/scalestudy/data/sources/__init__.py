"""Where data comes from: a module per source, named as the source, with one function.

    provide(spec, site) -> Arrays | EncodedImages | Generated

It raises Skipped where the data is not available and no place for it is configured, UserError where a configured place
does not hold it. A module that provides Generated also has `open_split(manifest, split) -> Dataset`.
"""

from __future__ import annotations

import functools
import importlib
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from scalestudy.data.index import Index, Labels
from scalestudy.data.manifest import Split, Task
from scalestudy.errors import Skipped, UserError
from scalestudy.files import expanded
from scalestudy.site_fault import site_file

if TYPE_CHECKING:
    from scalestudy.spec.config import Site


@dataclass(frozen=True)
class Arrays:
    """All samples in memory: uint8 [samples, channels, height, width] and their labels, for each split."""

    splits: Mapping[Split, tuple[NDArray[np.uint8], Labels]]
    classes: int


@dataclass(frozen=True)
class EncodedImages:
    """Coded images, to be stored or used where they lie."""

    indexes: Mapping[Split, Index]
    """Labels of all images; for existing images also name, size and, in containers, place."""
    classes: int
    make: Callable[[Split, int], bytes] | None = None
    """Makes the coded bytes of one image, called by several threads at once; None where they lie below `root`."""
    endless: bool = False
    """Whether `make` makes training images beyond those that have a label, sample i of class i modulo `classes`."""
    root: Path | None = None
    """Folder in which the files, or the containers, already lie."""
    containers: Mapping[Split, list[str]] = field(default_factory=dict)
    """Files below `root` that hold the images as byte ranges, as `shard` of the index counts them."""
    left_out: Sequence[str] = ()
    """What `on_error: skip` left out of `indexes`: name and reason."""

    def read(self, split: Split, number: int) -> bytes:
        """Coded bytes of one image; OSError where it cannot be read."""
        if self.make is not None:
            return self.make(split, number)
        assert self.root is not None
        index = self.indexes[split]
        if not self.containers:
            return (self.root / index.path(number)).read_bytes()
        descriptor = _opened(self.root / self.containers[split][index.shard[number]])
        data = os.pread(descriptor, int(index.bytes[number]), int(index.start[number]))
        if len(data) != index.bytes[number]:
            raise OSError("the tar ends within it")
        return data

    def name(self, split: Split, number: int) -> str:
        """The name of an image in messages."""
        if self.root is None:
            return f"{split} {number}"
        index = self.indexes[split]
        container = f"{self.containers[split][index.shard[number]]}: " if self.containers else ""
        return f"{self.root}/{container}{index.path(number)}"


@functools.cache
def _opened(path: Path) -> int:
    """A descriptor that stays open: a container is read in many small pieces."""
    return os.open(path, os.O_RDONLY)


def named_root(spec: Any, site: Site, layout: str) -> Path:
    """The folder that `data.root`, or else the site's `data_roots`, names for a source.

    Raises Skipped where neither does, UserError where it is not a folder; both state the expected `layout`.
    """
    named, key = spec.root, "data.root"
    if named is None:
        named, key = site.data_roots.get(spec.source), f"data_roots.{spec.source}"
    if named is None:
        keys = f"data.root, or data_roots.{spec.source} in {site_file()},"
        raise Skipped(f"no folder of {spec.source} is configured: set {keys} to one that holds {layout}")
    root = expanded(named).absolute()
    if not root.is_dir():
        raise UserError(f"{key} names a folder that is not there", str(root), f"put these files there: {layout}")
    return root


def text_of(path: Path, layout: str) -> str:
    """A list of a source; UserError where it cannot be read or is not text."""
    try:
        return path.read_text(encoding="utf-8-sig")
    except OSError as error:
        raise UserError(f"cannot be read: {error.strerror}", str(path), f"put these files there: {layout}") from None
    except UnicodeDecodeError as error:
        raise UserError(f"is not UTF-8 text (byte {error.start:,})", str(path), "copy it again") from None


@dataclass(frozen=True)
class Generated:
    """Samples made while they are read; nothing is stored."""

    samples: Mapping[Split, int]
    shape: tuple[int, ...]
    """Shape of one sample."""
    sample_bytes: int
    classes: int
    task: Task = "classification"


def source_module(spec: Mapping[str, Any]) -> ModuleType:
    """The module of the source that a DatasetSpec, as plain data, names."""
    return importlib.import_module(f"{__name__}.{'own' if 'import' in spec else spec['source']}")
