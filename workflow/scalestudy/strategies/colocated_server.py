"""Synchronous parameter servers that are ranks themselves: no further process, and every link is used."""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import nn

from scalestudy.strategies.base import MakeOptimiser, Strategy, load_slots, slots_of, wait
from scalestudy.strategies.catalogue import ParameterServer as Options
from scalestudy.strategies.flat import FlatBuffer
from scalestudy.strategies.parameter_server import place

Messages = list[tuple[int, torch.Tensor]]
"""Peers, and what goes to or comes from them."""


class ColocatedParameterServer(Strategy):
    """The first `servers` ranks each sum, average and step one share of the parameters, between their own steps."""

    options: Options

    def prepare(self, model: nn.Module, make_optimiser: MakeOptimiser) -> nn.Module:
        """As every strategy; a serving rank has a second optimiser, for its share.

        Raises UserError where there are more servers than parameter tensors.
        """
        module = super().prepare(model, make_optimiser)
        places = place([parameter.numel() for parameter in self.trainable], self.options.servers)
        self.shares = [[self.trainable[index] for index in indices] for indices in places]
        self.pushed = [FlatBuffer(share) for share in self.shares]
        self.pulled = [FlatBuffer(share) for share in self.shares]
        rank = self.world.rank
        self.others = [other for other in range(self.world.ranks) if other != rank]
        self.own: list[nn.Parameter] = self.shares[rank] if rank < len(self.shares) else []
        self.arriving: dict[int, torch.Tensor] = {}
        if self.own:
            self.arriving = {other: torch.empty_like(self.pushed[rank].data) for other in self.others}
            self.server = make_optimiser(self.own)
        return module

    def set_learning_rate(self, rate: float) -> None:
        """Set the learning rate for the next update, at the servers too."""
        super().set_learning_rate(rate)
        for group in self.server.param_groups if self.own else ():
            group["lr"] = rate

    def exchange(self) -> None:
        """Push gradients to their servers, step there, pull weights."""
        rank = self.world.rank
        gradients = dict(zip(self.trainable, self.gradients(), strict=True))
        for share, message in zip(self.shares, self.pushed, strict=True):
            message.pack(gradients[parameter] for parameter in share)
        self._swap([(k, push.data) for k, push in enumerate(self.pushed) if k != rank], list(self.arriving.items()))
        weights: Messages = []
        if self.own:
            self._serve()
            self.pulled[rank].pack(self.own)
            weights = [(other, self.pulled[rank].data) for other in self.others]
        self._swap(weights, [(k, pull.data) for k, pull in enumerate(self.pulled) if k != rank])
        for k, pull in enumerate(self.pulled):
            if k != rank:
                pull.unpack(self.shares[k])

    def update(self) -> None:
        """Nothing: the servers stepped, and the weights came with `exchange`."""

    def _serve(self) -> None:
        """Sum this rank's share in the order of ranks, average and step it."""
        total = self.pushed[self.world.rank]
        parts = {**self.arriving, self.world.rank: total.data.clone()}
        total.data.copy_(parts[0])
        for rank in range(1, self.world.ranks):
            total.data += parts[rank]
        total.data /= self.world.ranks
        total.unpack([parameter.grad for parameter in self.own if parameter.grad is not None])
        self.server.step()

    def _swap(self, send: Messages, receive: Messages) -> None:
        """All messages of one phase. Receives are posted first, as everywhere."""
        group = self.world.workers
        operations = [dist.P2POp(dist.irecv, tensor, group=group, group_peer=peer) for peer, tensor in receive]
        operations += [dist.P2POp(dist.isend, tensor, group=group, group_peer=peer) for peer, tensor in send]
        wait(*(dist.batch_isend_irecv(operations) if operations else ()))

    def optimiser_state(self) -> dict[str, torch.Tensor]:
        """As every strategy, from the ranks that serve."""
        own = slots_of(self.server, self.model) if self.own else {}
        return {name: tensor for part in self.gather(own) for name, tensor in part.items()}

    def load_optimiser_state(self, state: dict[str, torch.Tensor]) -> None:
        """Load the state of this rank's share."""
        if self.own:
            load_slots(self.server, self.model, state)
