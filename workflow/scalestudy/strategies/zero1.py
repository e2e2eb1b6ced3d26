"""ZeRO stage 1: the optimiser's state, and its work, shared out among the ranks."""

from __future__ import annotations

import torch
from torch import nn

from scalestudy.strategies.base import MakeOptimiser, Strategy, slots_for
from scalestudy.strategies.flat import FlatBuffer
from scalestudy.strategies.nodes import all_gather, reduce_scatter


class Zero1(Strategy):
    """Reduce-scatter of gradients, a step of each rank's part, all-gather of weights (Rajbhandari et al., SC20, 5.1).

    All weights lie end to end in one buffer, of which each rank owns an equal part, wherever parameters begin and end.
    So the optimiser must treat elements one by one, as SGD does, whose only slot has a value per weight.
    """

    def prepare(self, model: nn.Module, make_optimiser: MakeOptimiser) -> nn.Module:
        """As every strategy; the weights move into one buffer, and the optimiser steps this rank's part of it."""
        module = super().prepare(model, make_optimiser)
        ranks, rank = self.world.ranks, self.world.rank
        missing = -sum(parameter.numel() for parameter in self.trainable) % ranks
        self.weights = FlatBuffer(self.trainable, extra=missing)
        self.flat_gradients = FlatBuffer(self.trainable, extra=missing)
        self.weights.pack(self.trainable)
        for parameter, view in zip(self.trainable, self.weights.views, strict=True):
            parameter.data = view
        self.own = nn.Parameter(self.weights.data.chunk(ranks)[rank])
        self.own.grad = torch.zeros_like(self.own)
        self.part = make_optimiser([self.own])
        return module

    def set_learning_rate(self, rate: float) -> None:
        """Set the learning rate for the next update."""
        for group in self.part.param_groups:
            group["lr"] = rate

    def exchange(self) -> None:
        """This rank's part of the gradients becomes their mean over ranks."""
        self.flat_gradients.pack(self.gradients())
        assert self.own.grad is not None
        reduce_scatter(self.own.grad, self.flat_gradients.data, group=self.world.workers)
        self.own.grad /= self.world.ranks

    def update(self) -> None:
        """Step this rank's part, and give every rank all weights."""
        self.part.step()
        self._gather(self.weights.data, self.own)

    def _gather(self, whole: torch.Tensor, part: torch.Tensor) -> None:
        # From a copy: what is sent may not lie in what is received.
        all_gather(whole, part.detach().clone(), group=self.world.workers)

    def optimiser_state(self) -> dict[str, torch.Tensor]:
        """As every strategy, put together from all ranks and cut into parameters."""
        names = {parameter: name for name, parameter in self.model.named_parameters()}
        state = {}
        for slot, part in self.part.state[self.own].items():
            if part is not None:  # of SGD: a value per weight, none without momentum
                whole = self._flat()
                self._gather(whole.data, part)
                views = zip(self.trainable, whole.views, strict=True)
                state.update({f"optimiser.{names[parameter]}.{slot}": self.whole(view) for parameter, view in views})
        return state

    def load_optimiser_state(self, state: dict[str, torch.Tensor]) -> None:
        """Give this rank's part of the optimiser its part of every slot."""
        names = {parameter: name for name, parameter in self.model.named_parameters()}
        slot_maps = [slots_for(state, names[parameter]) for parameter in self.trainable]
        slots = {slot: self._part([of_parameter[slot] for of_parameter in slot_maps]) for slot in slot_maps[0]}
        plain = self.part.state_dict()
        plain["state"] = {0: slots} if slots else {}
        self.part.load_state_dict(plain)

    def _part(self, values: list[torch.Tensor]) -> torch.Tensor:
        """This rank's part of one slot, given whole for every parameter."""
        flat = self._flat()
        flat.pack(values)
        return flat.data.chunk(self.world.ranks)[self.world.rank].clone()

    def _flat(self) -> FlatBuffer:
        """Room for a value per weight, as long as that of the weights."""
        return FlatBuffer(self.trainable, extra=len(self.weights.data) - sum(p.numel() for p in self.trainable))
