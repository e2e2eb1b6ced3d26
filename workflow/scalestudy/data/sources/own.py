"""A map-style dataset of the user's own, from config/extensions/."""

from __future__ import annotations

import json
import operator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from scalestudy.data.catalogue import OwnData
from scalestudy.data.manifest import Manifest, Split
from scalestudy.data.scale import chosen, wanted_samples
from scalestudy.data.sources import Generated
from scalestudy.data.sources.samples import ArrayBatch, TensorDataset
from scalestudy.errors import UserError
from scalestudy.extensions import blamed_on, load_class
from scalestudy.spec.config import Site
from scalestudy.spec.layout import EXTENSIONS

CONTRACT = "it is called with `train` and the kwargs, has a length, and its items are (array, label)"


def provide(spec: OwnData, site: Site) -> Generated:
    """Described by its `len`, its first item, and its attribute `classes` (a number, or names).

    Without `classes`, all labels are read: those in its attribute `targets`, else those of all items.
    """
    train, test = _Items(spec, "train"), _Items(spec, "test")
    x, y = train.item(0)
    classes = getattr(train.items, "classes", None)
    if y.ndim:
        check_multilabel(y, train.file)
        classes = y.numel()
    elif classes is None:
        labels = train.targets()
        if labels is None:
            labels = np.array([int(train.item(index)[1]) for index in range(len(train.items))])
        classes = int(labels.max()) + 1
    else:
        with train._blamed(f"`classes` of `{train.name}`"):
            classes = len(classes) if hasattr(classes, "__len__") else operator.index(classes)
    counts: dict[Split, int] = {"train": len(train.items), "test": len(test.items)}
    return Generated(counts, tuple(x.shape), x.nbytes, classes, task="multilabel" if y.ndim else "classification")


def check_labels(labels: NDArray[np.int64], classes: int, where: Path, remedy: str) -> None:
    """Raise UserError where a model with an output per class could not be trained on these labels."""
    wrong = labels[(labels < 0) | (labels >= classes)]
    if len(wrong):
        what = f"its `classes` is {classes}, but a sample has the label {wrong[0]}: labels are 0 to {classes - 1}"
        raise UserError(what, str(where), remedy)


def check_multilabel(labels: torch.Tensor, file: Path) -> None:
    """Raise UserError where multi-label targets are not 0 or 1."""
    wrong = labels[(labels != 0) & (labels != 1)]
    if len(wrong):
        what = f"a label that is an array holds 0 or 1 for each class, and one holds {float(wrong[0]):g}"
        raise UserError(what, str(file), "return a number as the label where each item has one class")


class OwnDataset(TensorDataset):
    """Items of the user's class, stacked; dtype as the class gives it."""

    def __init__(self, manifest: Manifest, split: Split) -> None:
        super().__init__(manifest, split)
        spec = OwnData.model_validate_json(json.dumps(manifest.spec))
        self._items = _Items(spec, split)
        labels = self._items.targets()
        if labels is not None:
            remedy = "correct `targets` or `classes`, and prepare it again"
            check_labels(labels, manifest.classes, self._items.file, remedy)
        else:
            labels = np.zeros(len(self._items.items), np.int64)
        scale, sample_bytes = spec.scale if split == "train" else 1.0, manifest.split(split).bytes / self.samples
        if wanted_samples(scale, len(labels), sample_bytes) != self.samples:
            what = f"it has {len(labels):,} items for {split}, another number than when it was prepared"
            raise UserError(what, str(self._items.file), "prepare the data again: scalestudy prepare --again")
        self._order = chosen(labels, self.samples)

    def gather(self, indices: NDArray[np.int64]) -> ArrayBatch:
        items, where = [self._items.item(index) for index in self._order[indices].tolist()], self._items.file
        try:
            x, y = torch.stack([x for x, _ in items]), torch.stack([y for _, y in items])
        except RuntimeError as error:
            raise UserError(f"its items differ in shape: {error}", str(where)) from None
        if self.task == "multilabel":
            check_multilabel(y, where)
            return x.numpy(), y.float().numpy()
        labels = y.long()
        if not torch.equal(labels.double(), y.double()):
            wrong = float(y[labels != y][0])
            raise UserError(f"a label is {wrong:g}, and classes are whole numbers", str(where), "correct the labels")
        check_labels(labels.numpy(), self.classes, where, "correct the labels or `classes`, and prepare it again")
        return x.numpy(), labels.numpy()


open_split = OwnDataset


class _Items:
    """An instance of the user's class for one split; an error in the user's file becomes a UserError."""

    def __init__(self, spec: OwnData, split: Split) -> None:
        self.name, self.file = spec.import_, EXTENSIONS / f"{spec.import_.partition(':')[0]}.py"
        dataset_class = load_class(self.file, spec.source)
        with self._blamed(f"making `{self.name}` for {split}"):
            self.items: Any = dataset_class(train=split == "train", **spec.kwargs)
            if len(self.items) < 1:
                raise ValueError(f"it has no items for {split}")

    def _blamed(self, doing: str) -> AbstractContextManager[None]:
        return blamed_on(self.file, doing, f"raised by {doing}; correct the class: {CONTRACT}")

    def item(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        with self._blamed(f"item {index} of `{self.name}`"):
            x, y = self.items[index]
            array, label = torch.as_tensor(np.asarray(x)), torch.as_tensor(np.asarray(y))
            if not hasattr(x, "shape") or not (array.dtype == torch.uint8 or array.is_floating_point()):
                raise TypeError("it is no array of uint8 or of floats")
        return array, label

    def targets(self) -> NDArray[np.int64] | None:
        """[samples] classes from the attribute `targets`, where it has one."""
        if (targets := getattr(self.items, "targets", None)) is None:
            return None
        with self._blamed(f"`targets` of `{self.name}`"):
            labels = np.asarray(targets).astype(np.int64)
        return labels if labels.ndim == 1 and len(labels) == len(self.items) else None
