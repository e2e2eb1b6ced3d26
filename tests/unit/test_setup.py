"""The virtual environment: repaired after a move, never made twice."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def setup(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """envs/venv.py with a real, small environment of its own; what it would have pip do is written down instead."""
    described = importlib.util.spec_from_file_location("venv_script", ROOT / "envs" / "venv.py")
    assert described and described.loader
    module = importlib.util.module_from_spec(described)
    described.loader.exec_module(module)
    place(module, tmp_path / "clone", monkeypatch)
    module.ROOT.mkdir()
    calls: list[tuple[str, ...]] = []
    monkeypatch.setattr(module, "pip", lambda *arguments: calls.append(arguments))
    monkeypatch.setattr(module, "calls", calls, raising=False)
    monkeypatch.setattr(sys, "argv", ["venv.py"])
    monkeypatch.delenv("TORCH_INDEX", raising=False)
    return module


def place(module: ModuleType, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the script believe that it lies in `root`."""
    monkeypatch.setattr(module, "ROOT", root)
    monkeypatch.setattr(module, "VENV", root / ".venv")
    monkeypatch.setattr(module, "STAMP", root / ".venv" / "scalestudy.json")
    locks = {name: root / "envs" / lock.name for name, lock in module.LOCKS.items()}
    monkeypatch.setattr(module, "LOCKS", locks)
    if not root.exists():
        return
    assert locks["run"].exists()


def test_a_moved_clone_is_repaired_without_installing_again(
    setup: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (setup.ROOT / "envs").mkdir()
    for name in ("requirements.txt", "requirements-dev.txt"):
        (setup.ROOT / "envs" / name).write_text("torch==1 \\\n    --hash=sha256:0\n")
    (setup.ROOT / "pyproject.toml").write_text("")
    setup.main()
    script = setup.VENV / "bin" / "tool"
    script.write_text(f"#!{setup.VENV}/bin/python\nprint('works')\n")
    script.chmod(0o755)
    assert [call[0] for call in setup.calls] == ["install", "install"]

    setup.main()
    assert len(setup.calls) == 2

    setup.ROOT.rename(tmp_path / "moved")
    place(setup, tmp_path / "moved", monkeypatch)
    setup.main()
    assert [call[:2] for call in setup.calls[2:]] == [("install", "--no-deps")]
    done = subprocess.run([tmp_path / "moved" / ".venv" / "bin" / "tool"], capture_output=True, text=True, check=False)
    assert done.stdout == "works\n"
    assert json.loads(setup.STAMP.read_text())["path"] == str(tmp_path / "moved" / ".venv")


def test_another_index_serves_torch_alone(setup: ModuleType) -> None:
    lock = ROOT / "envs" / "requirements.txt"
    setup.VENV.mkdir()
    kept = setup.without_torch(lock).read_text()
    assert "\nnumpy==" in kept and "\nsnakemake==" in kept
    assert not [line for line in kept.splitlines() if line.startswith(("torch", "nvidia", "triton"))]
    assert [pin.split("==")[0] for pin in setup.torch_pins(lock)] == ["torch", "torchvision"]


def test_the_lock_files_name_no_index_and_pin_by_hash() -> None:
    for lock in (ROOT / "envs" / "requirements.txt", ROOT / "envs" / "requirements-dev.txt"):
        text = lock.read_text()
        assert "://" not in text and "--index" not in text and "--find-links" not in text
        pins = [line for line in text.splitlines() if line and line[0].isalpha()]
        assert pins and all("==" in line for line in pins)
        assert text.count("--hash=sha256:") >= len(pins)
