"""Synchronous parameter servers: processes of their own with the weights and the optimiser (TensorFlow, in 001)."""

from __future__ import annotations

from collections.abc import Callable
from itertools import count

import torch.distributed as dist
from torch import nn

from scalestudy.errors import UserError
from scalestudy.strategies.base import MakeOptimiser, Strategy
from scalestudy.strategies.catalogue import ParameterServer as Options
from scalestudy.strategies.flat import FlatBuffer

PUSH, STOP = 1.0, 0.0


class ParameterServer(Strategy):
    """Workers push gradients and pull weights; each server sums, averages and steps for its share of the parameters.

    A step is one message each way between every worker and every server, through the host where workers have GPUs.
    The last element of a push says whether it is one (`PUSH`) or the end (`STOP`).
    """

    options: Options

    def prepare(self, model: nn.Module, make_optimiser: MakeOptimiser) -> nn.Module:
        """Give all processes rank 0's weights, share out the parameters, return the module to call in each step.

        Raises UserError where there are more servers than parameter tensors.
        """
        self.broadcast(model)
        self.model = model
        self.trainable = [parameter for parameter in model.parameters() if parameter.requires_grad]
        shares = place([parameter.numel() for parameter in self.trainable], self.world.servers)
        if self.world.is_server:
            self.own = [self.trainable[index] for index in shares[self.world.rank - self.world.ranks]]
            self.optimiser = make_optimiser(self.own)
        else:
            self.optimiser = make_optimiser(self.trainable)
            self.links = [_Link(self.world.ranks + k, share, self.trainable) for k, share in enumerate(shares)]
        return model

    def exchange(self) -> None:
        """Push this worker's gradients and pull the weights after the servers' step."""
        gradients = self.gradients()
        # Receives are posted first, on both sides: on gloo the notice that a process is ready would queue behind data.
        pulls = [dist.irecv(link.weights.data, link.server) for link in self.links]
        pushes = []
        for link in self.links:
            link.gradients.pack(gradients[index] for index in link.indices)
            link.gradients.data[-1] = PUSH
            pushes.append(dist.isend(link.gradients.data, link.server))
        for link, pull in zip(self.links, pulls, strict=True):
            _wait(pull)
            link.weights.unpack(link.parameters)
        for push in pushes:
            _wait(push)

    def update(self) -> None:
        """Nothing: the servers stepped, and the weights came with `exchange`."""

    def serve(self, rate_of_step: Callable[[int], float]) -> int:
        """Serve until the workers finish: per step, sum gradients in the order of ranks, average, step, send weights.

        `rate_of_step` gives the learning rate of a step, from 0. Returns the number of steps served.
        """
        workers = range(self.world.ranks)
        pushes = [FlatBuffer(self.own, extra=1) for _ in workers]
        total, weights = pushes[0], FlatBuffer(self.own)
        weights.pack(self.own)
        for parameter, weight, gradient in zip(self.own, weights.views, total.views, strict=True):
            # Weights and gradients live in the messages themselves: nothing is packed or unpacked here.
            parameter.data, parameter.grad = weight, gradient
        arriving = [dist.irecv(pushes[worker].data, worker) for worker in workers]
        for step in count():
            for worker in workers:
                _wait(arriving[worker])
                if worker > 0:
                    total.data += pushes[worker].data
            if float(total.data[-1]) == self.world.ranks * STOP:
                break
            total.data /= self.world.ranks
            self.set_rate(rate_of_step(step))
            self.optimiser.step()
            arriving = [dist.irecv(pushes[worker].data, worker) for worker in workers]
            for sent in [dist.isend(weights.data, worker) for worker in workers]:
                _wait(sent)
        return step

    def finish(self) -> None:
        """Tell the servers that there are no more steps."""
        for link in self.links:
            link.gradients.data[-1] = STOP
        for sent in [dist.isend(link.gradients.data, link.server) for link in self.links]:
            _wait(sent)

    def broadcast(self, model: nn.Module) -> None:
        """Rank 0's parameters and buffers to all processes, through the host: servers have no GPU."""
        for tensor in model.state_dict().values():
            host = tensor.cpu()
            dist.broadcast(host, 0)
            tensor.copy_(host)


class _Link:
    """A worker's side of its exchange with one server: which parameters, and the two messages."""

    def __init__(self, server: int, indices: list[int], parameters: list[nn.Parameter]) -> None:
        self.server, self.indices = server, indices
        self.parameters = [parameters[index] for index in indices]
        self.gradients = FlatBuffer(self.parameters, extra=1, host=True)
        self.weights = FlatBuffer(self.parameters, host=True)


def place(sizes: list[int], servers: int) -> list[list[int]]:
    """For each server, the indices of its parameters: largest first, each to the server with the fewest elements.

    Within a server, indices ascend. Raises UserError where a server would have nothing.
    """
    if len(sizes) < servers:
        raise UserError(
            f"{servers} parameter servers cannot share {len(sizes)} parameter tensors",
            "strategy.servers",
            f"use at most {len(sizes)} servers with this model",
        )
    shares: list[list[int]] = [[] for _ in range(servers)]
    loads = [0] * servers
    for index in sorted(range(len(sizes)), key=lambda index: -sizes[index]):
        server = min(range(servers), key=loads.__getitem__)
        shares[server].append(index)
        loads[server] += sizes[index]
    return [sorted(share) for share in shares]


def _wait(work: dist.Work | None) -> None:
    assert work is not None
    work.wait()
