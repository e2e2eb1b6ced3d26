"""Many tensors as one message."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch


class FlatBuffer:
    """Room for the values of some tensors, end to end in one 1-D tensor `data`, then `extra` more elements.

    `views` are the parts of `data` in the tensors' shapes. All tensors have one dtype, as `module.to(dtype)` leaves
    them. With `host`, tensors of a GPU are kept in page-locked memory of the host.
    """

    def __init__(self, tensors: Sequence[torch.Tensor], extra: int = 0, host: bool = False) -> None:
        (dtype,) = {tensor.dtype for tensor in tensors}
        device = tensors[0].device
        sizes = [tensor.numel() for tensor in tensors]
        pinned = host and device.type == "cuda"
        self.data = torch.zeros(sum(sizes) + extra, dtype=dtype, device="cpu" if host else device, pin_memory=pinned)
        parts = self.data[: sum(sizes)].split(sizes)  # type: ignore[no-untyped-call]
        self.views = [part.view(tensor.shape) for part, tensor in zip(parts, tensors, strict=True)]

    @torch.no_grad()
    def pack(self, tensors: Iterable[torch.Tensor]) -> None:
        """Copy the tensors' values in."""
        for view, tensor in zip(self.views, tensors, strict=True):
            view.copy_(tensor)

    @torch.no_grad()
    def unpack(self, tensors: Iterable[torch.Tensor]) -> None:
        """Copy the values out into the tensors."""
        for view, tensor in zip(self.views, tensors, strict=True):
            tensor.copy_(view)
