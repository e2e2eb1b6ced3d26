"""What was seen of faults, as the page of the documentation, docs/reference/faults.md, and line by line, docs/measured/faults.txt."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from tests.faults.catalogue import ALL
from tests.faults.engine import BROKE, EXEMPT, HELD, NOT_HERE, NOT_PROVOKED, NOT_RUN, PROMISES, Cell
from tests.faults.faults import Fault
from tests.faults.steps import NAMES
from tests.faults.world import ROOT

PAGE = ROOT / "docs/reference/faults.md"
SEEN = ROOT / "docs/measured/faults.json"
TEXT = SEEN.with_suffix(".txt")
SIGNS = {
    HELD: "held",
    BROKE: "**broke**",
    EXEMPT: "–",
    NOT_HERE: "not here",
    NOT_PROVOKED: "**not provoked**",
    NOT_RUN: "not run",
}
HEAD = """\
# Faults

<!-- Written by `python -m tests.faults page` from docs/measured/faults.json. -->

Each step of the pipeline meets each fault, on two tiny studies. Of every case five things are promised:

{promises}

"Accepted" is what a later step would take for done. A fault strikes while a certain file is being written, by a library that is preloaded and lets the process wait at that moment; a fault that is called a *stand-in* is provoked by this library and by nothing else.

`python -m tests.faults --steps STEP --faults FAULT` repeats a case, `make soak` all of them. The tests have a selection: {{repo}}`tests/integration/test_faults.py`.

{counts}

| fault | {steps} |
|---|{rule}
{rows}

–: the step cannot meet the fault, for the reason given below.{legend}
"""
LEGEND = " *not run*: nobody has looked yet."


def write_page(words: Sequence[str]) -> int:
    """Write page and text from a file of cells; by default from the one that is kept."""
    seen = Path(words[0]) if words else SEEN
    known = json.loads(seen.read_text())
    cells = {(cell["step"], cell["fault"]): cell for cell in known["cells"]}
    signs = {fault.name: " | ".join(_sign(cells, step, fault) for step in NAMES) for fault in ALL}
    rows = [f"| [{name}](#{name}) | {of_steps} |" for name, of_steps in signs.items()]
    head = HEAD.format(
        promises="\n".join(f"{number}. {text[0].upper()}{text[1:]}." for number, text in enumerate(PROMISES, 1)),
        counts=_counts(cells, known["machine"]),
        steps=" | ".join(NAMES),
        rule="---|" * len(NAMES),
        rows="\n".join(rows),
        legend=LEGEND if any(SIGNS[NOT_RUN] in row for row in rows) else "",
    )
    PAGE.write_text("\n".join([head, *(_section(cells, fault) for fault in ALL)]))
    TEXT.write_text("\n".join(_lines(cells, known["machine"])) + "\n")
    return 0


def _lines(cells: dict[tuple[str, str], dict[str, Any]], machine: str) -> Iterator[str]:
    """A line per case, in the order of steps and faults, and the cases that were not run."""
    yield _counts(cells, machine)
    yield "Run in several calls; their seconds are those of a machine that others used too."
    missing = []
    for step in NAMES:
        for fault in ALL:
            cell = cells.get((step, fault.name))
            if cell is None or cell["status"] == NOT_RUN:
                missing.append(f"{step} {fault.name}")
            else:
                yield Cell(**cell).line
    if missing:
        yield f"\nnot run ({len(missing)}): {', '.join(missing)}"


def _sign(cells: dict[tuple[str, str], dict[str, Any]], step: str, fault: Fault) -> str:
    cell = cells.get((step, fault.name))
    return SIGNS[cell["status"] if cell else NOT_RUN]


def _counts(cells: dict[tuple[str, str], dict[str, Any]], machine: str) -> str:
    """How many cases held and broke, and when they were run."""
    of = {status: sum(cell["status"] == status for cell in cells.values()) for status in SIGNS}
    missing = len(NAMES) * len(ALL) - len(cells) + of[NOT_RUN]
    dates = sorted({cell["date"] for cell in cells.values() if cell["date"]})
    when = f"{dates[0]} to {dates[-1]}" if len(dates) > 1 else "".join(dates)
    return (
        f"Of {len(NAMES) * len(ALL)} cases {of[HELD]} held, {of[BROKE]} broke, {of[EXEMPT]} do not apply, "
        f"{of[NOT_HERE]} need what this machine lacks, {of[NOT_PROVOKED]} were not provoked and {missing} were not run ({when}; {machine})."
    )


def _section(cells: dict[tuple[str, str], dict[str, Any]], fault: Fault) -> str:
    lines = [f"## {fault.name}", "", f"{fault.what[0].upper()}{fault.what[1:]}. {fault.promised}".strip(), ""]
    lines += ["| step | | seen |", "|---|---|---|"]
    for step in NAMES:
        cell = cells.get((step, fault.name))
        seen = cell["seen"] if cell else ""
        lines.append(f"| {step} | {_sign(cells, step, fault)} | {_plain(seen)} |")
    return "\n".join([*lines, ""])


def _plain(text: str) -> str:
    """Text in a cell of a table, with nothing that Markdown reads."""
    return re.sub(r"([\\`*_\[\]{}<>|$])", r"\\\1", text.replace("\n", " "))
