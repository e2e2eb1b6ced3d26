"""The manifest of a dataset: what was stored, measured from its indexes and files."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np

from scalestudy.data.index import Index, fingerprint
from scalestudy.data.manifest import INDEX, MAX_LISTED, Manifest, Split, SplitInfo, Task
from scalestudy.data.prepare.select import Selection
from scalestudy.data.scale import wanted_samples
from scalestudy.data.sources import EncodedImages, Generated, Labels
from scalestudy.errors import UserError
from scalestudy.files import canonical_json, sha256_text


def describe_live(manifest: Manifest, scale: float | str, source: Generated) -> Manifest:
    """Samples made while they are read: nothing is stored; `data.scale` sets how many samples there are."""
    counts = dict(source.samples)
    counts["train"] = wanted_samples(scale, counts["train"], source.sample_bytes)
    infos: dict[str, Any] = {split: SplitInfo(count, count * source.sample_bytes) for split, count in counts.items()}
    recipe = sha256_text(f"{manifest.id} {canonical_json(manifest.spec)}")
    return dataclasses.replace(manifest, **infos, **shape_of(source.shape), task=source.task, fingerprint=recipe)


def describe_pictures(
    manifest: Manifest, source: EncodedImages, selection: dict[Split, Selection],
    indexes: dict[Split, Index], left_out: list[str], shards: dict[Split, int],
) -> Manifest:  # fmt: skip
    """The manifest completed from the indexes; UserError where a split or a class has no readable image.

    `shards`: files of each split that hold many samples each.
    """
    for split, index in indexes.items():
        if not len(index):
            what = f"none of the images of {split} can be read; the first: {left_out[0]}"
            raise UserError(what, str(source.root or manifest.id), "check whether these files are images")
    planned, labels = selection["train"].labels, indexes["train"].labels
    lost = np.setdiff1d(planned, labels) if planned.ndim == 1 else planned[:0]
    if len(lost):  # the model would have an output that is never trained
        first = source.name("train", int(np.flatnonzero(source.indexes["train"].labels == lost[0])[0]))
        more = f" (and of {len(lost) - 1:,} more classes)" if len(lost) > 1 else ""
        what = f"none of the training images of its class can be read{more}"
        raise UserError(what, first, "replace them, or remove the folder of the class")
    left_out = [*source.left_out, *left_out]
    infos: dict[str, Any] = {
        split: SplitInfo(len(index), int(index.bytes.sum()), shards[split]) for split, index in indexes.items()
    }
    return dataclasses.replace(
        manifest,
        **infos,
        task=task_of(labels),
        channels=3,
        index="" if manifest.format == "raw" else INDEX,
        fingerprint=fingerprint(indexes),
        left_out=len(left_out),
        left_out_list=left_out[:MAX_LISTED],
    )


def shape_of(shape: tuple[int, ...]) -> dict[str, Any]:
    """Channels, height and width of samples [C, H, W]; other shapes have no height and width.

    Both are floats, as a manifest that is read has them: written again, it has the same bytes.
    """
    height, width = map(float, shape[1:]) if len(shape) == 3 else (None, None)
    return {"channels": shape[0] if shape else 1, "height": height, "width": width}


def task_of(labels: Labels) -> Task:
    """`multilabel` where a sample has any number of labels."""
    return "multilabel" if labels.ndim == 2 else "classification"
