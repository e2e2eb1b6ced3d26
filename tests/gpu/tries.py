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
LONGEST_S = 240.0
CALL = "import sys; from scalestudy.cli import main; sys.argv[0] = 'scalestudy'; sys.exit(main())"


def environment(own_processes: bool = False, **more: str) -> dict[str, str]:
    """The clone's packages first. With `own_processes` a run on a GPU is no child of a warm parent, but of its command."""
    path = os.pathsep.join([str(ROOT / "workflow"), str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
    own = {"SCALESTUDY_WARM": "0"} if own_processes and torch.cuda.is_available() else {}
    return {**os.environ, "PYTHONPATH": path, **own, "CUBLAS_WORKSPACE_CONFIG": ":4096:8", **more}


def call_after(before: str) -> str:
    """The Python of a command. What runs before it holds in its own processes alone, which on a CPU do not make the runs."""
    return (before if torch.cuda.is_available() else "") + CALL


def scalestudy(
    suite: Suite, *words: str, before: str = "", cwd: Path = ROOT, **more: str
) -> subprocess.CompletedProcess[str]:
    """`scalestudy WORDS`, standard error with standard output; `before` is Python that runs first.

    AssertionError where it has not ended when the suite's time is over, or after some minutes.
    """
    limit_s = min(LONGEST_S, suite.left_s)
    try:
        return subprocess.run(
            [sys.executable, "-c", call_after(before), *words],
            cwd=cwd, env=environment(bool(before), **more), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
            timeout=limit_s, check=False,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        raise AssertionError(f"`scalestudy {words[0]}` has not ended after {limit_s:.0f} s") from None


def tried(suite: Suite, name: str, *settings: str, before: str = "", cwd: Path = ROOT, **more: str) -> dict[str, Any]:
    """`scalestudy try` on the suite's device into a folder of that name; its result. AssertionError where it failed."""
    out = suite.folder(name)
    device = [] if any(word.startswith("device=") for word in settings) else [f"device={suite.device.type}"]
    done = scalestudy(suite, "try", *device, *settings, "--out", str(out), before=before, cwd=cwd, **more)
    file = out / "result.json"
    assert done.returncode in (0, 1) and file.exists(), f"status {done.returncode}: {done.stdout.strip()[-1500:]}"
    result: dict[str, Any] = json.loads(file.read_text())
    return result


def valid(result: dict[str, Any], measured: bool = False) -> dict[str, Any]:
    """The metrics of a run that has to be valid.

    Where its times are not what is looked at, and on a CPU, where runs are short, its window may be too short for that.
    """
    may_be_short = not measured or not torch.cuda.is_available()
    short = may_be_short and str(result["reason"]).startswith("the measured window is ")
    assert result["status"] == "valid" or short, f"{result['status']}: {result['reason']}"
    metrics: dict[str, Any] = result["metrics"]
    return metrics
