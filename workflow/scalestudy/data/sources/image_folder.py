"""The user's own JPEG and PNG files in one folder per class, used where they lie."""

from __future__ import annotations

import os
from pathlib import Path

from scalestudy.data.catalogue import ImageFolder
from scalestudy.data.index import Index
from scalestudy.data.manifest import Split
from scalestudy.data.sources import Pictures, named_root
from scalestudy.data.sources.listing import folder_part, listed, whole
from scalestudy.errors import UserError
from scalestudy.spec.config import Site

FOLDERS: dict[Split, str] = {"train": "train", "test": "val"}
WANTED = (
    "train/<class>/*.jpg and val/<class>/*.jpg (or .png); "
    "for ImageNet-1k 1,281,167 and 50,000 files of 1,000 classes, about 145 GB"
)


def provide(spec: ImageFolder, site: Site) -> Pictures:
    """All pictures below `train` and `val`, classes numbered in the order of their names."""
    return of_folders(named_root(spec, site, WANTED), WANTED)


def of_folders(root: Path, wanted: str) -> Pictures:
    """The pictures below `root`; UserError where they are not there, which says what is `wanted`."""
    remedy = f"put into {root} {wanted}"
    classes = class_folders(root / "train", remedy)
    indexes: dict[Split, Index] = {}
    for split, folder in FOLDERS.items():
        if unknown := sorted(set(class_folders(root / folder, remedy)) - set(classes)):
            raise UserError(f"class `{unknown[0]}` is not among those of train", str(root / folder), "name them alike")
        jobs = [
            (root / folder / name, name, lambda place=f"{folder}/{name}", label=label: folder_part(root, place, label))
            for label, name in enumerate(classes)
        ]
        indexes[split] = whole(listed(f"listing {folder}", jobs), root / folder, remedy)
    return Pictures(indexes, len(classes), root=root)


def class_folders(folder: Path, remedy: str) -> list[str]:
    """Names of the folders in a folder, in order; UserError where it cannot be listed."""
    try:
        with os.scandir(folder) as entries:
            return sorted(entry.name for entry in entries if entry.is_dir() and not entry.name.startswith("."))
    except OSError as error:
        raise UserError(f"cannot be listed: {error.strerror}", str(folder), remedy) from None
