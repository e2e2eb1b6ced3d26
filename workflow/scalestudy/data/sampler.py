"""Which samples a rank sees in which step: a function of seed and epoch, so a stopped run goes on at the very sample."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from scalestudy.data import draw
from scalestudy.errors import UserError


def epoch_order(samples: int, seed: int, epoch: int) -> NDArray[np.int64]:
    """[samples] the order of one epoch, the same on every rank."""
    return draw.permutation(samples, draw.ORDER, seed, epoch)


def batches(samples: int, global_batch: int, rank: int, ranks: int, seed: int, epoch: int) -> NDArray[np.int64]:
    """[steps, rank_batch] the samples of one rank in one epoch.

    Step s takes the s-th `global_batch` samples of the order and rank r the r-th share of them, so that the global
    batch of a step is the same for any number of ranks. The last global batch is dropped where it is incomplete.
    Raises UserError where not even one global batch is there.
    """
    assert global_batch % ranks == 0, "the spec refuses batches that ranks cannot share equally"
    steps = samples // global_batch
    if steps == 0:
        raise UserError(
            f"a step takes {global_batch} samples, and the training data has {samples}",
            "batch",
            f"make the global batch {samples} or smaller, or raise `data.scale`",
        )
    order = epoch_order(samples, seed, epoch)[: steps * global_batch]
    return np.ascontiguousarray(order.reshape(steps, ranks, global_batch // ranks)[:, rank])


def evaluation_share(samples: int, rank: int, ranks: int) -> NDArray[np.int64]:
    """The held-out samples of one rank: each sample on exactly one rank, counts differ by at most one."""
    return np.arange(rank, samples, ranks)
