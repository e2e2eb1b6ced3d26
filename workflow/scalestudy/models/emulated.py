"""A stand-in that waits where an accelerator would compute."""

from __future__ import annotations

import time
from typing import Any

import torch
from torch import nn

from scalestudy.models.outputs import predictions
from scalestudy.models.shapes import call_on_meta


def emulate(model: nn.Module, step_time_s: float, forward_share: float = 1 / 3) -> nn.Module:
    """A module with `model`'s own parameters and buffers, whose forward and backward take `step_time_s` together.

    Forward sleeps `forward_share` of it (backward computes two products where forward computes one) and returns logits
    that are zero, [batch, classes], and no auxiliary ones. Backward lets a gradient of zero appear for every parameter
    in reverse order of definition, as far as autograd, its hooks and DistributedDataParallel can tell. The time of
    backward is shared equally by the modules that hold parameters, whose gradients appear together: a convolution and a
    classifier with a hundred times its parameters are nearer in time than in size. Each waits for a moment counted from
    the start of its pass, so that what happens in between (an exchange in a hook) takes place within the emulated time,
    and delays do not add up. Nothing is computed and a sleeping rank uses no CPU; the loss
    lies between the passes, is real, and comes on top. `step_time_s` 0 is an infinitely fast accelerator.
    """
    return _Emulated(model, step_time_s, forward_share)


class _Emulated(nn.Module):
    def __init__(self, model: nn.Module, step_time_s: float, forward_share: float) -> None:
        super().__init__()
        self._parameters, self._buffers, self._modules = model._parameters, model._buffers, model._modules
        # Not as a submodule: names of parameters stay those of the model.
        self.__dict__["real"] = model
        self.forward_s = forward_share * step_time_s
        self.backward_s = step_time_s - self.forward_s
        self.trainable = [parameter for parameter in model.parameters() if parameter.requires_grad]
        self.ready_at = _ready_at(model)
        self.kept = [torch.zeros_like(parameter, requires_grad=False) for parameter in self.trainable]
        self.logit_shapes: dict[tuple[int, ...], torch.Size] = {}

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Logits of zero, [batch, classes], in the parameters' dtype."""
        begin = time.perf_counter()
        logits = torch.zeros(self._logit_shape(x.shape), dtype=self.trainable[0].dtype, device=x.device)
        if torch.is_grad_enabled():
            backward = _Pass(self.backward_s)
            for parameter, share, kept in zip(self.trainable, self.ready_at, self.kept, strict=True):
                logits = _Layer.apply(logits, parameter, backward, share, kept)  # type: ignore[no-untyped-call]
        _sleep_until(begin + self.forward_s)
        return logits

    def _logit_shape(self, shape: torch.Size) -> torch.Size:
        if shape not in self.logit_shapes:
            with torch.no_grad():
                output = call_on_meta(self.real, shape, self.trainable[0].dtype)
            self.logit_shapes[shape] = predictions(output).shape
        return self.logit_shapes[shape]


def _ready_at(model: nn.Module) -> list[float]:
    """For each trainable parameter, the share of backward after which its gradient is there."""
    owners: dict[nn.Parameter, int] = {}
    for module in model.modules():
        place = max(owners.values(), default=-1) + 1
        for parameter in module.parameters(recurse=False):
            if parameter.requires_grad:
                owners.setdefault(parameter, place)
    count = max(owners.values()) + 1
    return [1 - owner / count for owner in owners.values()]


class _Pass:
    """One backward pass, which begins when its first layer is reached."""

    def __init__(self, duration_s: float) -> None:
        self.duration_s = duration_s
        self.begin: float | None = None

    def wait_for(self, share: float) -> None:
        """Sleep until this share of the pass is over."""
        if self.begin is None:
            self.begin = time.perf_counter()
        _sleep_until(self.begin + share * self.duration_s)


class _Layer(torch.autograd.Function):
    """The identity on logits, whose backward waits and then has a gradient for one parameter."""

    @staticmethod
    def forward(ctx: Any, logits: torch.Tensor, _parameter: torch.Tensor, backward: _Pass, share: float, kept: torch.Tensor) -> torch.Tensor:
        ctx.backward, ctx.share, ctx.kept = backward, share, kept
        return logits.view_as(logits)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> Any:
        ctx.backward.wait_for(ctx.share)
        # A fresh alias that nobody else holds becomes the parameter's `grad` without being copied.
        return gradient, ctx.kept.detach(), None, None, None


def _sleep_until(moment: float) -> None:
    left = moment - time.perf_counter()
    if left > 0:
        time.sleep(left)
