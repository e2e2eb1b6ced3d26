"""Recognise and report a run beyond the memory of its device."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress

import torch

from scalestudy.errors import Skipped, UserError
from scalestudy.training.job import Job

NO_MEMORY = ("out of memory", "CUBLAS_STATUS_ALLOC_FAILED", "CUDNN_STATUS_ALLOC_FAILED")
"""Of CUDA and its libraries, in an error that torch gives no type of its own."""
OTHERS_BYTES = 3 << 30
"""What others hold of a device beyond this is no property of the run. The driver and a process's own context, its libraries
and NCCL's buffers take 1 to 2 GiB that torch's allocator does not count."""


def is_oom(error: BaseException) -> bool:
    """Whether an error says that a device's memory does not suffice."""
    is_named = isinstance(error, RuntimeError) and any(words in str(error) for words in NO_MEMORY)
    return is_named or isinstance(error, torch.OutOfMemoryError)


@contextmanager
def oom_as_skip(job: Job) -> Iterator[None]:
    """Raise Skipped where memory of the device runs out inside: the same happens next time.

    UserError where others hold much of the device: then it may not.
    """
    try:
        yield
    except RuntimeError as error:
        if not is_oom(error):
            raise
        print(f"{type(error).__name__}: {error}", flush=True)  # torch's whole message, for the log
        message = str(error).strip().split("\n")[0][:300].rstrip(".")  # torch names request, capacity and use
        others = 0
        with suppress(RuntimeError, AssertionError):  # after some errors the device answers nothing more
            if torch.cuda.is_initialized() and not job.shares_devices:
                free, total = torch.cuda.mem_get_info()
                others = total - free - torch.cuda.memory_reserved()
        if others > OTHERS_BYTES:
            what = f"memory of the device ran out, of which others hold {others / 2**30:.1f} GiB: {message}"
            remedy = "end the other programs on this device, then run the same command again"
            raise UserError(what, remedy=remedy) from None
        raise Skipped(f"does not fit: {message}; use a smaller batch, or another strategy or precision") from None
