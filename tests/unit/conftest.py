"""An empty project, a study of made-up results, and stand-in GPUs, for tests of all rooms."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from scalestudy.spec.study import Study
from tests.stand_ins import gpus
from tests.unit.analysis.fake_results import study_in

See = Callable[..., None]


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A project without studies, with the machine `local`; it is the current directory."""
    for part in ("studies", "machines"):
        (tmp_path / "config" / part).mkdir(parents=True)
    (tmp_path / "config/machines/local.yaml").write_text("description: Here\n")
    (tmp_path / "config/config.yaml").write_text("scale: mini\n")
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def study(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Study:
    """Two strategies, one and two ranks, three repeats; no results yet, in a folder that is the current one."""
    monkeypatch.chdir(tmp_path)
    return study_in(tmp_path)


@pytest.fixture
def see(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> See:
    """`see(2)`: two stand-in GPUs."""
    folder = tmp_path_factory.getbasetemp() / "stand-in-nvml"
    return lambda count, **more: gpus.seen_here(monkeypatch, folder, count, **more)
