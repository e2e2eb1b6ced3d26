"""Stand-in GPUs: a library in the place of NVML, in this process or in those that it starts."""

from __future__ import annotations

import ctypes
import inspect
import os
import shutil
import subprocess
from pathlib import Path

import pynvml
import pytest

from scalestudy import hardware, limits

SOURCE = Path(__file__).with_name("nvml.c")
LIBRARY = "libnvidia-ml.so.1"
H100 = {"STAND_IN_GPU_NAME": "NVIDIA H100 80GB HBM3", "STAND_IN_GPU_MIB": "81559"}
"""What the driver of an H100 of the SXM form says."""


def library(folder: Path) -> Path:
    """The stand-in, compiled into a folder under the name that NVML has."""
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        pytest.skip("STAND-IN GPUS NOT TESTED: there is no C compiler")
    file = folder / LIBRARY
    if not file.exists():
        folder.mkdir(parents=True, exist_ok=True)
        subprocess.run([compiler, "-shared", "-fPIC", "-o", str(file), str(SOURCE)], check=True)
    return file


def environment(folder: Path, count: int, **more: str) -> dict[str, str]:
    """For a process that shall see that many stand-in GPUs."""
    library(folder)
    before = os.environ.get("LD_LIBRARY_PATH")
    path = os.pathsep.join(filter(None, [str(folder), before]))
    return {"LD_LIBRARY_PATH": path, "STAND_IN_GPUS": str(count), **more}


def seen_here(patch: pytest.MonkeyPatch, folder: Path, count: int, **more: str) -> None:
    """Let this process see that many stand-in GPUs, until the test ends."""
    loads(patch, ctypes.CDLL(str(library(folder))))
    for name in (*limits.VISIBLE, "SCALESTUDY_MACHINE"):
        patch.delenv(name, raising=False)
    for name, value in {"STAND_IN_GPUS": str(count), **more}.items():
        patch.setenv(name, value)
    patch.setattr(hardware, "_accelerators", inspect.unwrap(hardware._accelerators))  # without its memory


def loads(patch: pytest.MonkeyPatch, found: ctypes.CDLL | None) -> None:
    """Let nvidia-ml-py find this library in this process, or none, until the test ends."""

    def load(name: str) -> ctypes.CDLL:
        if found is None:
            raise OSError(name)
        return found

    patch.setattr(pynvml, "CDLL", load)
    patch.setattr(pynvml, "nvmlLib", None)
    patch.setattr(pynvml, "_nvmlGetFunctionPointer_cache", {})
