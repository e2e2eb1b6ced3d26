"""An optimiser's state under the names of parameters, as checkpoints keep it."""

from __future__ import annotations

import torch
from torch import nn


def kept(tensor: torch.Tensor) -> torch.Tensor:
    """A dense copy on the CPU."""
    return tensor.detach().to("cpu", copy=True).contiguous()


def slots_of(optimiser: torch.optim.Optimizer, model: nn.Module) -> dict[str, torch.Tensor]:
    """`optimiser.<parameter>.<slot>`; numbers become tensors without dimensions."""
    names: dict[torch.Tensor, str] = {parameter: name for name, parameter in model.named_parameters()}
    return {
        f"optimiser.{names[parameter]}.{slot}": kept(torch.as_tensor(value))
        for parameter, slots in optimiser.state.items()
        for slot, value in slots.items()
        if value is not None
    }


def slots_for(state: dict[str, torch.Tensor], name: str) -> dict[str, torch.Tensor]:
    """The state of one parameter, by slot."""
    head = f"optimiser.{name}."
    return {key.removeprefix(head): value for key, value in state.items() if key.startswith(head)}


def load_slots(optimiser: torch.optim.Optimizer, model: nn.Module, state: dict[str, torch.Tensor]) -> None:
    """Load the state of an optimiser's parameters."""
    names = {parameter: name for name, parameter in model.named_parameters()}
    # torch numbers parameters through all groups, in order.
    parameters = [parameter for group in optimiser.param_groups for parameter in group["params"]]
    plain = optimiser.state_dict()
    found = {number: slots_for(state, names[parameter]) for number, parameter in enumerate(parameters)}
    plain["state"] = {
        number: {slot: value.clone() for slot, value in slots.items()} for number, slots in found.items() if slots
    }
    optimiser.load_state_dict(plain)
