"""Facts of one node: `python -m scalestudy.cluster.doctor.probe FOLDER TOKEN INDEX`, as a launcher starts it."""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
import sys
import time
from contextlib import suppress
from importlib.metadata import distributions
from pathlib import Path
from typing import Any

import psutil
import pynvml

from scalestudy.data.decode import kernel
from scalestudy.files import expanded, write_json
from scalestudy.hardware import torch_here
from scalestudy.launch.job_environment import JobEnvironment
from scalestudy.limits import usable_cores
from scalestudy.measure.instrument import code_digest
from scalestudy.spec.config import Site, read_site

MPIRUN_S = 60
FABRICS = {"infiniband": "/sys/class/infiniband", "omni-path": "/sys/class/infiniband/hfi1_0"}


def probe(shared: Path, token: str) -> dict[str, Any]:
    """Everything of this node, as plain data; nothing that is missing is an error here."""
    site, told, torch, mpi = read_site(), shared / "token", torch_here(), None
    with suppress(OSError, subprocess.SubprocessError):
        command = ["mpirun", "--version"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=MPIRUN_S, check=True)
        mpi = done.stdout.strip().partition("\n")[0]
    return {
        "host": platform.node(),
        "skew_s": _skew(shared),
        "python": {"version": platform.python_version(), "executable": sys.executable},
        "code": code_digest(),
        "torch": torch | {"devices": len(torch["devices"]) if torch["kind"] == "cuda" else 0},
        "decoder": kernel.state(),
        "gpu": _gpu(),
        "mpi": mpi,
        "mpi4py": next((each.version for each in distributions(name="mpi4py")), None),
        "cores": usable_cores(),
        "node_cores": psutil.cpu_count(logical=False) or os.cpu_count(),
        # Not what is usable here: that is what this job has requested.
        "memory_gib": round(psutil.virtual_memory().total / 2**30, 1),
        "fabric": _fabric(),
        "scratch": _scratch(site),
        "shared": told.is_file() and told.read_text(encoding="utf-8") == token,
        "data_roots": {name: expanded(root).is_dir() for name, root in site.data_roots.items()},
    }


def _gpu() -> dict[str, Any]:
    """The driver and the first GPU, by NVML and without torch, which may be too new for the driver."""
    try:
        pynvml.nvmlInit()
        cuda = pynvml.nvmlSystemGetCudaDriverVersion_v2()
        facts: dict[str, Any] = {"driver_cuda": [cuda // 1000, cuda % 1000 // 10]}
        if pynvml.nvmlDeviceGetCount():
            first = pynvml.nvmlDeviceGetHandleByIndex(0)
            facts["name"] = pynvml.nvmlDeviceGetName(first)
            facts["capability"] = list(pynvml.nvmlDeviceGetCudaComputeCapability(first))
        return facts
    except pynvml.NVMLError as error:
        return {"error": str(error)}


def _fabric() -> list[str]:
    """Network interfaces with their speed, and fabrics faster than Ethernet."""
    fabrics = [name for name, place in FABRICS.items() if Path(place).exists() and any(Path(place).iterdir())]
    for name, interface in psutil.net_if_stats().items():
        if name != "lo":
            fabrics.append(name + (f" {interface.speed:,} Mbit/s" if interface.speed > 0 else ""))
    return fabrics


def _scratch(site: Site) -> dict[str, Any]:
    """The node's own disk: its place, whether it can be written, its free space."""
    folder = expanded(site.scratch or os.environ.get("TMPDIR") or "/tmp")
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


def main(folder: Path, token: str, launcher: str, index: str = "") -> None:
    """Write this node's facts next to the token; its number is that of the launcher where none is given."""
    index = index or str(JobEnvironment().process_number(launcher) or 0)
    write_json(folder / f"node.{index}.{platform.node()}.json", probe(folder, token))


if __name__ == "__main__":
    main(Path(sys.argv[1]), *sys.argv[2:])
