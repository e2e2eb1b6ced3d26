"""Page-locked memory for batches: copies from it to a GPU are asynchronous."""

from __future__ import annotations

import torch

from scalestudy.errors import UserError

Batch = tuple[torch.Tensor, torch.Tensor]


def empty(size: int, device: int | None) -> torch.Tensor:
    """uint8 [size] memory; page-locked where there is a device. It is given back by torch, once no copy from it is under way."""
    if device is None:
        return torch.empty(size, dtype=torch.uint8)
    try:
        return torch.empty(size, dtype=torch.uint8, pin_memory=True)
    except RuntimeError as error:
        raise _refused(size, str(error)) from None


def pinned(batch: Batch, device: int | None) -> Batch:
    """The batch in page-locked memory; as it is where there is no device, or it lies there already."""
    if device is None:
        return batch
    x, y = batch
    try:
        return x if x.is_pinned() else x.pin_memory(), y if y.is_pinned() else y.pin_memory()
    except RuntimeError as error:
        raise _refused(x.nbytes + y.nbytes, str(error)) from None


class Registered:
    """Memory that is not torch's, such as what processes share, page-locked until `close`."""

    def __init__(self, memory: torch.Tensor, device: int) -> None:
        """Raises UserError where the system refuses."""
        self._address, self._device = memory.data_ptr(), device
        status = int(torch.cuda.cudart().cudaHostRegister(self._address, memory.nbytes, 0))
        if status:
            raise _refused(memory.nbytes, f"cudaHostRegister: CUDA error {status}")

    def close(self) -> None:
        """Give it back, before its pages are freed: CUDA would take what is mapped there later for page-locked."""
        torch.cuda.synchronize(self._device)  # a copy from it may be under way
        status = int(torch.cuda.cudart().cudaHostUnregister(self._address))
        assert not status, f"cudaHostUnregister: CUDA error {status}"


def _refused(size: int, why: str) -> UserError:
    what = f"{size / 2**20:,.0f} MiB of batches cannot be page-locked: {why.strip().splitlines()[0]}"
    remedy = "make fewer batches ahead (`loader.workers`, `loader.prefetch`), or set `loader.pin_memory: false`"
    return UserError(what, "loader.pin_memory", remedy)
