"""Plans use the published numbers of the project."""

from __future__ import annotations

from pathlib import Path

import pytest

from scalestudy.cluster.plan import counts
from tests.conftest import ROOT


@pytest.fixture
def published_numbers(here: Path) -> None:
    """An empty project with the published numbers."""
    (here / "config").mkdir()
    (here / "config/reference").symlink_to(ROOT / "config/reference")
    counts.table.cache_clear()
    counts.prepared.cache_clear()
