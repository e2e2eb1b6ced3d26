"""The user's own JPEG and PNG files in one folder per class, used where they lie."""

from __future__ import annotations

import unicodedata
from pathlib import Path

from scalestudy.data.catalogue import ImageFolder
from scalestudy.data.index import Index
from scalestudy.data.manifest import Split
from scalestudy.data.sources import EncodedImages, named_root
from scalestudy.data.sources.listing import Unusable, folders_in, folders_listed, labelled, left_out, whole
from scalestudy.spec.config import Site

EMPTY = "a class without images: none in it is named .jpg, .jpeg or .png"
UNKNOWN = "not among the classes of train: name them alike"
FOLDERS: dict[Split, str] = {"train": "train", "test": "val"}
WANTED = "train/<class>/*.jpg and val/<class>/*.jpg (or .png)"


def provide(spec: ImageFolder, site: Site) -> EncodedImages:
    """All images below `train` and `val`, classes numbered in the order of their names."""
    return of_folders(named_root(spec, site, WANTED), WANTED, spec.on_error)


def of_folders(root: Path, layout: str, on_error: str) -> EncodedImages:
    """The images below `root`; UserError with the expected `layout` where there are none."""
    remedy = f"put these files into {root}: {layout}"
    wrong: list[Unusable] = []
    numbers: dict[str, int] = {}
    indexes: dict[Split, Index] = {}
    for split, folder in FOLDERS.items():
        parts, unusable = classes_in(root, folder, remedy)
        # macOS writes letters with accents as two characters, where other systems write one.
        classes = {name: unicodedata.normalize("NFC", name) for name in parts}
        numbers = numbers or {name: number for number, name in enumerate(dict.fromkeys(classes.values()))}
        wrong += [*unusable, *(Unusable(f"{folder}/{name}", UNKNOWN) for name in parts if classes[name] not in numbers)]
        images = [labelled(part, numbers[classes[name]]) for name, part in parts.items() if classes[name] in numbers]
        indexes[split] = whole(images, wrong, root / folder, remedy)
    lines = left_out(wrong, root, on_error)
    return EncodedImages(indexes, len(numbers), root=root, left_out=lines)


def classes_in(root: Path, folder: str, remedy: str) -> tuple[dict[str, Index], list[Unusable]]:
    """The images of each class by name and in that order; classes without images, and entries that cannot be used."""
    names = folders_in(root, folder, remedy)
    places = [f"{folder}/{name}".lstrip("/") for name in names]
    parts = folders_listed(f"listing {folder}".rstrip(), root, places)
    wrong = [Unusable(place, EMPTY) for place, (images, _) in zip(places, parts, strict=True) if not len(images)]
    indexes = {name: images for name, (images, _) in zip(names, parts, strict=True) if len(images)}
    return indexes, [*wrong, *(one for _, unusable in parts for one in unusable)]
