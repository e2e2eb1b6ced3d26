"""Halving and doubling after backward, nothing overlapped (Caffe2 with Gloo, in 001)."""

from __future__ import annotations

from torch import nn

from scalestudy.strategies.algorithms import HalvingDoubling as Sum
from scalestudy.strategies.base import MakeOptimiser, Strategy, World
from scalestudy.strategies.catalogue import HalvingDoubling as Options
from scalestudy.strategies.flat import FlatBuffer


class HalvingDoubling(Strategy):
    """One exchange of all gradients packed into one buffer, or one exchange per parameter in order of definition."""

    options: Options

    def __init__(self, options: Options, world: World) -> None:
        super().__init__(options, world)
        assert world.workers is not None
        self.sum = Sum(world.workers)

    def prepare(self, model: nn.Module, make_optimiser: MakeOptimiser) -> nn.Module:
        """As every strategy, and room for the packed gradients."""
        module = super().prepare(model, make_optimiser)
        if self.options.schedule == "flat":
            self.flat = FlatBuffer(self.trainable)
        return module

    def exchange(self) -> None:
        """Make every rank's gradients their mean over ranks."""
        if self.options.schedule == "flat":
            self._exchange_flat()
        else:
            self._exchange_per_parameter()

    def _exchange_flat(self) -> None:
        gradients = self.gradients()
        self.flat.pack(gradients)
        self.sum(self.flat.data)
        self.flat.data /= self.world.ranks
        self.flat.unpack(gradients)

    def _exchange_per_parameter(self) -> None:
        for gradient in self.gradients():
            # A gradient that is contiguous already is summed where it lies, and the copy back is none.
            dense = gradient.contiguous()
            self.sum(dense.view(-1))
            dense /= self.world.ranks
            gradient.copy_(dense)
