"""Branch coverage of all tests but those of real schedulers and foreign input, by folder: `python -m tests.covered [OPTION OF PYTEST]… [FILE]…`.

Processes that tests start, fork and execute count, also in copies of the project; those that are killed do not. Tests of
schedulers are left out, as their jobs run as another user. What is measured stays in build/coverage, for `coverage html`.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path, PurePath
from typing import Any

from tests.side_by_side import BY_FILE

ROOT = Path(__file__).resolve().parent.parent
FOLDER = ROOT / "build" / "coverage"
"""As pyproject.toml has it."""
DEPTH = 3
"""Folders of a path that make a row: workflow/scalestudy/spec."""
COUNTS = ("num_branches", "covered_branches", "num_statements", "covered_lines")


def main(options: Sequence[str]) -> int:
    """Run the tests, print the table; the exit status of pytest."""
    shutil.rmtree(FOLDER, ignore_errors=True)
    FOLDER.mkdir(parents=True)
    files = (
        () if any(Path(word).exists() for word in options) else ("tests/unit", "tests/integration", "executor/tests")
    )
    status = _coverage("run", "-m", "pytest", *files, *BY_FILE, *options)
    report = FOLDER / "coverage.json"
    if _coverage("combine", "--quiet") or _coverage("json", "--quiet", "--ignore-errors", "-o", str(report)):
        return 1
    print("\n".join(table(json.loads(report.read_text(encoding="utf-8"))["files"])))
    return status


def _coverage(*words: str) -> int:
    return subprocess.run([sys.executable, "-m", "coverage", *words], cwd=ROOT, check=False).returncode


def table(files: Mapping[str, Mapping[str, Any]]) -> Iterator[str]:
    """Lines of text: a row per folder and one for all, from the `files` of coverage's JSON."""
    counts: dict[str, list[int]] = defaultdict(lambda: [0] * len(COUNTS))
    for name, file in files.items():
        parts = PurePath(name).parent.parts[1:DEPTH]
        for folder in ("/".join(parts), "all"):
            for place, count in enumerate(COUNTS):
                counts[folder][place] += file["summary"][count]
    yield f"{'folder':40}{'branches':>10}{'covered':>10}{'lines':>10}{'covered':>10}"
    for folder in sorted(counts, key=lambda folder: (folder == "all", folder)):
        branches, covered_branches, lines, covered_lines = counts[folder]
        yield (
            f"{folder:40}{branches:10}{_share(covered_branches, branches):>10}"
            f"{lines:10}{_share(covered_lines, lines):>10}"
        )


def _share(part: int, whole: int) -> str:
    return f"{100 * part / whole:.1f}%" if whole else "-"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
