"""Whether the installed torch runs on a node's GPUs."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

Version = tuple[int, ...]
OTHERS = (
    "take a torch for these: `make setup LOCK=cuda126` (CUDA 12.6, sm_50 to sm_90) or `make setup LOCK=default` (CUDA 13.0, "
    "sm_75 and newer), or a build of your own; or ask for other nodes"
)
"""Remedy. Architectures of CUDA 12.6: PyTorch, .ci/manywheel/build_cuda.sh; of 13.0: as the locked wheel says of itself."""

CODE = re.compile(r"(sm|compute)_(\d+)(\d)[a-z]?")


def problem(torch: Mapping[str, Any], gpu: Mapping[str, Any]) -> tuple[str, str] | None:
    """The obstacle between torch and this GPU, and its remedy; None where there is none, or none is known.

    `torch` has `cuda` (text) and `arch` (list), `gpu` `capability` and `driver_cuda` ([major, minor]), as the probe finds them.
    """
    capability, driver = tuple(gpu.get("capability") or ()), tuple(gpu.get("driver_cuda") or ())
    cuda, version, archs = torch.get("cuda"), torch.get("version"), torch.get("arch") or []
    name = gpu.get("name") or "its GPU"
    if capability and not cuda and "error" not in torch:
        wrong = f"a GPU, {name}, and torch {version} has no CUDA"
    elif driver and cuda and driver[0] < int(cuda.partition(".")[0]):
        needs = f"a driver for CUDA {driver[0]}.{driver[1]}, and torch {version} needs one for CUDA"
        wrong = f"{needs} {cuda.partition('.')[0]}: it sees no GPU"
    elif capability and archs and not carries(archs, capability):
        holds = f"for which torch {version} holds no code ({' '.join(archs)})"
        wrong = (
            f"{name} (sm_{capability[0]}{capability[1]}), {holds}: runs would die with `no kernel image is available`"
        )
    else:
        return None
    return wrong, OTHERS


def carries(archs: Iterable[str], capability: Version) -> bool:
    """Whether code for `sm_75`, `compute_90`, … runs on a GPU of this compute capability.

    Binary code runs on the same major version and no lower minor one, PTX (`compute_…`) on that and all later ones:
    CUDA C++ Programming Guide, "Compilation with NVCC", binary and PTX compatibility.
    """
    found = [(match[1], (int(match[2]), int(match[3]))) for match in map(CODE.fullmatch, archs) if match]
    return any(of <= capability and (kind == "compute" or of[0] == capability[0]) for kind, of in found)
