"""When held-out samples are evaluated, and their accuracy and AUROC: every sample counts once over all ranks."""

from __future__ import annotations

import math
import time
from contextlib import nullcontext
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import nn

from scalestudy.data.catalogue import OwnData
from scalestudy.data.load.dataset import Dataset
from scalestudy.data.load.normalise import normalise
from scalestudy.models import outputs
from scalestudy.models.catalogue import OwnModel
from scalestudy.spec.run import RunSpec
from scalestudy.strategies.base import World
from scalestudy.training.recorder import Recorder
from scalestudy.training.replica import Replica
from scalestudy.training.report import Evaluation
from scalestudy.training.world import gathered

BATCH = 256
SAME = 1e-6
"""Scores that differ by less than this, relative to the largest, differ by rounding."""


class Evaluator:
    """The evaluations of one rank, which all ranks make together."""

    def __init__(self, replica: Replica, recorder: Recorder) -> None:
        self.replica, self.recorder, self.schedule = replica, recorder, recorder.schedule
        self.spec, self.world, self.data = replica.spec, replica.world, replica.data

    def due(self, done: int) -> bool:
        """Whether the spec asks for an evaluation after so many steps, and it has not been made."""
        return self.schedule.evaluates_after(done) and self._scores_after(done)

    def after(self, done: int) -> float:
        """Evaluate after a step where it is due; returns the seconds that it took."""
        if not self.due(done):
            return 0.0
        self.recorder.report.pauses.append(done)
        self.recorder.timer.wait()  # a GPU may have steps to do
        return self._evaluate(done // self.schedule.steps_per_epoch, done, self.recorder.loop_s)

    def at_end(self) -> None:
        """Evaluate after the last step, unless that was just done; a run cut short needs its time to extrapolate.

        After a whole training, as many training samples are evaluated as are held out.
        """
        report = self.recorder.report
        if self.spec.train.evaluate_every_epochs and report.steps_done and self._scores_after(report.steps_done):
            seconds = self._evaluate(report.epochs_done, report.steps_done, report.loop_s)
            report.loop_s += seconds if self.spec.runs_full_training else 0.0
        if report.evaluations and self.spec.runs_full_training:
            count = -(-self.data.held_out.samples // self.world.ranks)
            scores = self._scores(self.data.train, self.data.order(0).reshape(-1)[:count])
            report.training_accuracy = scores["accuracy"]

    def _scores_after(self, done: int) -> bool:
        """Whether there is something new to score: emulated compute learns nothing."""
        made = self.recorder.report.evaluations
        return not self.replica.emulated and not (made and made[-1].step == done)

    def _evaluate(self, epoch: float, step: int, time_s: float) -> float:
        """Evaluate, `time_s` after the first step; returns the seconds that it took."""
        begin, held_out = time.perf_counter(), self.data.held_out
        share = np.arange(self.world.rank, held_out.samples, self.world.ranks)  # each sample on exactly one rank
        scores = self._scores(held_out, share)
        seconds = time.perf_counter() - begin
        self.recorder.report.evaluations.append(Evaluation(epoch, step, time_s, seconds, **scores))
        return seconds

    def _scores(self, data: Dataset, share: np.ndarray) -> dict[str, Any]:
        # Not compiled for batches of another size: that would take longer than most evaluations.
        plain = torch.compiler.set_stance("force_eager") if self.replica.spec.compile else nullcontext()
        with self.replica.strategy.full_parameters() as model, plain:
            return evaluate(model, data, share, self.spec, self.world, self.replica.dtype)


@torch.no_grad()
def evaluate(
    module: nn.Module, data: Dataset, share: np.ndarray, spec: RunSpec, world: World, dtype: torch.dtype
) -> dict[str, Any]:
    """`{"accuracy": …, "auroc": …, "loss": …}` over the samples of all ranks, `share` on this one, the same on every rank.

    Multi-label data has no accuracy, and `auroc_per_label` as well as the mean: None for a label with one class only.
    Where anything is not finite there are no scores, and `invalid_reason` says why: NaN has no rank among scores, and
    the first class would get it. BatchNorm's running statistics, which are each rank's own, are averaged over ranks first.
    """
    if world.workers is not None and world.ranks > 1:
        for buffer in module.buffers():
            if buffer.is_floating_point():
                dist.all_reduce(buffer, group=world.workers)
                buffer.div_(world.ranks)
    module.eval()
    scores, labels, loss = list[np.ndarray](), list[np.ndarray](), 0.0
    for begin in range(0, len(share), BATCH):
        indices = share[begin : begin + BATCH]
        x, y = data.batch(indices, size=spec.loader.size, augment="none", seed=spec.seed, epoch=0)
        y = y.to(world.device)
        prediction = outputs.predictions(module(normalise(x, dtype, world.device)))
        loss += float(outputs.loss(prediction, y, data.task)) * len(indices)
        scores.append(prediction.float().cpu().numpy())
        labels.append(y.cpu().numpy())
    module.train()
    parts = gathered((np.concatenate(scores), np.concatenate(labels), loss) if scores else None, world)
    score = np.concatenate([part[0] for part in parts])
    label = np.concatenate([part[1] for part in parts])
    mean_loss = sum(part[2] for part in parts) / len(label)
    own = isinstance(spec.model, OwnModel) or isinstance(spec.data, OwnData)
    if reason := _invalid_reason(score, label, mean_loss, own):
        return {"accuracy": None, "auroc": None, "loss": None, "invalid_reason": reason}
    if data.task == "multilabel":
        each = auroc_per_label(score, label)
        aurocs = [value for value in each if value is not None]
        mean = float(np.mean(aurocs)) if aurocs else None
        return {"accuracy": None, "auroc": mean, "auroc_per_label": each, "loss": mean_loss, "chance": 0.5}
    accuracy, chance = float((score.argmax(axis=1) == label).mean()), float(np.bincount(label).max() / len(label))
    return {"accuracy": accuracy, "auroc": None, "loss": mean_loss, "chance": chance}


def _invalid_reason(score: np.ndarray, label: np.ndarray, loss: float, own: bool) -> str | None:
    """Why the scores of all ranks, [samples, classes], mean nothing; None where they do.

    A catalogue's model with one answer for every sample has collapsed: its accuracy stands. Of a user's `own` model or
    data the same says that it ignores its input.
    """
    for what, values in (("a score", score), ("a label", label)):
        wrong = int((~np.isfinite(values)).reshape(len(values), -1).any(axis=1).sum())
        if wrong:
            return f"{wrong:,} of {len(values):,} held-out samples have {what} that is not finite"
    if not math.isfinite(loss):
        return "the held-out loss is not finite"
    if own and len(score) > 1 and np.ptp(score, axis=0).max() <= SAME * max(1.0, float(np.abs(score).max())):
        what = f"all {len(score):,} held-out samples have the same scores"
        return f"{what}: the model, or the data, of your own ignores which sample it is"
    return None


def auroc_per_label(score: np.ndarray, label: np.ndarray) -> list[float | None]:
    """Area under the ROC curve of each label; scores and 0/1 labels [samples, labels]. None where one class is missing."""
    from sklearn.metrics import roc_auc_score

    both = [0 < label[:, k].sum() < len(label) for k in range(label.shape[1])]
    return [float(roc_auc_score(label[:, k], score[:, k])) if has_both else None for k, has_both in enumerate(both)]
