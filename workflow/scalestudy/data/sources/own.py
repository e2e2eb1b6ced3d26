"""A map-style dataset of the user's own, from config/extensions/."""

from __future__ import annotations

from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from scalestudy.data.catalogue import OwnData
from scalestudy.data.index import check_labels
from scalestudy.data.manifest import Manifest, Split
from scalestudy.data.scale import chosen
from scalestudy.data.sources import Generated
from scalestudy.data.sources.samples import TensorDataset
from scalestudy.errors import UserError
from scalestudy.extensions import blamed_on, load_class
from scalestudy.spec.base import parse
from scalestudy.spec.config import Site
from scalestudy.spec.layout import EXTENSIONS

CONTRACT = "it is called with `train` and the kwargs, has a length, and its items are (array, label)"


def provide(spec: OwnData, site: Site) -> Generated:
    """Described by its `len`, its first item, and its attribute `classes` (a number, or names).

    Without `classes`, all labels are read: those in its attribute `targets`, else those of all items.
    """
    train, test = _made(spec, "train"), _made(spec, "test")
    x, y = _item(spec, train, 0)
    labels = _labels(spec, train)
    return Generated(
        {"train": len(train), "test": len(test)},
        tuple(x.shape),
        x.nbytes,
        classes=y.numel() if y.ndim else _classes(spec, train, labels),
        task="multilabel" if y.ndim else "classification",
    )


def open_split(manifest: Manifest, split: Split) -> OwnDataset:
    """One split of it."""
    spec, problems = parse(OwnData, manifest.spec)
    assert spec is not None, problems
    return OwnDataset(manifest, split, spec)


class OwnDataset(TensorDataset):
    """Items of the user's class, stacked; dtype as the class gives it."""

    def __init__(self, manifest: Manifest, split: Split, spec: OwnData) -> None:
        super().__init__(manifest, split)
        self._spec, self._items = spec, _made(spec, split)
        labels = _labels(spec, self._items)
        if labels is not None:
            check_labels(labels, manifest.classes, _where(spec), "correct `targets` or `classes`, and prepare it again")
        self._order = chosen(np.zeros(len(self._items), np.int64) if labels is None else labels, self.samples)

    def gather(self, indices: NDArray[np.int64]) -> tuple[torch.Tensor, torch.Tensor]:
        items = [_item(self._spec, self._items, index) for index in self._order[indices].tolist()]
        try:
            x = torch.stack([x for x, _ in items])
            y = torch.stack([y for _, y in items])
        except RuntimeError as error:
            raise UserError(
                f"items of `{self._spec.import_}` differ in shape: {error}", str(_where(self._spec))
            ) from None
        if self.task == "multilabel":
            return x, y.float()
        labels, where = y.long(), _where(self._spec)
        if not torch.equal(labels.double(), y.double()):
            wrong = float(y[labels != y][0])
            raise UserError(f"a label is {wrong:g}, and classes are whole numbers", str(where), "correct the labels")
        check_labels(labels.numpy(), self.classes, where, "correct the labels or `classes`, and prepare it again")
        return x, labels


def _where(spec: OwnData) -> Path:
    return EXTENSIONS / f"{spec.import_.partition(':')[0]}.py"


def _made(spec: OwnData, split: Split) -> Any:
    """An instance for one split; an error in the user's file becomes a UserError."""
    found = load_class(_where(spec), spec.import_.partition(":")[2])
    with _blamed(spec, f"making `{spec.import_}` for {split}"):
        items = found(train=split == "train", **spec.kwargs)
        if len(items) < 1:
            raise ValueError(f"it has no items for {split}")
    return items


def _blamed(spec: OwnData, doing: str) -> AbstractContextManager[None]:
    return blamed_on(_where(spec), doing, f"raised by {doing}; correct the class: {CONTRACT}")


def _item(spec: OwnData, items: Any, index: int) -> tuple[torch.Tensor, torch.Tensor]:
    with _blamed(spec, f"item {index} of `{spec.import_}`"):
        x, y = items[index]
        return torch.as_tensor(np.asarray(x)), torch.as_tensor(np.asarray(y))
    raise AssertionError("the block above returns or raises")


def _labels(spec: OwnData, items: Any) -> NDArray[np.int64] | None:
    """[samples] classes from the attribute `targets`, where it has one."""
    targets = getattr(items, "targets", None)
    if targets is None:
        return None
    with _blamed(spec, f"`targets` of `{spec.import_}`"):
        labels = np.asarray(targets).astype(np.int64)
    return labels if labels.ndim == 1 and len(labels) == len(items) else None


def _classes(spec: OwnData, items: Any, labels: NDArray[np.int64] | None) -> int:
    stated = getattr(items, "classes", None)
    if stated is not None:
        return int(stated) if isinstance(stated, int) else len(stated)
    if labels is None:
        labels = np.array([int(_item(spec, items, index)[1]) for index in range(len(items))])
    return int(labels.max()) + 1
