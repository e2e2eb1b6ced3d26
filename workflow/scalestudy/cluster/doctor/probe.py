"""Facts of one node: `python -m scalestudy.cluster.doctor.probe FOLDER TOKEN INDEX`, as a launcher starts it."""

from __future__ import annotations

import json
import os
import platform
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import psutil

from scalestudy.files import write_json
from scalestudy.limits import usable_cores, usable_memory_bytes
from scalestudy.measure.instrument import code_digest
from scalestudy.nvml import unusual_modes
from scalestudy.spec.config import Site, read_site

TORCH = """
import json, torch
found = {"version": torch.__version__, "cuda": torch.version.cuda, "devices": torch.cuda.device_count()}
accelerator = getattr(torch, "accelerator", None)
if accelerator is not None and accelerator.is_available():
    found["accelerator"] = accelerator.current_accelerator().type
# Not torch.cuda.get_arch_list(), which is empty where the driver is too old for this torch.
flags = getattr(torch._C, "_cuda_getArchFlags", lambda: None)()
found["arch"] = flags.split() if flags else torch.cuda.get_arch_list()
if torch.cuda.is_available():
    found["device_name"] = torch.cuda.get_device_name(0)
    found["nccl"] = ".".join(map(str, torch.cuda.nccl.version()))
found["gloo"] = torch.distributed.is_available() and torch.distributed.is_gloo_available()
print(json.dumps(found))
"""
# The driver is asked without torch, which may be too new for it. 75, 76: CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR and
# _MINOR of cuda.h.
GPU = """
import ctypes, json
cuda, value, found = ctypes.CDLL("libcuda.so.1"), ctypes.c_int(), {}
if cuda.cuDriverGetVersion(ctypes.byref(value)) == 0:
    found["driver_cuda"] = [value.value // 1000, value.value % 1000 // 10]
if cuda.cuInit(0) == 0 and cuda.cuDeviceGetCount(ctypes.byref(value)) == 0 and value.value:
    found["devices"] = value.value
    device, name, size = ctypes.c_int(), ctypes.create_string_buffer(256), ctypes.c_size_t()
    cuda.cuDeviceGet(ctypes.byref(device), 0)
    cuda.cuDeviceGetName(name, 256, device)
    cuda.cuDeviceTotalMem_v2(ctypes.byref(size), device)
    found["name"], found["memory_gib"] = name.value.decode(), round(size.value / 2**30, 1)
    found["capability"] = []
    for attribute in (75, 76):
        cuda.cuDeviceGetAttribute(ctypes.byref(value), attribute, device)
        found["capability"].append(value.value)
print(json.dumps(found))
"""
PROBE_S = 180
FABRICS = {"infiniband": "/sys/class/infiniband", "omni-path": "/sys/class/infiniband/hfi1_0"}


def probe(shared: Path, token: str) -> dict[str, Any]:
    """Everything of this node, as plain data; nothing that is missing is an error here."""
    site = read_site()
    return {
        "host": platform.node(),
        "skew_s": _skew(shared),
        "python": {"version": platform.python_version(), "executable": sys.executable},
        "code": code_digest(),
        "torch": _python(TORCH),
        "gpu": _python(GPU),
        "mpi": _first_line(["mpirun", "--version"]),
        "mpi4py": _python("import json, mpi4py; print(json.dumps(mpi4py.__version__))"),
        "nvidia": _first_line(["nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader"]),
        "gpu_modes": unusual_modes(),
        "cores": usable_cores(),
        "node_cores": psutil.cpu_count(logical=False) or os.cpu_count(),
        "memory_gib": round(usable_memory_bytes() / 2**30, 1),
        "fabric": _fabric(),
        "scratch": _scratch(site),
        "shared": (shared / "token").is_file() and (shared / "token").read_text(encoding="utf-8") == token,
        "data_roots": {name: Path(root).expanduser().is_dir() for name, root in site.data_roots.items()},
    }


def _output(command: Sequence[str], limit_s: float) -> str:
    """The output of a command; OSError where it is missing, fails or is too slow."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=limit_s, check=False)
    except subprocess.TimeoutExpired:
        raise OSError(f"took more than {limit_s} s") from None
    if done.returncode:
        raise OSError((done.stderr.strip().splitlines() or [f"exit status {done.returncode}"])[-1])
    return done.stdout.strip()


def _python(code: str) -> Any:
    """The JSON that a piece of Python prints, in a separate process: a library that crashes is information too."""
    try:
        return json.loads(_output([sys.executable, "-c", code], PROBE_S).splitlines()[-1])
    except OSError as error:
        return {"error": str(error)}


def _first_line(command: Sequence[str]) -> str | None:
    try:
        return (_output(command, 60).splitlines() or [""])[0]
    except OSError:
        return None


def _fabric() -> list[str]:
    """Network interfaces with their speed, and fabrics faster than Ethernet."""
    found = [name for name, place in FABRICS.items() if Path(place).exists() and any(Path(place).iterdir())]
    for interface in sorted(Path("/sys/class/net").glob("*")):
        if interface.name == "lo":
            continue
        try:
            speed = int((interface / "speed").read_text())
        except (OSError, ValueError):
            speed = 0
        found.append(interface.name + (f" {speed:,} Mbit/s" if speed > 0 else ""))
    return found


def _scratch(site: Site) -> dict[str, Any]:
    """The node's own disk: its place, whether it can be written, its free space."""
    folder = Path(os.path.expandvars(site.scratch or os.environ.get("TMPDIR") or "/tmp")).expanduser()
    try:
        file = folder / f".scalestudy-doctor.{os.getpid()}"
        file.write_bytes(b"x")
        file.unlink()
        return {"folder": str(folder), "free_gib": round(shutil.disk_usage(folder).free / 2**30, 1)}
    except OSError as error:
        return {"folder": str(folder), "error": error.strerror or str(error)}


def _skew(shared: Path) -> float | None:
    """Seconds that this node's clock is ahead of the one that stamps files in the shared folder; None: not writable."""
    file = shared / f"clock.{platform.node()}.{os.getpid()}"
    try:
        before = time.time()
        file.write_bytes(b"x")
        stamped, after = file.stat().st_mtime, time.time()
        file.unlink()
    except OSError:
        return None
    # What the clock says lies between the two; a coarse time stamp may be a tick early.
    return round(before - stamped if stamped < before else min(0.0, after - stamped), 1)


def main(folder: Path, token: str, index: str) -> None:
    """Write this node's facts next to the token."""
    write_json(folder / f"node.{index}.{platform.node()}.json", probe(folder, token))


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], sys.argv[3])
