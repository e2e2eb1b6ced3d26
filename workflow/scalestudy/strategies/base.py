"""The interface of all strategies, as the training loop sees it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

MakeOptimiser = Callable[[Iterable[nn.Parameter]], torch.optim.Optimizer]
Loss = Callable[[Any, torch.Tensor], torch.Tensor]
"""From the model's output and the labels to the mean loss."""


@dataclass(frozen=True)
class World:
    """Who takes part in a run, as one process sees it.

    Ranks 0 … ranks-1 train; ranks … ranks+servers-1 are parameter servers. `workers` is the group of those that train;
    None where there is no process group, which only `single` does without. The default process group holds all
    processes; where there are servers it must be able to exchange CPU tensors (gloo).
    """

    rank: int
    ranks: int
    servers: int
    device: torch.device
    ranks_per_node: int
    workers: dist.ProcessGroup | None

    @property
    def is_server(self) -> bool:
        """Whether this process is a parameter server."""
        return self.rank >= self.ranks


class Strategy(ABC):
    """One rank's side of an exchange.

    A step is: `forward_backward()`, `exchange()`, `update()`. A strategy that overlaps
    its exchange with backward does nothing in `exchange()` and says so by `overlapped`. A parameter that the loss does
    not depend on counts as one whose gradient is zero, under every strategy: weight decay and momentum still move it.

    A strategy that needs process groups of its own makes them in `__init__`, on every process, servers included.
    """

    overlapped = False
    """The exchange happens inside backward and cannot be timed by itself."""

    equal_parameters = True
    """After every step all ranks hold the same parameters."""

    parts = 1
    """Parts in which a rank computes its batch; set by the training loop."""
    precision: Callable[[], AbstractContextManager[Any]] = nullcontext
    """Entered around forward and loss; set by the training loop."""
    scaler: torch.amp.GradScaler | None = None
    """Scales the loss where gradients would underflow in float16; set by the training loop."""

    model: nn.Module
    """What is trained, as the caller gave it; set by `prepare`."""
    trainable: list[nn.Parameter]
    """Its parameters that have gradients, in order of definition; set by `prepare`."""
    optimiser: torch.optim.Optimizer
    """Built by `prepare`. Under parameter servers a worker's only clears gradients; the servers' own ones step."""

    def __init__(self, options: Any, world: World) -> None:
        self.options, self.world = options, world

    def prepare(self, model: nn.Module, make_optimiser: MakeOptimiser) -> nn.Module:
        """Give all ranks rank 0's weights, build the optimiser, return the module to call in each step."""
        self.broadcast(model)
        self.model = model
        self.trainable = [parameter for parameter in model.parameters() if parameter.requires_grad]
        self.optimiser = make_optimiser(self.trainable)
        return model

    def forward_backward(self, module: nn.Module, x: torch.Tensor, y: torch.Tensor, loss: Loss) -> torch.Tensor:
        """Gradients of the mean loss over this rank's batch; returns the loss. `module` is what `prepare` returned.

        The batch is computed in `parts` equal parts; only with the last one may an overlapped exchange begin.
        """
        self.optimiser.zero_grad(set_to_none=True)
        losses = []
        for number, (part_x, part_y) in enumerate(zip(x.chunk(self.parts), y.chunk(self.parts), strict=True)):
            with nullcontext() if number == self.parts - 1 else self.no_exchange(module):
                with self.precision():
                    value = loss(module(part_x), part_y) / self.parts
                (value if self.scaler is None else self.scaler.scale(value)).backward()
            losses.append(value.detach())
        return torch.stack(losses).sum()

    def no_exchange(self, module: nn.Module) -> AbstractContextManager[None]:
        """Where gradients are only added up: an overlapped strategy holds back its exchange."""
        return nullcontext()

    @abstractmethod
    def exchange(self) -> None:
        """Make every rank's gradients their mean over ranks, after backward."""

    def update(self) -> None:
        """Apply the gradients; with a loss scale, unless one is not finite, which lowers the scale."""
        if self.scaler is None:
            self.optimiser.step()
        else:
            self.scaler.step(self.optimiser)
            self.scaler.update()

    def set_rate(self, rate: float) -> None:
        """Set the learning rate for the next update."""
        for group in self.optimiser.param_groups:
            group["lr"] = rate

    def serve(self, rate_of_step: Callable[[int], float]) -> int:
        """A server's whole life, where the strategy has servers; returns the number of steps served."""
        raise AssertionError("this strategy has no servers")

    def finish(self) -> None:  # noqa: B027 (most strategies have nothing to end)
        """Called once by every rank that trains, after its last step."""

    def gradients(self) -> list[torch.Tensor]:
        """The gradient of every trainable parameter, in order of definition; made zero where backward left none."""
        gradients = []
        for parameter in self.trainable:
            if (gradient := parameter.grad) is None:
                gradient = parameter.grad = torch.zeros_like(parameter)
            gradients.append(gradient)
        return gradients

    def broadcast(self, model: nn.Module) -> None:
        """Rank 0's parameters and buffers to all processes of the run, servers included."""
        if dist.is_initialized():
            for tensor in model.state_dict().values():
                dist.broadcast(tensor, 0)
