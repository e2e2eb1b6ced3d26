"""Two collectives on single tensors, by the names that this torch has for them; 2.7 has no `…_single`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch.distributed as dist

reduce_scatter: Callable[..., Any] = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor
"""`(output, input, group=…)`: the sum over ranks, of which each has its part."""
all_gather: Callable[..., Any] = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
"""`(output, input, group=…)`: every rank's part, one after the other."""
