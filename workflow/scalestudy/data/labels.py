"""Labels held against the number of classes that a manifest states. Imports no torch."""

from __future__ import annotations

from pathlib import Path

from scalestudy.data.index import Labels
from scalestudy.data.manifest import REMEDY
from scalestudy.errors import UserError


def check_labels(labels: Labels, classes: int, where: Path | str, remedy: str = REMEDY) -> None:
    """UserError where a model with an output per class could not be trained on these labels; one pass over them."""
    if labels.ndim == 2:
        if labels.shape[1] != classes:
            raise UserError(
                f"its `classes` is {classes}, but each sample has {labels.shape[1]} labels", str(where), remedy
            )
        return
    if not len(labels):
        return
    lowest, highest = int(labels.min()), int(labels.max())
    if lowest < 0 or highest >= classes:
        wrong = lowest if lowest < 0 else highest
        what = f"its `classes` is {classes}, but a sample has the label {wrong}: labels are 0 to {classes - 1}"
        raise UserError(what, str(where), remedy)
