"""`make check`: groups of tests beside each other leave nothing out."""

from __future__ import annotations

from pathlib import Path

from tests.cluster.test_executor_package import TESTS
from tests.integration.project import ROOT
from tests.side_by_side import BY_FILE, GROUPS, ON_SCHEDULERS, OWN, RUN_THERE, Group


def files_of(group: Group) -> list[str]:
    """The test files below the folders and files that a group names, less those that it ignores."""
    ignored = [word.removeprefix("--ignore=") for word in group.arguments if word.startswith("--ignore=")]
    named = [ROOT / word for word in group.arguments if not word.startswith("-")]
    files = [file for path in named for file in ([path] if path.is_file() else path.rglob("test_*.py"))]
    return [str(file.relative_to(ROOT)) for file in files if str(file.relative_to(ROOT)) not in ignored]


def test_each_file_with_tests_is_in_one_group() -> None:
    together = [file for group in GROUPS for file in files_of(group)] + list(RUN_THERE)
    there = [file for folder in ("tests", "executor/tests") for file in (ROOT / folder).rglob("test_*.py")]
    assert sorted(together) == sorted(str(file.relative_to(ROOT)) for file in there)
    options = {word for group in GROUPS for word in (*group.arguments, *group.divided) if word.startswith("--")}
    assert options == {*(f"--ignore={path}" for path in (*OWN, *RUN_THERE)), *BY_FILE}
    assert {Path(file).name for file in ON_SCHEDULERS} <= set(TESTS)
