"""Compare the tables, verdicts and figures that two commits make of the same finished runs.

    make same BASE=COMMIT RESULTS=FOLDER [STUDIES=…]

BASE is a commit and RESULTS a folder such as results/local. Each commit gets a clone and a copy of the runs; everything
after training is built there anew, by the targets that users call. Each difference is one line of output; the exit
status is 1 where there is one. Differences that are meant belong into the message of the commit that makes them.

Not compared here, but held by tests: ids (tests/unit/spec/test_ids.py), plans (tests/unit/cluster/test_plan.py) and
submit lines (tests/integration/test_submitted_hours.py, executor/tests). No test holds a ratio: benchmarks/ measure
those of loader, staging, exchange and overhead anew, and docs/measured/ has the last ones.
"""

from __future__ import annotations

import argparse
import difflib
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
DERIVED = ("figures", "studies", "tables")
"""Folders of a scale that are built anew."""
COMPARED = ("*/studies/*/summary.csv", "*/tables/*/*.csv", "*/claims/*.json", "*/figures/*/*.svg")
MAX_LINES, MAX_WIDTH = 8, 160
"""Differences shown of one file."""
VARYING = re.compile(r"\b(id|href|clip-path)=\"[^\"]*\"|<dc:date>.*?</dc:date>|url\(#[^)]*\)|<!--.*?-->", re.DOTALL)
"""Parts of an SVG that differ between two drawings of one figure."""


def main() -> int:
    """Build both sides and print how they differ."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("base")
    parser.add_argument("results", type=Path)
    parser.add_argument("studies", nargs="*")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="same") as scratch:
        sides = [
            _built(commit, Path(scratch) / name, options.results.resolve(), options.studies)
            for commit, name in ((options.base, "before"), ("HEAD", "after"))
        ]
        differences = list(_differences(*sides))
    print("\n".join(differences) or "the same tables, verdicts and figures")
    return 1 if differences else 0


def _built(commit: str, clone: Path, results: Path, studies: list[str]) -> Path:
    """Return the folder of results in a clone of `commit`, with everything after training built anew."""
    subprocess.run(["git", "clone", "-q", "--shared", "--no-checkout", ROOT, clone], check=True)
    subprocess.run(["git", "-C", clone, "checkout", "-q", commit], check=True)
    copy = clone / "results" / results.name
    shutil.copytree(results, copy)
    if (results.parent / "data").exists():
        shutil.copytree(
            results.parent / "data", clone / "results/data", ignore=shutil.ignore_patterns("*.bin", "*.tar")
        )
    built = sorted(copy.glob("*/studies/*"))
    targets = studies or sorted({folder.name for folder in built})
    for scale in {folder.parents[1] for folder in built}:
        for name in DERIVED:
            shutil.rmtree(scale / name)
        for verdicts in scale.glob("claims/*"):
            if ".fixed." not in verdicts.name:
                verdicts.unlink()
    environment = os.environ | {"PYTHONPATH": str(clone / "workflow")}
    command = ["snakemake", "--profile", "profiles/local", *targets]
    plan = subprocess.run(
        [*command, "-n", "--quiet", "rules"], cwd=clone, env=environment, capture_output=True, text=True, check=True
    )
    if re.search(r"^\s*train\s", plan.stdout, re.MULTILINE):
        sys.exit(f"{commit} would train again: its ids of runs differ\n{plan.stdout}")
    subprocess.run(command, cwd=clone, env=environment, capture_output=True, check=True)
    return copy


def _differences(before: Path, after: Path) -> Iterator[str]:
    files = [
        {path.relative_to(side) for pattern in COMPARED for path in side.glob(pattern)} for side in (before, after)
    ]
    yield from (f"{file}: only before" for file in sorted(files[0] - files[1]))
    yield from (f"{file}: only after" for file in sorted(files[1] - files[0]))
    for file in sorted(files[0] & files[1]):
        found = list(difflib.unified_diff(_lines(before / file), _lines(after / file), n=0, lineterm=""))
        changed = [line for line in found[2:] if not line.startswith("@@")]
        yield from (f"{file}: {line[:MAX_WIDTH]}" for line in changed[:MAX_LINES])
        if len(changed) > MAX_LINES:
            yield f"{file}: {len(changed) - MAX_LINES} more"


def _lines(file: Path) -> list[str]:
    """A line for each row of a table, number of a verdict, and element of a drawing without its generated names."""
    text = file.read_text()
    if file.suffix == ".json":
        text = json.dumps(json.loads(text), indent=1)
    return VARYING.sub("", text).replace(">", ">\n").splitlines()


if __name__ == "__main__":
    sys.exit(main())
