"""The virtual environment: made once, from the lock alone."""

from __future__ import annotations

import importlib.util
import json
import shutil
import subprocess
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from tests.conftest import ROOT


@pytest.fixture
def setup(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """envs/venv.py with a real, small environment of its own; what it would have pip do is written down instead.

    Without pip in it, which takes seconds to be put there.
    """

    def run(command: list[str], **options: Any) -> subprocess.CompletedProcess[Any]:
        more = ["--without-pip"] if command[1:3] == ["-m", "venv"] else []
        return subprocess.run([*command, *more], **options)  # noqa: PLW1510 # as the caller has it

    described = importlib.util.spec_from_file_location("venv_script", ROOT / "envs" / "venv.py")
    assert described and described.loader
    module = importlib.util.module_from_spec(described)
    described.loader.exec_module(module)
    place_new(module, tmp_path / "clone", monkeypatch)
    module.ROOT.mkdir()
    calls: list[tuple[str, ...]] = []
    monkeypatch.setattr(module, "pip", lambda *arguments: calls.append(arguments))
    monkeypatch.setattr(module, "calls", calls, raising=False)
    monkeypatch.setattr(module, "subprocess", SimpleNamespace(**{**vars(subprocess), "run": run}))
    monkeypatch.setattr(sys, "argv", ["venv.py"])
    for name in ("TORCH_INDEX", "LOCK", "VENV"):
        monkeypatch.delenv(name, raising=False)
    return module


def place_new(module: ModuleType, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the script believe that it lies in `root`."""
    monkeypatch.setattr(module, "ROOT", root)
    monkeypatch.setattr(module, "VENV", root / ".venv")
    monkeypatch.setattr(module, "STAMP", root / ".venv" / "scalestudy.json")
    monkeypatch.setattr(module, "ENVS", root / "envs")


def made(setup: ModuleType) -> None:
    (setup.ROOT / "envs").mkdir()
    for name in ("requirements.txt", "requirements-dev.txt"):
        pins = (f"{package}==1 \\\n    --hash=sha256:0\n" for package in ("numpy", "torch", "triton"))
        (setup.ROOT / "envs" / name).write_text("".join(pins))
    (setup.ROOT / "pyproject.toml").write_text("")
    setup.main()


def locks_installed(setup: ModuleType) -> list[str]:
    return [Path(call[-1]).name for call in setup.calls if "--require-hashes" in call]


def test_nothing_is_installed_twice_another_lock_is_kept_until_the_default_is_asked_for_and_a_moved_clone_is_made_anew(
    setup: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made(setup)
    setup.main()
    assert [call[1] for call in setup.calls] == ["--require-hashes", "--no-deps"]

    (setup.ROOT / "envs/requirements-cuda126.txt").write_text("torch==0.9 \\\n    --hash=sha256:1\n")
    monkeypatch.setenv("LOCK", "cuda126")
    setup.main()
    monkeypatch.delenv("LOCK")
    setup.main()
    assert locks_installed(setup) == ["requirements.txt", "requirements-cuda126.txt"]
    monkeypatch.setenv("LOCK", "default")
    setup.main()
    assert locks_installed(setup)[2:] == ["requirements.txt"]

    calls = len(setup.calls)
    setup.ROOT.rename(tmp_path / "moved")
    place_new(setup, tmp_path / "moved", monkeypatch)
    setup.main()
    assert [call[1] for call in setup.calls[calls:]] == ["--require-hashes", "--no-deps"]
    assert json.loads(setup.STAMP.read_text())["path"] == str(tmp_path / "moved" / ".venv")


def test_the_environment_can_lie_elsewhere_and_is_made_again_where_that_place_was_emptied(
    setup: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    scratch = tmp_path / "scratch" / "venv"
    monkeypatch.setenv("VENV", str(scratch))
    made(setup)
    assert setup.VENV.is_symlink() and setup.VENV.resolve() == scratch

    calls = len(setup.calls)
    monkeypatch.delenv("VENV")
    setup.main()
    assert len(setup.calls) == calls

    shutil.rmtree(scratch)
    setup.main()
    assert (scratch / "bin/python").exists()
    assert [call[0] for call in setup.calls[calls:]] == ["install", "install"]


def test_another_index_serves_torch_alone(setup: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCH_INDEX", "cpu.example")
    made(setup)
    assert [call[1:3] for call in setup.calls] == [
        ("--no-deps", "--require-hashes"), ("--index-url", "cpu.example"), ("--no-deps", "--no-build-isolation"),
    ]  # fmt: skip
    assert Path(setup.calls[0][-1]).read_text() == "numpy==1 \\\n    --hash=sha256:0\n"
    assert setup.calls[1][3:] == ("torch==1",)


def test_the_lock_files_name_no_index_and_pin_by_hash() -> None:
    for lock in sorted((ROOT / "envs").glob("requirements*.txt")):
        text = lock.read_text()
        assert "://" not in text and "--index" not in text and "--find-links" not in text
        pins = [line for line in text.splitlines() if line and line[0].isalpha()]
        assert pins and all("==" in line for line in pins)
        assert text.count("--hash=sha256:") >= len(pins)
