"""`scalestudy try` as a person types it, and what it leaves."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tests.integration import fork_server

ROOT = Path(__file__).resolve().parents[2]
SCALESTUDY = str(Path(sys.executable).parent / "scalestudy")


def begin(out: Path, *settings: str, cwd: Path = ROOT, **environment: str) -> subprocess.Popen[str]:
    """Start it, standard error with standard output; code of one's own lies below `cwd`."""
    return _started([SCALESTUDY, "try", *settings, "--out", str(out)], cwd, environment)


def attempt(out: Path, *settings: str, cwd: Path = ROOT, **environment: str) -> subprocess.CompletedProcess[str]:
    """Make it to its end, forked."""
    command = [str(fork_server.commands() / "scalestudy"), "try", *settings, "--out", str(out)]
    with _started(command, cwd, environment) as process:
        try:
            output, _ = process.communicate(timeout=200)
        except BaseException:
            process.kill()
            raise
    return subprocess.CompletedProcess(process.args, process.returncode, output)


def _started(command: list[str], cwd: Path, environment: Mapping[str, str]) -> subprocess.Popen[str]:
    return subprocess.Popen(
        command, cwd=cwd, env={**os.environ, **environment}, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )


def made(status: int, said: str) -> bool:
    """Whether a run ended with a result; one as short as those of tests may be invalid as a measurement, nothing else."""
    return status == 0 or (status == 1 and "\ninvalid: the measured window is " in said)


def completed(done: subprocess.CompletedProcess[str]) -> bool:
    """Whether an attempt ended with a result."""
    return made(done.returncode, done.stdout)


def result(out: Path) -> dict[str, Any]:
    """The result that a run left."""
    return dict(json.loads((out / "result.json").read_text()))


def run(out: Path, *settings: str, cwd: Path = ROOT, **environment: str) -> dict[str, Any]:
    """The result of an attempt that must end with one."""
    ended = attempt(out, *settings, cwd=cwd, **environment)
    assert completed(ended), ended.stdout
    return result(out)


def held(found: Mapping[str, Any]) -> bool:
    """Whether nothing is wrong with a result but that its window may be short, as on a fast machine those of tests are."""
    return found["status"] == "valid" or found["reason"].startswith("the measured window is ")


def own_warnings(found: Mapping[str, Any]) -> list[str]:
    """The warnings of a result, without those about the machine that the tests run on: others used it, it was not steady."""
    of_host = ("disturbed: ", "other processes took ", "the second half of the window was ")
    return [warning for warning in found["warnings"] if not warning.startswith(of_host)]


def weights(out: Path) -> dict[str, bytes]:
    """The kept weights, as bytes."""
    from safetensors.torch import load_file  # torch, which tests of schedulers do without

    return {name: tensor.numpy().tobytes() for name, tensor in load_file(out / "weights.safetensors").items()}
