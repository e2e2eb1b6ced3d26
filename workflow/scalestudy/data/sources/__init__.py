"""Where data comes from: a module per source, named as the source, with one function.

    provide(spec, site) -> Arrays | Pictures | Live

It raises Skipped where the data cannot be had and nothing names a place for it, UserError where a place is named and
does not hold it. A module that provides Live also has `open_split(manifest, split) -> Dataset`.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from scalestudy.data.manifest import Split, Task

Labels = NDArray[np.int64]


@dataclass(frozen=True)
class Arrays:
    """All samples in memory: uint8 [samples, channels, height, width] and labels [samples], for each split."""

    splits: Mapping[Split, tuple[NDArray[np.uint8], Labels]]
    classes: int


@dataclass(frozen=True)
class Pictures:
    """Coded pictures, to be stored or used where they lie."""

    labels: Mapping[Split, Labels]
    """Class of each picture, by split."""
    read: Callable[[Split, int], bytes]
    """Coded bytes of one picture; called by several threads at once."""
    classes: int
    endless: bool = False
    """Whether `read` makes training pictures beyond those that have a label, sample i of class i modulo `classes`."""
    root: Path | None = None
    """Folder in which the files already lie; None where `read` makes them."""
    paths: Mapping[Split, list[str]] = field(default_factory=dict)
    """Path of each picture below `root`."""
    sizes: Mapping[Split, NDArray[np.int64]] = field(default_factory=dict)
    """Bytes of each picture below `root`."""


@dataclass(frozen=True)
class Live:
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
