"""An empty project, a study of made-up results, and stand-in GPUs, for tests of all rooms."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from scalestudy.cluster.plan import counts
from scalestudy.spec.study import Study
from tests.conftest import ROOT
from tests.stand_ins import gpus
from tests.unit.analysis.fake_results import study_in

See = Callable[..., None]


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """`tmp_path`, as the current directory."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def project(here: Path) -> Path:
    """A project without studies, with the machine `local`; it is the current directory."""
    for part in ("studies", "machines"):
        (here / "config" / part).mkdir(parents=True)
    (here / "config/machines/local.yaml").write_text("description: Here\n")
    (here / "config/config.yaml").write_text("scale: mini\n")
    return here


@pytest.fixture
def published_numbers(here: Path) -> None:
    """A folder, the current one, that has the published numbers of the project and nothing else."""
    (here / "config").mkdir()
    (here / "config/reference").symlink_to(ROOT / "config/reference")
    counts.table.cache_clear()
    counts.prepared.cache_clear()


@pytest.fixture
def study(here: Path) -> Study:
    """Two strategies, one and two ranks, three repeats; no results yet, in a folder that is the current one."""
    return study_in(here)


@pytest.fixture
def see(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> See:
    """`see(2)`: two stand-in GPUs."""
    folder = tmp_path_factory.getbasetemp() / "stand-in-nvml"
    return lambda count, **more: gpus.seen_here(monkeypatch, folder, count, **more)
