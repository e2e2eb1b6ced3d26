"""The 8x8 digits that come with scikit-learn: real handwriting, no download."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from scalestudy.data.catalogue import Digits
from scalestudy.data.scale import stratified_order
from scalestudy.data.sources import Arrays
from scalestudy.errors import Skipped
from scalestudy.spec.config import Site

TRAINING_SAMPLES = 1437
FILE = Path("datasets", "data", "digits.csv.gz")
"""In the package of scikit-learn: a line per sample, its 64 grey values and its label."""


def provide(spec: Digits, site: Site) -> Arrays:
    """1,437 samples for training and 360 held out, classes in equal proportions; uint8 [samples, 1, 8, 8], 0..255."""
    grey, labels = stored()
    pixels = np.rint(grey * (255 / 16)).astype(np.uint8).reshape(-1, 1, 8, 8)  # stored as 0..16
    order = stratified_order(labels)
    train, test = order[:TRAINING_SAMPLES], order[TRAINING_SAMPLES:]
    return Arrays({"train": (pixels[train], labels[train]), "test": (pixels[test], labels[test])}, classes=10)


def stored() -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """[samples, 64] grey values of 0 to 16, and [samples] labels: what `sklearn.datasets.load_digits` returns.

    Its file is read without importing scikit-learn, which takes longer than all else that is done here.
    """
    package = importlib.util.find_spec("sklearn")
    if package is None or package.origin is None:
        raise Skipped("the digits come with scikit-learn, which is not installed: pip install scikit-learn")
    table = np.loadtxt(Path(package.origin).parent / FILE, delimiter=",", dtype=np.int64)
    return table[:, :-1], table[:, -1]
