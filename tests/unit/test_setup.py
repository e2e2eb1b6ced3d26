"""The virtual environment: repaired after a move, never made twice."""

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
    """Let the script believe that it lies in `root`, where nothing has been set up."""
    monkeypatch.setattr(module, "ROOT", root)
    monkeypatch.setattr(module, "VENV", root / ".venv")
    monkeypatch.setattr(module, "STAMP", root / ".venv" / "scalestudy.json")
    locks = {name: root / "envs" / lock.name for name, lock in module.LOCKS.items()}
    monkeypatch.setattr(module, "LOCKS", locks)


def place(module: ModuleType, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the script believe that it lies in `root`, which has been set up."""
    place_new(module, root, monkeypatch)
    assert module.LOCKS["run"].exists()


@pytest.fixture
def no_pip(setup: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    """Environments are real, but without pip, which takes seconds to be put in: where no test calls it."""

    def run(command: list[str], **options: Any) -> subprocess.CompletedProcess[Any]:
        more = ["--without-pip"] if command[1:3] == ["-m", "venv"] and "--without-pip" not in command else []
        return subprocess.run([*command, *more], **options)  # noqa: PLW1510 # as the caller has it

    monkeypatch.setattr(setup, "subprocess", SimpleNamespace(**{**vars(subprocess), "run": run}))


def made(setup: ModuleType) -> None:
    """Set the clone up, with a tool that pip would have installed."""
    (setup.ROOT / "envs").mkdir()
    for name in ("requirements.txt", "requirements-dev.txt"):
        (setup.ROOT / "envs" / name).write_text("torch==1 \\\n    --hash=sha256:0\n")
    (setup.ROOT / "pyproject.toml").write_text("")
    setup.main()
    script, pip = setup.VENV / "bin" / "tool", setup.VENV / "bin" / "pip"
    launcher = pip.read_text() if pip.exists() else setup.head(setup.place() / "bin" / "python").decode()
    lines = [line for line in launcher.splitlines() if line.startswith(("#!", "'''exec'", "' '''"))]
    script.write_text("\n".join([*lines, "print('works')", ""]))
    script.chmod(0o755)


def said(command: str, folder: Path) -> str:
    """What a shell command says in a folder."""
    done = subprocess.run(["bash", "-c", command], cwd=folder, capture_output=True, text=True, check=False)
    return done.stdout + done.stderr


@pytest.mark.usefixtures("no_pip")
def test_a_moved_clone_is_repaired_without_installing_again(
    setup: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made(setup)
    assert [call[0] for call in setup.calls] == ["install", "install"]

    setup.main()
    assert len(setup.calls) == 2

    setup.ROOT.rename(tmp_path / "moved")
    place(setup, tmp_path / "moved", monkeypatch)
    setup.main()
    assert [call[:2] for call in setup.calls[2:]] == [("install", "--no-deps")]
    assert said(".venv/bin/tool", setup.ROOT) == "works\n"
    assert json.loads(setup.STAMP.read_text())["path"] == str(tmp_path / "moved" / ".venv")


def test_a_clone_works_at_paths_that_need_quotes_and_at_long_ones(
    setup: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made(setup)
    for name in ("two words", "it's ü & (more)", "long" * 40, "plain"):
        setup.ROOT.rename(tmp_path / name)
        place(setup, tmp_path / name, monkeypatch)
        setup.main()
        assert said(".venv/bin/tool", setup.ROOT) == "works\n"
        assert said('. .venv/bin/activate && tool && echo "$VIRTUAL_ENV"', setup.ROOT) == f"works\n{setup.VENV}\n"
        assert said(".venv/bin/pip --version", setup.ROOT).startswith("pip ")


def test_a_clone_is_set_up_at_a_path_with_a_blank(
    setup: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    setup.ROOT.rename(tmp_path / "two words")
    place_new(setup, tmp_path / "two words", monkeypatch)
    made(setup)
    assert said(". .venv/bin/activate && tool", setup.ROOT) == "works\n"
    assert said(".venv/bin/pip --version", setup.ROOT).startswith("pip ")


@pytest.mark.parametrize("character", [":", '"', "$", "`", "\\", "\t", "\n"])
def test_a_path_that_no_launcher_can_hold_is_refused_before_anything_is_made(
    setup: ModuleType, character: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    setup.ROOT.rename(tmp_path / f"a{character}b")
    place_new(setup, tmp_path / f"a{character}b", monkeypatch)
    with pytest.raises(SystemExit) as end:
        setup.main()
    assert f"no virtual environment works at a path with {character!r}" in str(end.value)
    assert list(setup.ROOT.iterdir()) == []


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
    assert said(". .venv/bin/activate && python -c 'import sys; print(sys.prefix)'", setup.ROOT) == f"{scratch}\n"

    calls = len(setup.calls)
    monkeypatch.delenv("VENV")
    setup.main()
    assert len(setup.calls) == calls

    shutil.rmtree(scratch)
    setup.main()
    assert (scratch / "bin/python").exists()
    assert [call[0] for call in setup.calls[calls:]] == ["install", "install"]


@pytest.mark.usefixtures("no_pip")
def test_a_clone_whose_environment_lies_elsewhere_moves_without_a_repair(
    setup: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("VENV", str(tmp_path / "scratch"))
    made(setup)
    setup.ROOT.rename(tmp_path / "moved")
    place(setup, tmp_path / "moved", monkeypatch)
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
    with pytest.raises(SystemExit, match=r"is a folder here already|holds something else than an environment"):
        setup.main()
    assert [path.name for path in target.iterdir()] == ([] if there == "own .venv" else ["thesis.tex"])


def test_another_index_serves_torch_alone(setup: ModuleType) -> None:
    lock = ROOT / "envs" / "requirements.txt"
    setup.VENV.mkdir()
    kept = setup.without_torch(lock).read_text()
    assert "\nnumpy==" in kept and "\nsnakemake==" in kept
    assert not [line for line in kept.splitlines() if line.startswith(("torch", "nvidia", "triton"))]
    assert [pin.split("==")[0] for pin in setup.torch_pins(lock)] == ["torch", "torchvision"]


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
    pins = {lock.name: (ROOT / lock.file).read_text() for lock in LOCKS}
    assert "\nnvidia-cublas-cu12==12.6." in pins["cuda126"] and "\ntorch==2.7.1 " in pins["cuda126"]


IMPORT_NAMES = {"pyyaml": "yaml", "ruamel.yaml": "ruamel", "pillow": "PIL", "scikit-learn": "sklearn"}
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
