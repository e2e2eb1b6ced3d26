"""ZeRO stage 1: the optimiser's state, and its work, shared out among the ranks."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from scalestudy.strategies.base import MakeOptimiser, Strategy, kept, slots_for
from scalestudy.strategies.flat import FlatBuffer
from scalestudy.strategies.nodes import all_gather, reduce_scatter


class Zero1(Strategy):
    """Reduce-scatter of gradients, a step of each rank's part, all-gather of weights (Rajbhandari et al., SC20, 5.1).

    All weights lie end to end in one buffer, of which each rank owns an equal part, wherever parameters begin and end.
    So the optimiser must treat elements one by one, as SGD and Adam do.
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
        slots = {slot: self._whole(value) for slot, value in self.part.state[self.own].items()}
        names = {parameter: name for name, parameter in self.model.named_parameters()}
        return {
            f"optimiser.{names[parameter]}.{slot}": kept(torch.as_tensor(piece))
            for slot, value in (slots.items() if self.world.rank == 0 else ())
            for parameter, piece in zip(self.trainable, self._pieces(value), strict=True)
            if piece is not None
        }

    def load_optimiser_state(self, state: dict[str, torch.Tensor]) -> None:
        """Give this rank's part of the optimiser its part of every slot."""
        names = {parameter: name for name, parameter in self.model.named_parameters()}
        found = [slots_for(state, names[parameter]) for parameter in self.trainable]
        slots: dict[str, torch.Tensor] = {}
        for slot in found[0]:
            values = [of_parameter[slot] for of_parameter in found]
            slots[slot] = self._part(values) if values[0].shape == self.trainable[0].shape else values[0].clone()
        plain = self.part.state_dict()
        plain["state"] = {0: slots} if slots else {}
        self.part.load_state_dict(plain)

    def _part(self, values: list[torch.Tensor]) -> torch.Tensor:
        """This rank's part of one slot, given whole for every parameter."""
        flat = FlatBuffer(self.trainable, extra=len(self.weights.data) - sum(p.numel() for p in self.trainable))
        flat.pack(values)
        return flat.data.chunk(self.world.ranks)[self.world.rank].clone()

    def _whole(self, value: Any) -> Any:
        """A slot over all weights, if it has a value per weight. Called by all ranks."""
        if not isinstance(value, torch.Tensor) or value.shape != self.own.shape:
            return value
        whole = torch.empty_like(self.weights.data)
        self._gather(whole, value)
        return whole

    def _pieces(self, value: Any) -> list[Any]:
        """A slot cut into parameters; slots without a value per weight are the same for all."""
        if not isinstance(value, torch.Tensor) or value.shape != self.weights.data.shape:
            return [value] * len(self.trainable)
        sizes = [parameter.numel() for parameter in self.trainable]
        parts = value[: sum(sizes)].split(sizes)  # type: ignore[no-untyped-call]
        return [part.view(parameter.shape) for part, parameter in zip(parts, self.trainable, strict=True)]
