"""The interface of all strategies, as the training loop sees it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

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
    control: dist.ProcessGroup | None = None
    """A group of those that train for small messages through the host, where `workers` goes through GPUs."""

    @property
    def is_server(self) -> bool:
        """Whether this process is a parameter server."""
        return self.rank >= self.ranks


def group_of(ranks: Iterable[int], backend: str | None = None) -> dist.ProcessGroup | None:
    """Make a group of these ranks; None on a process that is not in it. Every process calls this at the same time."""
    group = dist.new_group(list(ranks), backend=backend)
    return group if isinstance(group, dist.ProcessGroup) else None


class Strategy:
    """One rank's side of an exchange.

    A step is `forward_backward()`, `exchange()`, `update()`. A strategy that overlaps its exchange with backward has none
    in `exchange()` and sets `overlapped`. A parameter that the loss does not depend on counts as one with a
    zero gradient, under every strategy: weight decay and momentum still move it.

    Further process groups are made in `__init__`, on every process, servers included.
    """

    overlapped = False
    """The exchange happens inside backward and cannot be timed by itself."""
    whole_parameters = True
    """Every rank has whole parameters, and computes gradients for all of them.

    So forward exchanges nothing and is over before backward begins: the two can be timed one by one.
    """
    can_hold_back = True
    """`no_exchange` holds back an exchange that overlaps with backward."""
    warm_up_passes = 0
    """How many forward and backward passes do the extra work of a process's first steps.

    Made over made-up samples, before the first step: else a stop would move that work to another step than in a run
    never stopped.
    """
    wants_example = False
    """`prepare` needs to know a batch."""

    # Set by the training loop, before `prepare`.
    example: tuple[torch.Tensor, torch.Tensor] | None = None
    """A batch such as `forward_backward` will get, on the device; where the strategy wants it."""
    accumulation_steps = 1
    """Equal parts in which a rank computes its batch, their gradients added up."""
    precision: Callable[[], AbstractContextManager[Any]] = nullcontext
    """Entered around forward and loss."""
    memory_limit_mib: float | None = None
    """Memory of a device, MiB, which steps may not exceed."""
    scaler: torch.amp.GradScaler | None = None
    """Scales the loss where gradients would underflow in float16."""
    forward_ended: Callable[[], None] | None = None
    """Called between forward and backward, where `whole_parameters`."""

    # Set by `prepare`.
    model: nn.Module
    """What is trained, as the caller gave it."""
    trainable: list[nn.Parameter]
    """Its parameters that have gradients, in order of definition."""
    optimiser: torch.optim.Optimizer
    """Under parameter servers a worker's only clears gradients; the servers' own ones step."""

    records: Mapping[str, list[float]] = {}
    """Records of the exchange's events, as columns, which `serve` makes; most strategies have none."""

    def __init__(self, options: Any, world: World) -> None:
        self.options, self.world = options, world

    def prepare(self, model: nn.Module, make_optimiser: MakeOptimiser) -> nn.Module:
        """Give all ranks rank 0's weights, build the optimiser, return the module to call in each step."""
        self.distribute(model)
        self.model = model
        self.trainable = [parameter for parameter in model.parameters() if parameter.requires_grad]
        self.optimiser = make_optimiser(self.trainable)
        return model

    def forward_backward(self, module: nn.Module, x: torch.Tensor, y: torch.Tensor, loss: Loss) -> torch.Tensor:
        """Gradients of the mean loss over this rank's batch; returns the loss. `module` is the result of `prepare`.

        The batch is computed in `accumulation_steps` equal parts; only with the last one may an overlapped exchange begin.
        """
        self.optimiser.zero_grad(set_to_none=True)
        parts = list(zip(x.chunk(self.accumulation_steps), y.chunk(self.accumulation_steps), strict=True))
        losses = []
        for part_x, part_y in parts[:-1]:
            with self.no_exchange(module):
                losses.append(self._gradients_of(module, part_x, part_y, loss))
        losses.append(self._gradients_of(module, *parts[-1], loss))
        return losses[0] if len(losses) == 1 else torch.stack(losses).sum()

    def _gradients_of(self, module: nn.Module, x: torch.Tensor, y: torch.Tensor, loss: Loss) -> torch.Tensor:
        """Gradients of one part's share of the loss; returns that share."""
        with self.precision():
            value = loss(module(x), y)
            if self.accumulation_steps > 1:
                value = value / self.accumulation_steps
        if self.forward_ended is not None:
            self.forward_ended()
        (value if self.scaler is None else self.scaler.scale(value)).backward()
        return value.detach()

    def no_exchange(self, module: nn.Module) -> AbstractContextManager[None]:
        """Where gradients are only added up: an overlapped strategy holds back its exchange."""
        return module.no_sync() if isinstance(module, DistributedDataParallel) else nullcontext()

    def exchange(self) -> None:
        """Make every rank's gradients their mean over ranks, after backward; here, those that it left out become zero."""
        self.gradients()

    def update(self) -> None:
        """Apply the gradients; with a loss scale, unless one is not finite, which lowers the scale."""
        if self.scaler is None:
            self.optimiser.step()
        else:
            self.scaler.step(self.optimiser)
            self.scaler.update()

    def set_learning_rate(self, rate: float) -> None:
        """Set the learning rate for the next update."""
        for group in self.optimiser.param_groups:
            group["lr"] = rate

    def serve(self, rate_of_step: Callable[[int], float]) -> int:
        """Serve until the training ends, where the strategy has servers; returns the number of steps served."""
        raise AssertionError("this strategy has no servers")

    def finish(self) -> None:
        """Called once by every rank that trains, after its last step."""

    def measured(self) -> dict[str, float]:
        """Further columns (spec/columns.py) that this rank knows at the end; of several ranks the largest counts."""
        return {}

    def state(self) -> dict[str, torch.Tensor]:
        """Return the state for a checkpoint, called by all ranks that train after the same step.

        Rank 0 returns everything, unsharded, on the CPU, in separate tensors: `model.<parameter or buffer>`,
        `optimiser.<parameter>.<slot>`, and `rank<k>.<buffer>` for each rank k > 0, which has buffers of its own
        (BatchNorm's running statistics). The other ranks return {}.
        """
        buffers = dict(self.model.named_buffers())
        stored = self.model.state_dict()
        of_ranks = self.gather({name: kept(tensor) for name, tensor in stored.items() if name in buffers})
        state = {f"model.{name}": self.whole(tensor) for name, tensor in stored.items()} | self.optimiser_state()
        for rank, own in enumerate(of_ranks[1:], start=1):
            state |= {f"rank{rank}.{name}": tensor for name, tensor in own.items()}
        return state if self.world.rank == 0 else {}

    def load_state(self, state: dict[str, torch.Tensor]) -> None:
        """Resume from the result of `state` on rank 0, also in a run of another number of ranks.

        Called by every process, servers included, after `prepare` and before the first step. A rank beyond those of the
        checkpoint gets rank 0's buffers.
        """
        own, stored = f"rank{self.world.rank}.", self.model.state_dict()
        values = {name: state.get(own + name, state[f"model.{name}"]) for name in stored}
        self.model.load_state_dict({name: self.part_of(value, stored[name]) for name, value in values.items()})
        self.load_optimiser_state(state)

    def optimiser_state(self) -> dict[str, torch.Tensor]:
        """On rank 0 `optimiser.<parameter>.<slot>`; called by all ranks that train, after the same step."""
        return slots_of(self.optimiser, self.model, self.whole)

    def load_optimiser_state(self, state: dict[str, torch.Tensor]) -> None:
        """Load the state of this process's own parameters into its optimiser."""
        names = {parameter: name for name, parameter in self.model.named_parameters()}
        # torch numbers parameters through all groups, in order.
        parameters = [parameter for group in self.optimiser.param_groups for parameter in group["params"]]
        plain = self.optimiser.state_dict()
        plain["state"] = {
            number: {slot: self.part_of(value, parameter).clone() for slot, value in slots.items()}
            for number, parameter in enumerate(parameters)
            if (slots := slots_for(state, names[parameter]))
        }
        self.optimiser.load_state_dict(plain)

    def whole(self, value: Any) -> torch.Tensor:
        """A dense copy of a parameter, buffer or slot on the CPU of rank 0, elsewhere empty; called by all ranks that train."""
        return kept(value) if self.world.rank == 0 else torch.empty(0)

    def part_of(self, value: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
        """This process's part of a whole value; `like` is the value's parameter or buffer."""
        return value

    def gather(self, value: Any) -> list[Any]:
        """On rank 0 the value of every rank that trains, in order; elsewhere []."""
        if self.world.workers is None or self.world.ranks == 1:
            return [value]
        values: list[Any] | None = [None] * self.world.ranks if self.world.rank == 0 else None
        dist.gather_object(value, values, group=self.world.control or self.world.workers, group_dst=0)
        return values or []

    @contextmanager
    def full_parameters(self) -> Iterator[nn.Module]:
        """Inside, this rank holds all parameters of the training, and calls of the model exchange nothing.

        Entered and left by all ranks that train at the same time: to evaluate, to compare, to keep weights.
        """
        yield self.model

    def gradients(self) -> list[torch.Tensor]:
        """The gradient of every trainable parameter, in order of definition; made zero where backward left none."""
        gradients = []
        for parameter in self.trainable:
            if (gradient := parameter.grad) is None:
                gradient = parameter.grad = torch.zeros_like(parameter)
            gradients.append(gradient)
        return gradients

    def distribute(self, model: nn.Module) -> None:
        """Give all processes of the run, servers included, rank 0's parameters and buffers."""
        if dist.is_initialized():
            for tensor in model.state_dict().values():
                dist.broadcast(tensor, 0)


def wait(*works: dist.Work | None) -> None:
    """Wait for messages of groups that this process is in."""
    for work in works:
        assert work is not None
        work.wait()


# The state of an optimiser under the names of parameters, as checkpoints keep it


def kept(value: Any) -> torch.Tensor:
    """A dense copy on the CPU; numbers become tensors without dimensions."""
    return torch.as_tensor(value).detach().to("cpu", copy=True).contiguous()


def slots_of(
    optimiser: torch.optim.Optimizer, model: nn.Module, copied: Callable[[Any], torch.Tensor] = kept
) -> dict[str, torch.Tensor]:
    """`optimiser.<parameter>.<slot>`."""
    names: dict[torch.Tensor, str] = {parameter: name for name, parameter in model.named_parameters()}
    return {
        f"optimiser.{names[parameter]}.{slot}": copied(value)
        for parameter, slots in optimiser.state.items()
        for slot, value in slots.items()
        if value is not None
    }


def slots_for(state: dict[str, torch.Tensor], name: str) -> dict[str, torch.Tensor]:
    """The state of one parameter, by slot."""
    head = f"optimiser.{name}."
    return {key.removeprefix(head): value for key, value in state.items() if key.startswith(head)}
