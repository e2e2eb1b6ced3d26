"""The virtual environment: made once, from the lock alone."""

from __future__ import annotations

import ast
import importlib.util
import json
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def setup(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """envs/venv.py with a real, small environment of its own; what it would have pip do is written down instead."""
    described = importlib.util.spec_from_file_location("venv_script", ROOT / "envs" / "venv.py")
    assert described and described.loader
    module = importlib.util.module_from_spec(described)
    described.loader.exec_module(module)
    place_new(module, tmp_path / "clone", monkeypatch)
    module.ROOT.mkdir()
    calls: list[tuple[str, ...]] = []
    monkeypatch.setattr(module, "pip", lambda *arguments: calls.append(arguments))
    monkeypatch.setattr(module, "calls", calls, raising=False)
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


@pytest.fixture
def no_pip(setup: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    """Environments are real, but without pip, which takes seconds to be put in: where no test calls it."""

    def run(command: list[str], **options: Any) -> subprocess.CompletedProcess[Any]:
        more = ["--without-pip"] if command[1:3] == ["-m", "venv"] else []
        return subprocess.run([*command, *more], **options)  # noqa: PLW1510 # as the caller has it

    monkeypatch.setattr(setup, "subprocess", SimpleNamespace(**{**vars(subprocess), "run": run}))


def made(setup: ModuleType) -> None:
    """Set the clone up."""
    (setup.ROOT / "envs").mkdir()
    for name in ("requirements.txt", "requirements-dev.txt"):
        pins = (f"{package}==1 \\\n    --hash=sha256:0\n" for package in ("numpy", "torch", "triton"))
        (setup.ROOT / "envs" / name).write_text("".join(pins))
    (setup.ROOT / "pyproject.toml").write_text("")
    setup.main()


@pytest.mark.usefixtures("no_pip")
def test_nothing_is_installed_twice_and_a_moved_clone_is_made_anew(
    setup: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made(setup)
    setup.main()
    assert [call[1] for call in setup.calls] == ["--require-hashes", "--no-deps"]

    setup.ROOT.rename(tmp_path / "moved")
    place_new(setup, tmp_path / "moved", monkeypatch)
    setup.main()
    assert [call[1] for call in setup.calls[2:]] == ["--require-hashes", "--no-deps"]
    assert json.loads(setup.STAMP.read_text())["path"] == str(tmp_path / "moved" / ".venv")


@pytest.mark.usefixtures("no_pip")
def test_an_interrupted_set_up_resumes_where_it_was(setup: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*arguments: str) -> None:
        setup.calls.append(arguments)
        if "--editable" in arguments:
            raise SystemExit(1)

    with monkeypatch.context() as patch, pytest.raises(SystemExit):
        patch.setattr(setup, "pip", fail)
        made(setup)
    setup.main()
    assert [call[1] for call in setup.calls] == ["--require-hashes", "--no-deps", "--no-deps"]


def locks_installed(setup: ModuleType) -> list[str]:
    """The lock files that pip was given so far."""
    return [Path(call[-1]).name for call in setup.calls if "--require-hashes" in call]


@pytest.mark.usefixtures("no_pip")
def test_another_lock_is_installed_and_kept_until_the_default_one_is_asked_for(
    setup: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    made(setup)
    (setup.ROOT / "envs/requirements-cuda126.txt").write_text("torch==0.9 \\\n    --hash=sha256:1\n")
    monkeypatch.setenv("LOCK", "cuda126")
    setup.main()
    monkeypatch.delenv("LOCK")
    setup.main()
    assert locks_installed(setup) == ["requirements.txt", "requirements-cuda126.txt"]
    monkeypatch.setenv("LOCK", "default")
    setup.main()
    assert locks_installed(setup)[2:] == ["requirements.txt"]


def test_a_lock_that_is_not_there_is_refused_with_those_that_are(
    setup: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    (setup.ROOT / "envs").mkdir()
    for lock in ("requirements.txt", "requirements-dev.txt", "requirements-cuda126.txt"):
        (setup.ROOT / "envs" / lock).write_text("")
    for name in ("cuda12", "dev"):
        monkeypatch.setenv("LOCK", name)
        with pytest.raises(SystemExit, match=f"there is no lock file {name}\n    known: default, cuda126"):
            setup.main()


@pytest.mark.usefixtures("no_pip")
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


@pytest.mark.usefixtures("no_pip")
def test_a_clone_whose_environment_lies_elsewhere_keeps_it_after_a_move(
    setup: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("VENV", str(tmp_path / "scratch"))
    made(setup)
    setup.ROOT.rename(tmp_path / "moved")
    place_new(setup, tmp_path / "moved", monkeypatch)
    setup.main()
    assert [call[:2] for call in setup.calls[2:]] == [("install", "--no-deps")]
    assert setup.calls[-1][-1] == str(tmp_path / "moved")


@pytest.mark.parametrize("there", ["own .venv", "other things"])
def test_nothing_is_overwritten_where_the_environment_is_to_lie(
    setup: ModuleType, there: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = tmp_path / "data"
    target.mkdir()
    if there == "own .venv":
        setup.VENV.mkdir()
    else:
        (target / "thesis.tex").write_text("")
    monkeypatch.setenv("VENV", str(target))
    with pytest.raises(SystemExit, match=r"is a folder here already|is not an environment and not empty"):
        setup.main()
    assert [path.name for path in target.iterdir()] == ([] if there == "own .venv" else ["thesis.tex"])


@pytest.mark.usefixtures("no_pip")
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


def test_the_lock_for_older_gpus_differs_from_the_default_one_in_torch_alone() -> None:
    def names(file: str) -> list[str]:
        lines = (ROOT / "envs" / file).read_text().splitlines()
        return [line.partition(" #")[0] for line in lines if line and not line.startswith("#")]

    default, older = names("requirements.in"), names("requirements-cuda126.in")
    assert [(old, new) for old, new in zip(default, older, strict=True) if old != new] == [
        ("torch==2.14.1", "torch==2.7.1"),
        ("torchvision==0.29.1", "torchvision==0.22.1"),
    ]


def test_the_locks_that_the_doctor_names_are_those_that_there_are() -> None:
    from scalestudy.cluster.doctor.gpu_support import LOCKS

    assert all((ROOT / lock.file).is_file() for lock in LOCKS)
    pins = {lock.command: (ROOT / lock.file).read_text() for lock in LOCKS}["make setup LOCK=cuda126"]
    assert "\nnvidia-cublas-cu12==12.6." in pins and "\ntorch==2.7.1 " in pins


IMPORT_NAMES = {
    "pyyaml": "yaml",
    "ruamel.yaml": "ruamel",
    "pillow": "PIL",
    "scikit-learn": "sklearn",
    "nvidia-ml-py": "pynvml",
}
BUILD_ONLY = {"setuptools"}
"""`pip install --no-build-isolation` builds this project with it."""


@pytest.mark.parametrize("lock", ["requirements.in", "requirements-cuda126.in"])
def test_what_is_installed_is_imported(lock: str) -> None:
    lines = (ROOT / "envs" / lock).read_text().splitlines()
    packages = {re.split(r"[^\w.-]", line)[0] for line in lines if line and not line.startswith("#")}
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    named = [*project["dependencies"], *project["optional-dependencies"]["train"]]
    packages |= {re.split(r"[^\w.-]", text)[0] for text in named}
    imported: set[str] = set()
    for file in (ROOT / "workflow").rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Import):
                imported |= {name.name.partition(".")[0] for name in node.names}
            elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
                imported.add(node.module.partition(".")[0])
    assert {name for name in packages - BUILD_ONLY if IMPORT_NAMES.get(name, name) not in imported} == set()


def test_a_commit_runs_the_linters_of_make_lint() -> None:
    target = (ROOT / "Makefile").read_text().partition("\nlint:")[2].partition("\n\n")[0]
    linters = {tuple(line.split()[:2]) for line in target.splitlines() if line.startswith("\t")}
    hooks = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text())["repos"][0]["hooks"]
    run = {tuple(hook["entry"].removeprefix(".venv/bin/").split()) for hook in hooks}
    names = {words[0] for words in run}
    assert {words[0] for words in linters} <= names
    assert ("snakemake", "--lint") in run and ("snakemake", "--lint") in linters
    assert "\npre-commit==" in (ROOT / "envs/requirements-dev.txt").read_text()
