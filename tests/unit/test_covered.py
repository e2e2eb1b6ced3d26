"""The table of `make coverage`."""

from __future__ import annotations

from tests.covered import table


def file(branches: int, covered_branches: int, lines: int, covered_lines: int) -> dict[str, dict[str, int]]:
    return {
        "summary": {
            "num_branches": branches,
            "covered_branches": covered_branches,
            "num_statements": lines,
            "covered_lines": covered_lines,
        }
    }


def test_files_are_summed_by_folder_and_over_all() -> None:
    files = {
        "workflow/scalestudy/spec/a.py": file(10, 5, 20, 20),
        "workflow/scalestudy/spec/deeper/b.py": file(30, 30, 20, 10),
        "workflow/scalestudy/cli.py": file(0, 0, 5, 4),
    }
    rows = [line.split() for line in table(files)]
    assert rows == [
        ["folder", "branches", "covered", "lines", "covered"],
        ["scalestudy", "0", "-", "5", "80.0%"],
        ["scalestudy/spec", "40", "87.5%", "40", "75.0%"],
        ["all", "40", "87.5%", "45", "75.6%"],
    ]
