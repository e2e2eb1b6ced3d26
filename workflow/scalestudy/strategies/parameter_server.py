"""Synchronous parameter servers: processes that hold the weights and the optimiser, as in TensorFlow."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from scalestudy.errors import UserError
from scalestudy.strategies.base import MakeOptimiser, Strategy, slots_of, wait
from scalestudy.strategies.catalogue import ParameterServer as Options
from scalestudy.strategies.flat import FlatBuffer

STOP, PUSH, STATE = 0.0, 1.0, 2.0
"""A worker's request to a server."""


class ParameterServer(Strategy):
    """Workers push gradients and pull weights; each server sums, averages and steps for its share of the parameters.

    A step is one message each way between every worker and every server, through the host where workers have GPUs.
    The last element of a message to a server says whether it is a push of gradients (`PUSH`), the request for its
    optimiser's state (`STATE`, answered to rank 0) or the end (`STOP`); in one round all workers send the same.
    """

    options: Options

    def prepare(self, model: nn.Module, make_optimiser: MakeOptimiser) -> nn.Module:
        """As every strategy, and share out the parameters. UserError where there are more servers than parameter tensors."""
        module = super().prepare(model, make_optimiser)
        shares = place([parameter.numel() for parameter in self.trainable], self.world.servers)
        if self.world.is_server:
            self.own = [self.trainable[index] for index in shares[self.world.rank - self.world.ranks]]
            self.optimiser = make_optimiser(self.own)
        else:
            self.links = [_Link(self.world.ranks + k, share, self.trainable) for k, share in enumerate(shares)]
        return module

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
            wait(pull)
            link.weights.unpack(link.parameters)
        wait(*pushes)

    def update(self) -> None:
        """Nothing: the servers stepped, and the weights came with `exchange`."""

    def serve(self, rate_of_step: Callable[[int], float]) -> int:
        """Serve until the workers finish: per step, sum gradients in the order of ranks, average, step, send weights.

        `rate_of_step` gives the learning rate of a step, from 0. Returns the number of steps served.
        """
        workers = range(self.world.ranks)
        total, weights = self.own_messages()
        pushes = [total, *(FlatBuffer(self.own, extra=1) for _ in workers[1:])]
        arriving = [dist.irecv(pushes[worker].data, worker) for worker in workers]
        step = 0
        while True:
            wait(arriving[0])
            request = float(total.data[-1])
            for worker in workers[1:]:
                wait(arriving[worker])
                if request == PUSH:
                    total.data += pushes[worker].data
            if request == STOP:
                return step
            if request == PUSH:
                total.data /= self.world.ranks
                self.set_learning_rate(rate_of_step(step))
                self.optimiser.step()
                step += 1
            arriving = [dist.irecv(pushes[worker].data, worker) for worker in workers]
            if request == STATE:
                dist.send_object_list([slots_of(self.optimiser, self.model)], 0)
            else:
                wait(*[dist.isend(weights.data, worker) for worker in workers])

    def own_messages(self) -> tuple[FlatBuffer, FlatBuffer]:
        """A server's gradients and weights, which live in the messages themselves: nothing is packed or unpacked."""
        gradients, weights = FlatBuffer(self.own, extra=1), FlatBuffer(self.own)
        weights.pack(self.own)
        for parameter, weight, gradient in zip(self.own, weights.views, gradients.views, strict=True):
            parameter.data, parameter.grad = weight, gradient
        return gradients, weights

    def finish(self) -> None:
        """Tell the servers that there are no more steps."""
        self.tell(STOP)

    def optimiser_state(self) -> dict[str, torch.Tensor]:
        """As every strategy, from all servers."""
        self.tell(STATE)
        state: dict[str, torch.Tensor] = {}
        for link in self.links if self.world.rank == 0 else ():
            answer: list[Any] = [None]
            dist.recv_object_list(answer, link.server)
            state |= answer[0]
        return state

    def tell(self, wanted: float) -> None:
        """A message to every server that holds no gradients."""
        for link in self.links:
            link.gradients.data[-1] = wanted
        wait(*[dist.isend(link.gradients.data, link.server) for link in self.links])

    def distribute(self, model: nn.Module) -> None:
        """As every strategy, through the host: servers have no GPU."""
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
        what = f"{servers} parameter servers cannot share {len(sizes)} parameter tensors"
        raise UserError(what, "strategy.servers", f"use at most {len(sizes)} servers with this model")
    shares: list[list[int]] = [[] for _ in range(servers)]
    loads = [0] * servers
    for index in sorted(range(len(sizes)), key=lambda index: -sizes[index]):
        server = min(range(servers), key=loads.__getitem__)
        shares[server].append(index)
        loads[server] += sizes[index]
    return [sorted(share) for share in shares]
