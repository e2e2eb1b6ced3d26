"""A stand-in that waits where an accelerator would compute."""

from __future__ import annotations

import math
import time
from collections import deque
from typing import Any

import torch
from torch import nn

from scalestudy.models.outputs import call_on_meta, predictions

HOST_S = 0.005
"""Most seconds of work between two steps that cost a device nothing: its host runs ahead, and has done them meanwhile."""


class Emulated(nn.Module):
    """A module with `model`'s own parameters and buffers; its forward and backward take `step_time_s` together.

    Forward sleeps a third of it (backward computes two products where forward computes one) and returns logits
    that are zero, [batch, classes], and no auxiliary ones. Backward lets a gradient of zero appear for every parameter
    in reverse order of definition, as far as autograd, its hooks and DistributedDataParallel can tell. The time of
    backward is shared equally by the modules that hold parameters; gradients of one module appear together: a convolution and a
    classifier with a hundred times its parameters are nearer in time than in size.

    Each gradient waits for a moment counted from the start of forward. So delays do not add up, and work in
    between, the loss or an exchange in a hook, takes place within the emulated time, as it does in published step
    times. Nothing is computed and a sleeping rank uses no CPU. `step_time_s` 0 is an infinitely fast accelerator.

    The next pass begins where this one ended, and as much later as `waited` says, where no more than HOST_S of other work
    of the host is between them. After `synchronise` it begins when it is given.
    """

    def __init__(self, model: nn.Module, step_time_s: float) -> None:
        super().__init__()
        self._parameters, self._buffers, self._modules = model._parameters, model._buffers, model._modules
        # Not as a submodule: names of parameters stay those of the model.
        self.real = (model,)
        self.forward_s = step_time_s / 3
        self.backward_s = step_time_s - self.forward_s
        self.trainable = [parameter for parameter in model.parameters() if parameter.requires_grad]
        self.ready_at = _ready_at(model)
        self.kept = [torch.zeros_like(parameter, requires_grad=False) for parameter in self.trainable]
        self.logit_shapes: dict[tuple[int, ...], torch.Size] = {}
        self.free_since = -math.inf

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Logits of zero, [batch, classes], in the parameters' dtype."""
        now = time.perf_counter()
        end = (self.free_since if now - self.free_since < HOST_S else now) + self.forward_s
        dtype = self.trainable[0].dtype
        if x.shape not in self.logit_shapes:
            with torch.no_grad():
                self.logit_shapes[x.shape] = predictions(call_on_meta(self.real[0], x.shape, dtype)).shape
        logits = torch.zeros(self.logit_shapes[x.shape], dtype=dtype, device=x.device)
        if torch.is_grad_enabled():
            self.free_since = end + self.backward_s
            for parameter, share, kept in zip(self.trainable, self.ready_at, self.kept, strict=True):
                logits = _Layer.apply(logits, parameter, kept, end + share * self.backward_s)  # type: ignore[no-untyped-call]
        _sleep_until(end)
        return logits

    def waited(self, seconds: float) -> None:
        """The host waited for a batch: so did the device."""
        self.free_since += seconds

    def synchronise(self) -> None:
        """What the host did after backward, such as an exchange, the device waited for."""
        self.free_since = time.perf_counter()


def _ready_at(model: nn.Module) -> list[float]:
    """For each trainable parameter, the share of backward after which its gradient is there."""
    owners = [name.rpartition(".")[0] for name, parameter in model.named_parameters() if parameter.requires_grad]
    position = {owner: index for index, owner in enumerate(dict.fromkeys(owners))}
    return [1 - position[owner] / len(position) for owner in owners]


class _Layer(torch.autograd.Function):
    """The identity on logits; its backward waits and then has a gradient for one parameter."""

    @staticmethod
    def forward(
        ctx: Any, logits: torch.Tensor, _parameter: nn.Parameter, kept: torch.Tensor, ready_at: float
    ) -> torch.Tensor:
        ctx.kept, ctx.ready_at = kept, ready_at
        return logits.view_as(logits)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> Any:
        _sleep_until(ctx.ready_at)
        # A fresh alias without another owner becomes the parameter's `grad` without being copied.
        return gradient, ctx.kept.detach(), None, None


_lateness_s: deque[float] = deque([0.0], maxlen=64)
"""By how much the last sleeps ended too late."""


def _sleep_until(moment: float) -> None:
    """Sleep to an absolute moment, less the delay of every sleep: the least of the last ones, never more than left."""
    early_s = min(_lateness_s)
    left = moment - early_s - time.perf_counter()
    if left > 0:
        time.sleep(left)
        _lateness_s.append(max(0.0, time.perf_counter() - (moment - early_s)))
