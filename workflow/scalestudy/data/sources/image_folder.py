"""The user's own JPEG and PNG files in one folder per class, used where they lie."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from scalestudy.data.catalogue import ImageFolder
from scalestudy.data.manifest import Split
from scalestudy.data.sources import Labels, Pictures
from scalestudy.errors import Skipped, UserError
from scalestudy.spec.config import Site

FOLDERS: dict[Split, str] = {"train": "train", "test": "val"}
SUFFIXES = (".jpg", ".jpeg", ".png")
WANTED = (
    "train/<class>/*.jpg and val/<class>/*.jpg (or .png); "
    "for ImageNet-1k 1,281,167 and 50,000 files of 1,000 classes, about 145 GB"
)


def provide(spec: ImageFolder, site: Site) -> Pictures:
    """All pictures below `train` and `val`, classes numbered in the order of their names."""
    named = spec.root if spec.root is not None else site.data_roots.get("image_folder")
    if named is None:
        keys = "data.root, or data_roots.image_folder in the profile's site.yaml,"
        raise Skipped(f"no folder of images is named: let {keys} name one that holds {WANTED}")
    root = Path(named).absolute()
    classes = _classes(root / "train")
    labels: dict[Split, Labels] = {}
    paths: dict[Split, list[str]] = {}
    sizes: dict[Split, NDArray[np.int64]] = {}
    for split, folder in FOLDERS.items():
        if unknown := sorted(set(_classes(root / folder)) - set(classes)):
            raise UserError(f"class `{unknown[0]}` is not among those of train", str(root / folder), "name them alike")
        per_class = [_pictures(root / folder / name) for name in classes]
        if not any(per_class):
            raise UserError("holds no pictures in folders of classes", str(root / folder), f"put into {root} {WANTED}")
        labels[split] = np.repeat(np.arange(len(classes)), [len(found) for found in per_class])
        paths[split] = [
            f"{folder}/{name}/{file}" for name, found in zip(classes, per_class, strict=True) for file, _ in found
        ]
        sizes[split] = np.array([size for found in per_class for _, size in found], np.int64)

    def read(split: Split, index: int) -> bytes:
        return (root / paths[split][index]).read_bytes()

    return Pictures(labels, read, len(classes), root=root, paths=paths, sizes=sizes)


def _classes(folder: Path) -> list[str]:
    try:
        with os.scandir(folder) as entries:
            return sorted(entry.name for entry in entries if entry.is_dir() and not entry.name.startswith("."))
    except OSError as error:
        raise UserError(
            f"cannot be listed: {error.strerror}", str(folder), f"put into {folder.parent} {WANTED}"
        ) from None


def _pictures(folder: Path) -> list[tuple[str, int]]:
    """Name and size of each picture in a folder, in the order of names."""
    try:
        with os.scandir(folder) as entries:
            return sorted(
                (entry.name, entry.stat().st_size) for entry in entries if entry.name.lower().endswith(SUFFIXES)
            )
    except FileNotFoundError:  # a class may have no held-out pictures
        return []
