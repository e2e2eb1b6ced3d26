"""Held-out accuracy and AUROC, every sample counted once over all ranks."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import nn

from scalestudy.data.load.dataset import Dataset
from scalestudy.data.load.normalise import normalise
from scalestudy.data.load.sampler import evaluation_share
from scalestudy.errors import UserError
from scalestudy.models import outputs
from scalestudy.spec.run import RunSpec
from scalestudy.strategies.base import World

BATCH = 256


@torch.no_grad()
def evaluate(module: nn.Module, data: Dataset, spec: RunSpec, world: World, dtype: torch.dtype) -> dict[str, Any]:
    """`{"accuracy": …, "auroc": …, "loss": …}` over the whole held-out set, the same on every rank.

    Multi-label data has no accuracy, and `auroc_per_label` beside the mean: None for a label with one class only.
    Where anything is not finite there are no values, and `doubt` says why: NaN has no rank among scores, and the first
    class would get it.
    BatchNorm's running statistics, which are each rank's own, are averaged over ranks first.
    """
    average_buffers(module, world)
    module.eval()
    share = evaluation_share(data.samples, world.rank, world.ranks)
    scores: list[np.ndarray] = []
    labels: list[np.ndarray] = []
    loss = 0.0
    for begin in range(0, len(share), BATCH):
        indices = share[begin : begin + BATCH]
        x, y = data.batch(indices, size=spec.loader.size, augment="none", seed=spec.seed, epoch=0, train=False)
        y = y.to(world.device)
        prediction = outputs.predictions(module(normalise(x, dtype, world.device)))
        loss += float(outputs.loss(prediction, y, data.task)) * len(indices)
        scores.append(prediction.float().cpu().numpy())
        labels.append(y.cpu().numpy())
    module.train()
    parts = _gathered((np.concatenate(scores), np.concatenate(labels), loss) if scores else None, world)
    score = np.concatenate([part[0] for part in parts])
    label = np.concatenate([part[1] for part in parts])
    mean_loss = sum(part[2] for part in parts) / len(label)
    if doubt := _doubt(score, label, mean_loss):
        return {"accuracy": None, "auroc": None, "loss": None, "doubt": doubt}
    if data.task == "multilabel":
        each = auroc_per_label(score, label)
        there = [value for value in each if value is not None]
        mean = float(np.mean(there)) if there else None
        return {"accuracy": None, "auroc": mean, "auroc_per_label": each, "loss": mean_loss}
    return {"accuracy": float((score.argmax(axis=1) == label).mean()), "auroc": None, "loss": mean_loss}


def _doubt(score: np.ndarray, label: np.ndarray, loss: float) -> str | None:
    """Why the scores of all ranks, [samples, classes], mean nothing; None where they do."""
    for what, values in (("a score", score), ("a label", label)):
        wrong = int((~np.isfinite(values)).reshape(len(values), -1).any(axis=1).sum())
        if wrong:
            return f"{wrong:,} of {len(values):,} held-out samples have {what} that is not finite"
    return None if math.isfinite(loss) else "the held-out loss is not finite"


def auroc_per_label(score: np.ndarray, label: np.ndarray) -> list[float | None]:
    """Area under the ROC curve of each label; scores and 0/1 labels [samples, labels]. None where one class is missing."""
    from sklearn.metrics import roc_auc_score

    both = [0 < label[:, k].sum() < len(label) for k in range(label.shape[1])]
    return [float(roc_auc_score(label[:, k], score[:, k])) if there else None for k, there in enumerate(both)]


def label_weights(data: Dataset) -> outputs.LabelWeights:
    """For each label of multi-label training data, the share of samples without it, and of those with it.

    So positives and negatives of a label weigh the same in all (Rajpurkar et al., CheXNet, arXiv 1711.05225, 2.1).
    Raises UserError where the labels are not known before they are read, or have one class per sample.
    """
    labels = getattr(data, "labels", None)
    if data.task != "multilabel" or labels is None:
        what = "weighs labels by how often they occur, which needs multi-label data whose labels are known beforehand"
        raise UserError(f"`weighted_loss` {what}", "train.weighted_loss", "leave it away")
    share = torch.from_numpy(np.asarray(labels, np.float32).mean(axis=0))
    return 1 - share, share


def average_buffers(module: nn.Module, world: World) -> None:
    """Make floating-point buffers their mean over ranks."""
    if world.workers is None or world.ranks == 1:
        return
    for buffer in module.buffers():
        if buffer.is_floating_point():
            dist.all_reduce(buffer, group=world.workers)
            buffer.div_(world.ranks)


def _gathered(part: Any, world: World) -> list[Any]:
    if world.workers is None or world.ranks == 1:
        return [part]
    parts: list[Any] = [None] * world.ranks
    dist.all_gather_object(parts, part, group=world.workers)
    return [part for part in parts if part is not None]
