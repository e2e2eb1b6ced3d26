"""Exposed exchange: what an exchange of a known length adds to a step of two real ranks."""

from __future__ import annotations

import time
from contextlib import closing
from pathlib import Path

import torch.distributed as dist

from scalestudy.data.prepare.datasets import prepare
from scalestudy.spec.config import Site
from scalestudy.training.exposed import pairs_of_steps
from scalestudy.training.replica import Replica
from scalestudy.training.training_data import TrainingData
from scalestudy.training.world import join
from tests.integration.forked import on_processes
from tests.integration.test_wrong_numbers import RANKS, job_of

EXCHANGE_S = 0.05


def slow(group, bucket):  # type: ignore[no-untyped-def]  # torch refuses annotations that are strings
    """DDP's exchange, which takes EXCHANGE_S longer."""
    time.sleep(EXCHANGE_S)
    work = dist.all_reduce(bucket.buffer(), group=group, async_op=True)
    assert work is not None
    return work.get_future().then(lambda done: done.value()[0])


def one_rank(rank: int, folder: Path) -> list[list[tuple[float, float]]]:
    """Pairs of steps, and those of steps that take too long."""
    job = job_of(folder, "nothing")
    world = join(job, rank)
    with closing(TrainingData.open(job, rank)) as data:
        replica = Replica(job, world, data)
        replica.module.register_comm_hook(world.workers, slow)  # type: ignore[operator]
        pairs = pairs_of_steps(replica, step_s=0.01, trained_s=1.0)
        too_long = pairs_of_steps(replica, step_s=10.0, trained_s=1.0)
    dist.barrier()
    dist.destroy_process_group()
    return [pairs, too_long]


def test_what_an_exchange_adds_to_a_step_is_found_by_holding_it_back(tmp_path: Path) -> None:
    job = job_of(tmp_path, "nothing")
    prepare(job.spec.data, job.manifest, None, Site())
    (pairs, too_long), _ = on_processes(RANKS, tmp_path, one_rank, tmp_path)
    assert (len(pairs), too_long) == (10, [])
    added = sorted(exchanging - alone for exchanging, alone in pairs)
    assert EXCHANGE_S * 0.8 < added[len(added) // 2] < EXCHANGE_S * 10  # a busy machine wakes ranks late
