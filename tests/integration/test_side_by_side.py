"""`make test`: groups of tests beside each other leave nothing out and hide no failure."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cluster.test_executor_package import TESTS
from tests.integration.project import ROOT
from tests.side_by_side import BY_FILE, GROUPS, ON_SCHEDULERS, OWN, RUN_THERE, Group, run


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


def groups(folder: Path, **tests: str) -> list[Group]:
    """A group for each name, with one test of the given body."""
    for name, body in tests.items():
        (folder / f"test_{name}.py").write_text(f"def test_{name}():\n    {body}\n")
    return [Group(name, [str(folder / f"test_{name}.py")]) for name in tests]


def test_a_failure_in_any_group_fails_all_and_each_output_is_shown_whole(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    made = groups(tmp_path, fine="pass", broken="assert 1 == 2", also_fine="pass")
    assert run(made, []) == 1
    said = capfd.readouterr().out
    assert "-- fine: passed after" in said and "-- also_fine: passed after" in said
    shown = said.partition("-- broken --")[2].partition("-- broken: FAILED (exit status 1) after")[0]
    assert "assert 1 == 2" in shown and "1 failed" in shown
    assert "-- broken: FAILED again --" in said
