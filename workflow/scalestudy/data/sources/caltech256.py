"""Caltech-256 (Griffin, Holub, Perona: Caltech technical report 7694, 2007), used where it lies."""

from __future__ import annotations

import numpy as np

from scalestudy.data.catalogue import Caltech256
from scalestudy.data.sources import EncodedImages, named_root
from scalestudy.data.sources.image_folder import classes_in
from scalestudy.data.sources.listing import NESTED, labelled, left_out, whole
from scalestudy.spec.config import Site

FOLDER = "256_ObjectCategories"
HELD_OUT_EVERY = 5
"""There is no official split; every fifth image of a class is held out."""
WANTED = f"{FOLDER}/<class>/*.jpg (256_ObjectCategories.tar unpacked: 30,607 files of 257 classes, 1.2 GB)"


def provide(spec: Caltech256, site: Site) -> EncodedImages:
    """All images, classes numbered in the order of their names, the last one being clutter."""
    root = named_root(spec, site, WANTED)
    root = root if root.name == FOLDER else root / FOLDER
    remedy = f"put these files into {root.parent}: {WANTED}"
    classes, wrong = classes_in(root, "", remedy)
    wrong = [one for one in wrong if one.why != NESTED]  # the archive has such a folder (056.dog), beside its images
    parts = [labelled(part, label) for label, part in enumerate(classes.values())]
    everything = whole(parts, wrong, root, remedy)
    first = np.concatenate([[0], np.cumsum(np.bincount(everything.labels, minlength=len(classes)))])
    held_out = (np.arange(len(everything)) - first[everything.labels]) % HELD_OUT_EVERY == HELD_OUT_EVERY - 1
    train, test = (everything.taken(np.flatnonzero(chosen)) for chosen in (~held_out, held_out))
    lines = left_out(wrong, root, spec.on_error)
    return EncodedImages({"train": train, "test": test}, len(classes), root=root, left_out=lines)
