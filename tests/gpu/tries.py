"""Runs by the command line, in processes of their own, without an installation."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import torch

from tests.gpu.suite import Suite

ROOT = Path(__file__).resolve().parents[2]
DETERMINISTIC = "import torch; torch.use_deterministic_algorithms(True); torch.backends.cudnn.benchmark = False; "
CALL = "import sys; from scalestudy.cli import main; sys.argv[0] = 'scalestudy'; sys.exit(main())"


def environment(**more: str) -> dict[str, str]:
    """The clone's packages first. On a GPU each run starts its own processes, so that what runs first holds in them."""
    path = os.pathsep.join([str(ROOT / "workflow"), str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
    own = {"SCALESTUDY_WARM": "0"} if torch.cuda.is_available() else {}
    return {**os.environ, "PYTHONPATH": path, **own, "CUBLAS_WORKSPACE_CONFIG": ":4096:8", **more}


def call_after(before: str) -> str:
    """The Python of a command. On a CPU a warm parent makes the runs: what runs before would hold in its client alone."""
    return (before if torch.cuda.is_available() else "") + CALL


def scalestudy(*words: str, before: str = "", timeout_s: float = 240, **more: str) -> subprocess.CompletedProcess[str]:
    """`scalestudy WORDS`, standard error with standard output; `before` is Python that runs first."""
    return subprocess.run(
        [sys.executable, "-c", call_after(before), *words],
        cwd=ROOT, env=environment(**more), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        timeout=timeout_s, check=False,
    )  # fmt: skip


def tried(suite: Suite, name: str, *settings: str, before: str = "", **more: str) -> dict[str, Any]:
    """`scalestudy try` on the suite's device into a folder of that name; its result. AssertionError where it failed."""
    out = suite.folder(name)
    device = [] if any(word.startswith("device=") for word in settings) else [f"device={suite.device.type}"]
    done = scalestudy("try", *device, *settings, "--out", str(out), before=before, **more)
    file = out / "result.json"
    assert done.returncode in (0, 1) and file.exists(), f"status {done.returncode}: {done.stdout.strip()[-1500:]}"
    result: dict[str, Any] = json.loads(file.read_text())
    return result


def valid(result: dict[str, Any]) -> dict[str, Any]:
    """The metrics of a run that has to be valid; on a CPU, where runs are short, its window may be too short for that."""
    short = not torch.cuda.is_available() and str(result["reason"]).startswith("the measured window is ")
    assert result["status"] == "valid" or short, f"{result['status']}: {result['reason']}"
    metrics: dict[str, Any] = result["metrics"]
    return metrics
