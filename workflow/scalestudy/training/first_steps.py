"""Checks of a training's first steps: which parameters have gradients, and whether weights move by the ranks' mean gradient."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from scalestudy.training.replica import Replica, make_optimiser
from scalestudy.training.report import Report

STEPS = 2
"""An exchange that is left out in every second step is seen in the second."""
SAMPLED, MAX_SAMPLED_PARAMETERS = 8, 256
"""Weights of each parameter, and parameters, that are compared."""
TOLERANCE, NARROW_TOLERANCE = 0.01, 0.1
"""Of the largest sampled change of a weight; sums differ by their order, and by more where gradients are compressed."""
MAX_NAMED = 3


class FirstSteps:
    """Watches one rank from `before` to `after` each of the first steps.

    Hooks on the parameters see the local gradients before any exchange, also one inside backward. Of some weights the
    next value is computed apart, by a plain all-reduce of these gradients and the optimiser of one process.
    """

    def __init__(self, replica: Replica, report: Report) -> None:
        """`report`, which a checkpoint keeps, gets what is found."""
        spec, strategy = replica.spec, replica.strategy
        self.replica, self.world, self.report = replica, replica.world, report
        watches = not replica.emulated and not spec.compile and strategy.whole_parameters and not self.world.is_server
        # A resumed optimiser has a history that the check would have to share.
        watches = watches and replica.job.resume is None
        self.left = min(STEPS, max(1, spec.measure.warmup_steps)) if watches else 0
        report.warnings += _unregistered(replica.model) if self.left else []
        self._parameters = [p for p in replica.model.parameters() if p.requires_grad and p.numel()]
        sampled = self._parameters[:: 1 + len(self._parameters) // MAX_SAMPLED_PARAMETERS]
        generator = torch.Generator().manual_seed(0)
        self._places = [
            (parameter, torch.randint(parameter.numel(), (SAMPLED,), generator=generator).to(parameter.device))
            for parameter in sampled
        ]
        self._optimiser: torch.optim.Optimizer | None = None
        exact = spec.strategy.synchronous and strategy.scaler is None
        if self.left and exact and self.world.ranks > 1:
            self._weights = nn.Parameter(self._sampled())
            self._optimiser = make_optimiser(spec.optimiser, [self._weights])

    def before(self) -> None:
        """A step begins."""
        if not self.left:
            return
        self._seen: set[int] = set()
        self._gradients = [torch.zeros(SAMPLED, dtype=p.dtype, device=p.device) for p, _ in self._places]
        slots = {id(parameter): slot for slot, (parameter, _) in enumerate(self._places)}
        self._hooks = [p.register_hook(partial(self._hook, id(p), slots.get(id(p)))) for p in self._parameters]

    def after(self, rate: float) -> None:
        """It has ended, with this learning rate."""
        if not self.left:
            return
        self.left -= 1
        for hook in self._hooks:
            hook.remove()
        if self.report.steps_done == 0:
            self.report.warnings += self._without_gradient()
        if self._optimiser is not None:
            self._compare(self._optimiser, rate)

    def _compare(self, optimiser: torch.optim.Optimizer, rate: float) -> None:
        """Compare the sampled weights with those after a plain all-reduce."""
        before, mean = self._weights.detach().clone(), torch.cat(self._gradients)
        dist.all_reduce(mean, group=self.world.workers)
        for group in optimiser.param_groups:
            group["lr"] = rate
        self._weights.grad = mean / self.world.ranks
        optimiser.step()
        expected, model_weights = self._weights.detach(), self._sampled()
        change, error = float((expected - before).abs().max()), float((model_weights - expected).abs().max())
        rounding = 8 * torch.finfo(model_weights.dtype).eps * float(expected.abs().max())
        narrow = getattr(self.replica.strategy.options, "compression", "none") != "none"
        if error > (NARROW_TOLERANCE if narrow else TOLERANCE) * change + rounding and not self.report.invalid_reason:
            name = self.replica.spec.strategy.name
            self.report.invalid_reason = (
                f"`{name}` does not exchange the mean gradient: in one of the first steps a weight differs by {error:.2g} from "
                f"that after a plain all-reduce, which moves weights by {change:.2g} at most: see `exchange` of the strategy"
            )
        self._weights.data.copy_(model_weights)

    def _hook(self, parameter: int, slot: int | None, gradient: Any) -> None:
        """Called with one backward pass's addition to a parameter's gradient."""
        if gradient is None:
            return
        self._seen.add(parameter)
        if slot is not None:
            self._gradients[slot] += gradient.detach().reshape(-1)[self._places[slot][1]]

    def _sampled(self) -> torch.Tensor:
        return torch.cat([parameter.detach().reshape(-1)[places] for parameter, places in self._places])

    def _without_gradient(self) -> Iterator[str]:
        named = dict(self.replica.model.named_parameters())
        frozen = [name for name, parameter in named.items() if not parameter.requires_grad]
        missing = [name for name, p in named.items() if p.requires_grad and p.numel() and id(p) not in self._seen]
        for names, what in (
            (missing, "got no gradient in the first step: the loss does not depend on them"),
            (frozen, "are not trained, since `requires_grad` is off"),
        ):
            if names:
                yield f"{len(names)} of {len(named)} parameters ({_shown(names)}) {what}"


def _shown(names: list[str]) -> str:
    return ", ".join(names[:MAX_NAMED]) + (", …" if len(names) > MAX_NAMED else "")


def _unregistered(model: nn.Module) -> Iterator[str]:
    """Layers and parameters that lie in plain lists and mappings, which torch does not search."""
    registered_ids = {id(part) for part in (*model.modules(), *model.parameters())}
    lost = []
    for prefix, module in model.named_modules():
        for name, value in vars(module).items():
            items = value.values() if isinstance(value, dict) else value if isinstance(value, (list, tuple)) else ()
            parts = [part for part in items if isinstance(part, (nn.Module, nn.Parameter))]
            if name not in ("_modules", "_parameters") and any(id(part) not in registered_ids for part in parts):
                lost.append(f"{prefix}.{name}".lstrip("."))
    if lost:
        remedy = "use nn.ModuleList, nn.ModuleDict or nn.ParameterList"
        yield f"layers in plain lists or mappings ({_shown(lost)}) are no part of the model and not trained: {remedy}"
