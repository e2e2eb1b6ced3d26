"""ImageNet-1k, ILSVRC2012 (Russakovsky et al.: arXiv 1409.0575): folders of classes, or the original tars in place."""

from __future__ import annotations

import dataclasses
import functools
import os
import re
from collections import Counter
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from scalestudy.data.catalogue import ImageNet
from scalestudy.data.index import Index
from scalestudy.data.manifest import Split
from scalestudy.data.sources import EncodedImages, named_root, text_of
from scalestudy.data.sources.image_folder import EMPTY, of_folders
from scalestudy.data.sources.listing import NO_FILE, Unusable, labelled, left_out, listed, tar_part, whole
from scalestudy.data.tar import entries
from scalestudy.errors import UserError
from scalestudy.spec.config import Site

TRAIN_TAR, HELD_OUT_TAR = "ILSVRC2012_img_train.tar", "ILSVRC2012_img_val.tar"
HELD_OUT_LIST = "LOC_val_solution.csv"
"""Kaggle's list of the classes of held-out images: `ILSVRC2012_val_00048981,n03995372 85 1 499 272`."""
WANTED = (
    f"{TRAIN_TAR} (138 GB, a tar of 1,000 tars) and {HELD_OUT_TAR} (6.3 GB), never unpacked, with Kaggle's {HELD_OUT_LIST}; "
    "or train/<class>/*.JPEG and val/<class>/*.JPEG (1,281,167 and 50,000 files, 145 GB)"
)


def provide(spec: ImageNet, site: Site) -> EncodedImages:
    """All images, classes numbered in the order of their WordNet ids."""
    root = named_root(spec, site, WANTED)
    if not (root / TRAIN_TAR).is_file():
        return of_folders(root, WANTED, spec.on_error)
    if not (root / HELD_OUT_TAR).is_file():
        raise UserError(f"{TRAIN_TAR} is there, but not {HELD_OUT_TAR}", str(root), f"put these files there: {WANTED}")
    classes, train, wrong = _train(root / TRAIN_TAR)
    test, unusable = tar_part(root / HELD_OUT_TAR)
    wrong += [Unusable(f"{HELD_OUT_TAR}: {name}", why) for name, why in unusable]
    lines = left_out(wrong, root, spec.on_error)
    stems = [Path(test.path(number)).stem for number in range(len(test))]
    test = dataclasses.replace(test, labels=_held_out_labels(root, stems, classes))
    containers: dict[Split, list[str]] = {"train": [TRAIN_TAR], "test": [HELD_OUT_TAR]}
    return EncodedImages({"train": train, "test": test}, len(classes), root=root, containers=containers, left_out=lines)


def _train(tar: Path) -> tuple[list[str], Index, list[Unusable]]:
    """Classes, the byte ranges of their images within the tar of tars, and entries that cannot be used."""
    named = [entry for entry in sorted(entries(tar)) if entry.name.endswith(b".tar")]
    wrong = [Unusable(f"{tar.name}: {os.fsdecode(one.name)}", NO_FILE) for one in named if not one.is_file]
    inner = [entry for entry in named if entry.is_file]
    if not inner:
        raise UserError("holds no tar per class", str(tar), f"put these files there: {WANTED}")
    classes = [Path(os.fsdecode(member.name)).stem for member in inner]
    if twice := next((name for name, times in Counter(classes).items() if times > 1), None):
        raise UserError(f"holds the class {twice} twice", str(tar), "copy it again")
    jobs = [functools.partial(tar_part, tar, one.start, one.size) for one in inner]
    indexes: dict[str, Index] = {}
    for name, (images, unusable) in zip(classes, listed(f"listing {tar.name}", jobs), strict=True):
        place = f"{tar.name}: {name}.tar"
        wrong += [Unusable(f"{place}: {one.name}", one.why) for one in unusable]
        if len(images):
            indexes[name] = labelled(images, len(indexes))
        else:
            wrong.append(Unusable(place, EMPTY))
    return list(indexes), whole(list(indexes.values()), wrong, tar, WANTED), wrong


def _held_out_labels(root: Path, stems: list[str], classes: list[str]) -> NDArray[np.int64]:
    """int64 [images] from HELD_OUT_LIST; UserError where it is not there, or does not fit."""
    by_stem = _by_stem(text_of(root / HELD_OUT_LIST, WANTED).splitlines(), root / HELD_OUT_LIST)
    number = {wordnet_id: label for label, wordnet_id in enumerate(classes)}
    wrong = next((stem for stem in stems if by_stem.get(stem) not in number), None)
    if wrong is not None:
        what = f"`{by_stem[wrong]}` is not a class of {TRAIN_TAR}" if wrong in by_stem else "is not listed"
        raise UserError(f"{wrong}: {what}", str(root / HELD_OUT_LIST), "copy the list again")
    return np.array([number[by_stem[stem]] for stem in stems], np.int64)


def _by_stem(lines: list[str], where: Path) -> dict[str, str]:
    """The class of each image, from rows as Kaggle has them; UserError where two rows contradict each other."""
    by_stem: dict[str, str] = {}
    for number, line in enumerate(lines, 1):
        match = re.match(r"([^,\s]+),(n\d+)", line)
        if match and by_stem.setdefault(match[1], match[2]) != match[2]:
            what = f"gives {match[1]} the class {match[2]}, and an earlier line gives it {by_stem[match[1]]}"
            raise UserError(what, f"{where}:{number}", "copy the list again")
    return by_stem
