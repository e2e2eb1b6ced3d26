"""Where Horovod is built, and what is said where it is not."""

from __future__ import annotations

from pathlib import Path

import pytest

from scalestudy.files import write_json
from scalestudy.strategies import horovod_build


@pytest.fixture(autouse=True)
def empty_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))


def without_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CXX", raising=False)
    monkeypatch.setenv("PATH", "/nowhere")


def test_without_a_compiler_it_says_so_and_builds_nothing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    without_compiler(monkeypatch)
    assert "there is no C++ compiler" in (horovod_build.missing() or "")
    assert horovod_build.build() == {"status": "failed", "reason": "there is no C++ compiler"}
    assert list(tmp_path.iterdir()) == []


def test_a_build_that_failed_says_why_and_what_to_do() -> None:
    toolchain = horovod_build.toolchain()
    if toolchain is None:
        pytest.skip("there is no C++ compiler (Debian: build-essential)")
    write_json(toolchain.folder / "build.json", {"status": "failed", "reason": "it did not compile"})
    said = horovod_build.missing() or ""
    assert "it did not compile" in said
    assert "scalestudy build horovod" in said


def test_a_build_of_another_compiler_is_used_where_there_is_none(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    site = horovod_build.Toolchain(horovod_build._torch(), horovod_build._python(), "gxx1.2.3", False, False).folder
    (site / "site" / "horovod").mkdir(parents=True)
    without_compiler(monkeypatch)
    assert horovod_build.missing() is None
    assert horovod_build.found() == site / "site"


def test_a_build_for_another_torch_is_not_used(tmp_path: Path) -> None:
    other = horovod_build.Toolchain("1.0.0", horovod_build._python(), "gxx1.2.3", False, False).folder
    (other / "site" / "horovod").mkdir(parents=True)
    assert horovod_build.found() is None
