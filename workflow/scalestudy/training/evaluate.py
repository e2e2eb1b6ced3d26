"""Held-out accuracy and AUROC, every sample counted once over all ranks."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import nn

from scalestudy.data.dataset import Dataset, normalise
from scalestudy.data.sampler import evaluation_share
from scalestudy.models import outputs
from scalestudy.spec.run import RunSpec
from scalestudy.strategies.base import World

BATCH = 256


@torch.no_grad()
def evaluate(
    module: nn.Module, data: Dataset, spec: RunSpec, world: World, dtype: torch.dtype
) -> dict[str, float | None]:
    """`{"accuracy": …, "auroc": …, "loss": …}` over the whole held-out set, the same on every rank.

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
    if data.task == "multilabel":
        return {"accuracy": None, "auroc": mean_auroc(score, label), "loss": mean_loss}
    return {"accuracy": float((score.argmax(axis=1) == label).mean()), "auroc": None, "loss": mean_loss}


def mean_auroc(score: np.ndarray, label: np.ndarray) -> float | None:
    """Area under the ROC curve, mean over the labels that have both classes; scores and 0/1 labels [samples, labels]."""
    from sklearn.metrics import roc_auc_score

    both = [k for k in range(label.shape[1]) if 0 < label[:, k].sum() < len(label)]
    return float(np.mean([roc_auc_score(label[:, k], score[:, k]) for k in both])) if both else None


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
