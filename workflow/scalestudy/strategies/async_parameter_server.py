"""Asynchronous parameter servers: each gradient is applied when it arrives."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
import torch.distributed as dist
from torch import nn

from scalestudy.strategies.base import slots_of, wait
from scalestudy.strategies.parameter_server import PUSH, STATE, STOP, ParameterServer

FETCH = 3.0
"""A worker wants the weights as they are, without giving a gradient for them."""


class AsyncParameterServer(ParameterServer):
    """Workers push and pull as with synchronous servers, each at its own pace; the servers' weights are the training's.

    Weights have a version, the number of updates made to them. The staleness of an update is the number of versions
    between the weights that its gradient was computed on and those that it changes. Every update takes a full step, so
    that an epoch moves the weights as many times as there are workers more often. Learning rates follow updates per
    worker.
    """

    finished = False

    def serve(self, rate_of_step: Callable[[int], float]) -> int:
        """Serve until the last worker finishes, any worker's message first come, first served.

        Returns the number of whole rounds of updates: updates over workers. `records` are the updates in order: when (s),
        by which worker, how stale (versions).
        """
        message, weights = self.own_messages()
        ranks = self.world.ranks
        replies = [torch.empty_like(weights.data) for _ in range(ranks)]
        versions = [0] * ranks  # of the weights that each worker has
        sending: dict[int, dist.Work | None] = {}
        self.records = {"time_s": [], "worker": [], "staleness": []}
        begin, version, left = time.perf_counter(), 0, ranks
        while left:
            worker = dist.recv(message.data)
            assert worker is not None
            request = float(message.data[-1])
            if request == STOP:
                left -= 1
                continue
            if request == STATE:
                dist.send_object_list([slots_of(self.optimiser, self.model)], worker)
                continue
            if request == PUSH:
                self.set_learning_rate(rate_of_step(version // ranks))
                self.optimiser.step()
                record = time.perf_counter() - begin, worker, version - versions[worker]
                for column, value in zip(self.records.values(), record, strict=True):
                    column.append(value)
                version += 1
            if worker in sending:
                wait(sending[worker])
            replies[worker].copy_(weights.data)  # the server continues while they are on their way
            versions[worker], sending[worker] = version, dist.isend(replies[worker], worker)
        wait(*sending.values())
        return version // ranks

    def finish(self) -> None:
        """Take the final weights, and tell the servers that this worker makes no more steps."""
        with self.full_parameters():
            pass
        self.tell(STOP)
        self.finished = True

    @contextmanager
    def full_parameters(self) -> Iterator[nn.Module]:
        """Inside, every worker has the servers' weights, the same on all; no worker makes a step meanwhile."""
        if self.finished:
            yield self.model
            return
        dist.barrier(group=self.world.workers)
        pulls = [dist.irecv(link.weights.data, link.server) for link in self.links]
        self.tell(FETCH)
        for link, pull in zip(self.links, pulls, strict=True):
            wait(pull)
            link.weights.unpack(link.parameters)
        dist.barrier(group=self.world.workers)
        yield self.model

    def state(self) -> dict[str, torch.Tensor]:
        """As every strategy; the weights are the servers'."""
        with self.full_parameters():
            return super().state()

    def optimiser_state(self) -> dict[str, torch.Tensor]:
        """As with synchronous servers, which all workers ask; here each question has its answer, so rank 0 alone asks."""
        return super().optimiser_state() if self.world.rank == 0 else {}
