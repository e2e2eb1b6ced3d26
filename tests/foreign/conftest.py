"""Folders in which scalestudy reads files of unknown origin: one per test, beside a folder that nothing may touch."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

from scalestudy import cli
from scalestudy.errors import UNSEEN

Spoil = Callable[[Path], object]
"""Damages files below the given folder, which is the current one."""


@pytest.fixture
def project(tmp_path: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder, which is the current one."""
    top = tmp_path / "project"
    top.mkdir()
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside/diary.txt").write_text("private\n")
    monkeypatch.chdir(top)
    monkeypatch.setenv("SCALESTUDY_WARM", "0")
    monkeypatch.setenv("SCALESTUDY_LOCKS", str(tmp_path_factory.mktemp("locks")))
    monkeypatch.setenv("SCALESTUDY_OFFLINE", "1")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return top


@dataclass(frozen=True)
class Command:
    project: Path
    capsys: pytest.CaptureFixture[str]

    def accepts(self, *words: str) -> None:
        """Succeeds: without damage the input is right."""
        assert cli.run_command(list(words)) == 0, self.capsys.readouterr().err

    def refuses(self, spoil: Spoil, message: str, words: Sequence[str]) -> None:
        """Ends with one message that a terminal shows unchanged, and writes only below `made`."""
        spoil(self.project)
        before = contents(self.project.parent, "made")
        self.capsys.readouterr()
        status = cli.run_command(list(words))
        error = self.capsys.readouterr().err
        assert status != 0
        assert message in error, error
        assert error.count("scalestudy: ") == 1 and "Traceback" not in error
        assert not UNSEEN.search(error), ascii(error)
        assert contents(self.project.parent, "made") == before


@pytest.fixture
def command(project: Path, capsys: pytest.CaptureFixture[str]) -> Command:
    return Command(project, capsys)


def contents(folder: Path, without: str) -> Mapping[str, object]:
    """Kind and size, or content, of everything below a folder, except for entries of the name `without`."""
    return {
        str(path): path.read_bytes() if path.is_file() and not path.is_symlink() else path.lstat().st_mode
        for path in sorted(folder.rglob("*"))
        if without not in path.parts
    }


def cases(rows: Mapping[str, tuple[object, ...]], names: str = "spoil, message") -> pytest.MarkDecorator:
    return pytest.mark.parametrize(names, rows.values(), ids=rows)


def raw(name: str, content: bytes) -> Spoil:
    def spoil(project: Path) -> None:
        (project / name).parent.mkdir(parents=True, exist_ok=True)
        (project / name).unlink(missing_ok=True)
        (project / name).write_bytes(content)

    return spoil


def edit(name: str, old: str, new: str) -> Spoil:
    def spoil(project: Path) -> None:
        text = (project / name).read_text()
        assert old in text
        (project / name).write_text(text.replace(old, new, 1))

    return spoil


def link(name: str, target: str) -> Spoil:
    def spoil(project: Path) -> None:
        (project / name).unlink(missing_ok=True)
        (project / name).symlink_to(target)

    return spoil
