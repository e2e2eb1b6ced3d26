"""What `make audit` makes of pip-audit's report: what was not looked up is not sound."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest


def module() -> ModuleType:
    place = Path(__file__).resolve().parents[2] / "envs/audit.py"
    spec = importlib.util.spec_from_file_location("audit", place)
    assert spec is not None and spec.loader is not None
    loaded = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(loaded)
    return loaded


SOUND = {"name": "numpy", "version": "2.0", "vulns": []}
WEAK = {"name": "pillow", "version": "9.0", "vulns": [{"id": "PYSEC-1", "fix_versions": ["9.1"]}, {"id": "PYSEC-2"}]}
SKIPPED = {"name": "torch", "skip_reason": "Dependency not found on PyPI and could not be audited: torch (2.0)"}


@pytest.mark.parametrize(
    ("packages", "status", "said"),
    [
        ([SOUND], 0, ["1 of 1 packages were looked up: no known weakness"]),
        ([SOUND, WEAK], 1, ["pillow 9.0: PYSEC-1, mended in 9.1", "pillow 9.0: PYSEC-2",
                            "2 of 2 packages were looked up: 2 known weaknesses"]),
        ([SOUND, SKIPPED], 2, ["1 of 2 packages were looked up: no known weakness", "the index has no advisories for torch: "]),
        ([WEAK, SKIPPED], 1, ["pillow 9.0: PYSEC-1, mended in 9.1", "pillow 9.0: PYSEC-2",
                              "1 of 2 packages were looked up: 2 known weaknesses", "the index has no advisories for torch: "]),
    ],
)  # fmt: skip
def test_only_what_was_looked_up_counts_as_sound(packages: list[dict[str, Any]], status: int, said: list[str]) -> None:
    found, lines = module().judged({"dependencies": packages, "fixes": []})
    assert found == status
    assert [line[: len(start)] for line, start in zip(lines, said, strict=True)] == said
