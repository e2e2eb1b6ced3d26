"""The oldest torch that is supported, as the second lock pins it: strategies, and a run.

Torch and its libraries are brought by pip, with the lock's hashes, into a folder of their own, and stand before this
environment's: the two locks differ in nothing else. The folder, 5 GB, stays in build/ for the next time. What else was run with that lock: docs/measured/torch27.txt.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.integration.tries import ROOT, attempt, completed, result

pytestmark = [pytest.mark.soak, pytest.mark.timeout(1200)]
LOCK = ROOT / "envs" / "requirements-cuda126.txt"
OF_TORCH = re.compile(r"^(torch|torchvision|triton|nvidia-\S+)==(\S+) ")
NEEDED_GB = 12
EXACT = "tests/integration/test_strategies.py::test_an_exact_strategy_gives_the_weights_of_one_process"
STRATEGIES = ("allreduce", "halving_doubling overlapped", "ring overlapped", "hierarchical overlapped", "zero1")


def pins() -> dict[str, str]:
    """The lock's lines of torch and of what only torch needs, by package."""
    blocks = re.split(r"\n(?=[A-Za-z0-9#])", LOCK.read_text())
    return {found[1]: block for block in blocks if (found := OF_TORCH.match(block))}


def pip(*arguments: str) -> subprocess.CompletedProcess[str]:
    """This environment's pip."""
    command = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--quiet", *arguments]
    return subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)


@pytest.fixture(scope="module")
def older() -> dict[str, str]:
    """What a process needs in its environment to have the older torch."""
    needed = "\n".join(pins().values()) + "\n"
    place = ROOT / "build" / "older-torch" / hashlib.sha256(needed.encode()).hexdigest()[:12]
    place.parent.mkdir(parents=True, exist_ok=True)
    if not place.exists():
        _bring(needed, place)
    return {"PYTHONPATH": os.pathsep.join(filter(None, [str(place), os.environ.get("PYTHONPATH")]))}


def _bring(needed: str, place: Path) -> None:
    """Install what is needed in a folder, which is there when it is whole; those of other pins are removed."""
    if (free_gb := shutil.disk_usage(place.parent).free / 1e9) < NEEDED_GB:
        pytest.skip(f"needs {NEEDED_GB} GB in {place.parent}, which has {free_gb:.0f} GB")
    for other in place.parent.glob("*/"):
        shutil.rmtree(other)
    work = place.with_suffix(".part")
    work.mkdir()
    (work / "torch.txt").write_text(needed)
    options = ("--no-deps", "--require-hashes", "--only-binary=:all:", "--no-compile")
    done = pip("install", *options, f"--target={work / 'packages'}", "-r", str(work / "torch.txt"))
    if "No matching distribution found" in done.stdout:
        pytest.skip(f"there is no package index here: {done.stdout.strip().splitlines()[-1]}")
    assert done.returncode == 0, done.stdout
    (work / "packages").rename(place)
    shutil.rmtree(work)


def test_strategies_give_the_weights_of_one_process_with_the_older_torch(older: dict[str, str]) -> None:
    ids = [f"{EXACT}[2 ranks-{strategy}]" for strategy in STRATEGIES]
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-p", "no:xdist", *ids]
    done = subprocess.run(
        command, cwd=ROOT, env={**os.environ, **older}, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout
    assert re.search(rf"^\.{{{len(ids)}}} ", done.stdout, re.MULTILINE), done.stdout


def test_a_run_with_the_older_torch_ends_with_a_result_that_names_it(older: dict[str, str], tmp_path: Path) -> None:
    done = attempt(tmp_path, "ranks=2", "strategy=halving_doubling", "train.epochs=2", **older)
    assert completed(done), done.stdout
    version = re.search(r"^torch==(\S+)", pins()["torch"])
    assert version
    assert result(tmp_path)["instrument"]["torch"].startswith(version[1])
