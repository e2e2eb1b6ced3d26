"""The user's own JPEG and PNG files in one folder per class, used where they lie."""

from __future__ import annotations

from scalestudy.data.catalogue import ImageFolder
from scalestudy.data.index import Index
from scalestudy.data.manifest import Split
from scalestudy.data.sources import Pictures, named_root
from scalestudy.data.sources.listing import (
    Odd,
    Root,
    folders_in,
    folders_listed,
    labelled,
    left_out,
    whole,
)
from scalestudy.spec.config import Site

FOLDERS: dict[Split, str] = {"train": "train", "test": "val"}
WANTED = (
    "train/<class>/*.jpg and val/<class>/*.jpg (or .png); "
    "for ImageNet-1k 1,281,167 and 50,000 files of 1,000 classes, about 145 GB"
)


def provide(spec: ImageFolder, site: Site) -> Pictures:
    """All images below `train` and `val`, classes numbered in the order of their names."""
    return of_folders(Root.of(named_root(spec, site, WANTED), site), WANTED, spec.on_error)


def of_folders(root: Root, wanted: str, on_error: str) -> Pictures:
    """The images below `root`; UserError where they are not there, which says what is `wanted`."""
    remedy = f"put these files into {root.path}: {wanted}"
    odd: list[Odd] = []
    numbers: dict[str, int] = {}
    indexes: dict[Split, Index] = {}
    for split, folder in FOLDERS.items():
        parts, odd_here = classes_in(root, folder, remedy)
        numbers = numbers or {name: number for number, name in enumerate(parts)}
        for name in parts.keys() - numbers.keys():
            odd_here.append(Odd(f"{folder}/{name}", "is not among the classes of train: name them alike"))
        known = [labelled(part, numbers[name]) for name, part in parts.items() if name in numbers]
        indexes[split] = whole(known, odd_here, root.path / folder, remedy)
        odd += sorted(odd_here)
    return Pictures(indexes, len(numbers), root=root.path, left_out=left_out(odd, root, on_error))


def classes_in(root: Root, folder: str, remedy: str) -> tuple[dict[str, Index], list[Odd]]:
    """The images of each class that has a folder in a folder, by name and in that order; and what is odd there."""
    names, odd = folders_in(root, folder, remedy)
    places = {name: f"{folder}/{name}".lstrip("/") for name in names}
    found = folders_listed(f"listing {folder}".rstrip(), root, list(places.values()))
    parts = dict(zip(names, found, strict=True))
    for name, part in parts.items():
        odd += part.odd
        if not len(part.index):
            odd.append(Odd(places[name], "is a class without images: none in it is named .jpg, .jpeg or .png"))
    return {name: part.index for name, part in parts.items() if len(part.index)}, odd
