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


def provide(spec: Digits, site: Site) -> Arrays:
    """1,437 samples for training and 360 held out, classes in equal proportions; uint8 [samples, 1, 8, 8], 0..255."""
    grey, labels = _stored()
    pixels = np.rint(grey * (255 / 16)).astype(np.uint8).reshape(-1, 1, 8, 8)  # stored as 0..16
    order = stratified_order(labels)
    train, test = order[:TRAINING_SAMPLES], order[TRAINING_SAMPLES:]
    return Arrays({"train": (pixels[train], labels[train]), "test": (pixels[test], labels[test])}, classes=10)


def _stored() -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """Grey values and labels from the file that scikit-learn reads them from: importing it would take seconds."""
    package = importlib.util.find_spec("sklearn")
    if package is None or package.origin is None:
        raise Skipped("the digits come with scikit-learn, which is not installed: pip install scikit-learn")
    rows = np.loadtxt(Path(package.origin).parent / "datasets/data/digits.csv.gz", delimiter=",")
    return rows[:, :-1], rows[:, -1].astype(np.int64)
