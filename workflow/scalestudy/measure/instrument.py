"""Instrument of a measurement: code, versions, hardware."""

from __future__ import annotations

import functools
import os
import platform
import re
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from scalestudy.files import sha256_text
from scalestudy.limits import kernel_text, usable_cores, usable_memory_bytes
from scalestudy.measure import allocator
from scalestudy.measure.placement import SYSTEM
from scalestudy.nvml import driver_version

MEASURING = ("data", "emulation", "launch", "measure", "models", "program", "results", "spec", "strategies", "training")
"""Folders of the package whose code can change a measured number: all but analysis, figures, planning and commands."""

UNKNOWN = "not shown"
SWITCHES = re.compile(
    r"(NCCL|GLOO|UCX|TORCH|PYTORCH|ATEN|CUBLAS|CUDNN|OMP|KMP|MKL|OPENBLAS|ONEDNN|DNNL|MALLOC)_\w+"
    r"|CUDA_LAUNCH_BLOCKING|CUDA_DEVICE_MAX_CONNECTIONS|NVIDIA_TF32_OVERRIDE|GLIBC_TUNABLES|LD_PRELOAD|PYTHONMALLOC|PYTHONDEVMODE"
)
"""Environment variables that change how fast libraries are, or which algorithm they take."""
NO_SWITCHES = re.compile(r"\w+_NUM_THREADS|TORCH_EXTENSIONS_DIR|TORCH_HOME")
"""Snakemake sets threads by the cores of a job, and a run sets its own; folders change no speed."""
DEBUG = re.compile(
    r"CUDA_LAUNCH_BLOCKING|PYTORCH_NO_CUDA_MEMORY_CACHING|TORCH_DISTRIBUTED_DEBUG|TORCH_SHOW_CPP_STACKTRACES|NCCL_DEBUG"
    r"|CUDNN_LOG\w+|(MKL|ONEDNN|DNNL)_VERBOSE|MALLOC_(CHECK|PERTURB)_|PYTHONMALLOC|PYTHONDEVMODE"
)
"""Switches for debugging, which slow a step down."""
OFF = ("", "0", "OFF", "INFO", "WARN", "VERSION", "malloc", "pymalloc")


@functools.lru_cache(maxsize=1)
def code_digest() -> str:
    """Twelve hex digits over the code that measures: see MEASURING."""
    package = Path(__file__).parent.parent
    parts = [
        f"{file.relative_to(package)} {sha256_text(file.read_text(encoding='utf-8'))}"
        for file in sorted([*package.rglob("*.py"), *package.rglob("*.c")])
        if file.relative_to(package).parts[0] in MEASURING
    ]
    return sha256_text("\n".join(parts))[:12]


def instrument(device: str) -> dict[str, Any]:
    """The instrument as far as this process knows it; `of_rank` has the rest, and that of another host."""
    here = of_host()
    return {
        "code": code_digest(), "python": platform.python_version(), "cpu": here["cpu"], "cores": usable_cores(),
        "memory_gib": here["memory_gib"], "device_name": device, "system": here["system"],
        **({"environment": text} if (text := switches(os.environ)) else {}),
    }  # fmt: skip


def switches(environment: Mapping[str, str]) -> str:
    """The variables that change a library's speed, `NAME=value`, by name; threads and folders are left out."""
    names = sorted(name for name in environment if SWITCHES.fullmatch(name) and not NO_SWITCHES.fullmatch(name))
    return " ".join(f"{name}={environment[name]}" for name in names)


def debug_warnings(environment: Mapping[str, str]) -> Iterator[str]:
    """A warning that names the debugging switches that are on."""
    on = [name for name in sorted(environment) if DEBUG.fullmatch(name) and environment[name] not in OFF]
    if on:
        yield f"debugging slows the steps of this run: unset {', '.join(on)}"


def of_rank() -> dict[str, Any]:
    """A rank's part: its host, and versions of modules that `scalestudy train` does not import."""
    import torch

    versions: dict[str, Any] = {"torch": torch.__version__}
    if torch.cuda.is_initialized():
        versions["driver"] = driver_version() or UNKNOWN
        if torch.distributed.is_nccl_available():  # a torch without it has no version of it either
            versions["nccl"] = ".".join(map(str, torch.cuda.nccl.version()))
    if (mpi := sys.modules.get("mpi4py.MPI")) is not None:
        versions["mpi"] = mpi.Get_library_version().partition("\n")[0].partition(",")[0]
    return {**versions, "allocator": allocator.name(), **of_host()}


def of_host(system: Path = SYSTEM) -> dict[str, Any]:
    """Processor, its clock, memory and kernel of the machine that this process is on."""
    huge_pages = kernel_text(system / "kernel/mm/transparent_hugepage/enabled")  # the chosen word stands in brackets
    return {
        "cpu": cpu_name(),
        "memory_gib": round(usable_memory_bytes() / 2**30, 1),
        "system": f"{platform.system()} {platform.release()}",
        "huge_pages": huge_pages.partition("[")[2].partition("]")[0] or UNKNOWN,
        **cpu_clock(system),
    }


def cpu_clock(system: Path = SYSTEM) -> dict[str, str]:
    """Governor, highest clock and boost of the cores that this process may use; a virtual machine often shows none."""
    folders = [system / f"devices/system/cpu/cpu{core}/cpufreq" for core in sorted(os.sched_getaffinity(0))]
    governors = dict.fromkeys(filter(None, (kernel_text(folder / "scaling_governor") for folder in folders)))
    clocks = [int(khz) for folder in folders if (khz := kernel_text(folder / "scaling_max_freq")).isdigit()]
    boost = kernel_text(system / "devices/system/cpu/cpufreq/boost")
    off = boost == "0" or kernel_text(system / "devices/system/cpu/intel_pstate/no_turbo") == "1"
    return {
        "governor": " / ".join(governors) or UNKNOWN,
        "clock": f"{max(clocks) / 1e6:.2f} GHz at most{', no boost' if off else ''}" if clocks else UNKNOWN,
    }


def cpu_name(cpuinfo: Path = Path("/proc/cpuinfo")) -> str:
    """The processor's name as the kernel has it, with family and model: virtual machines shorten names, so that
    processors that differ fourfold in speed would have one.
    """
    first = kernel_text(cpuinfo).partition("\n\n")[0]
    facts = {name.strip(): value.strip() for name, _, value in (line.partition(":") for line in first.splitlines())}
    name = facts.get("model name") or platform.processor() or platform.machine()
    kind = [f"{word} {facts[key]}" for key, word in KIND_OF_CPU.items() if key in facts]
    return f"{name} ({', '.join(kind)})" if kind else name


KIND_OF_CPU = {"cpu family": "family", "model": "model", "CPU implementer": "implementer", "CPU part": "part"}
"""What /proc/cpuinfo calls a kind of processor, on x86 and on Arm, and how it is shown."""
