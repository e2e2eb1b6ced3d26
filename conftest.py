"""With `-m gpu` only tests/gpu is read: a machine with a GPU may lack packages that other tests import."""

from __future__ import annotations

from pathlib import Path

import pytest

GPU_TESTS = Path(__file__).parent / "tests/gpu"


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Skips every other file and folder."""
    if config.getoption("markexpr") != "gpu":
        return None
    return None if collection_path.is_relative_to(GPU_TESTS) or GPU_TESTS.is_relative_to(collection_path) else True
