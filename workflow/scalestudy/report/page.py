"""Everything of some studies on one self-contained page: the answers first, then each study."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import jinja2
from markupsafe import Markup, escape

from scalestudy.analysis.rows import read_rows
from scalestudy.claims.basis import BASES, MARKS, tallies
from scalestudy.errors import visible
from scalestudy.figures import notes
from scalestudy.figures.groups import Row, selected
from scalestudy.files import write_text
from scalestudy.report.answers import first_answers, this_machine, warnings_of
from scalestudy.report.study_part import counts_of, study_part
from scalestudy.results.parts import PARTS
from scalestudy.spec.columns import MEASURED, STATUSES
from scalestudy.spec.labels import quantity
from scalestudy.spec.layout import config_of
from scalestudy.spec.study import Study, left_out_of


def write_report(studies: Sequence[Study], machine: str, scale: str, out: Path | str) -> Path:
    """Write the report of `studies` to `out`; returns the path."""
    rows = {study.name: selected(read_rows(study, machine), {}) for study in studies}
    runs = {row["run"]: row for found in rows.values() for row in found}
    parts = [study_part(study, machine, rows[study.name]) for study in studies]
    claims = [(part["study"], claim) for part in parts for claim in part["claims"]]
    answers, left_out = first_answers(studies, machine)
    environment = templates()
    page = environment.get_template("page.html.j2").render(
        machine=machine,
        scale=scale,
        config=config_of(machine, scale),
        this_machine=this_machine(studies, machine),
        answers=answers,
        left_out=[*left_out, *left_out_of(studies)],
        warnings=warnings_of(studies, machine),
        parts=parts,
        claims=sorted(claims, key=lambda pair: list(MARKS).index(pair[1].verdict)),
        tallies=tallies((claim.basis, claim.origin, claim.verdict) for _, claim in claims),
        bases=BASES,
        counts=counts_of(runs.values()),
        statuses=STATUSES,
        planned=len(runs),
        run_time=quantity(math.fsum(row["wall_s"] for row in runs.values() if not math.isnan(row["wall_s"])), "s"),
        instruments=_instruments(runs.values()),
        instrument_names=notes.INSTRUMENT,
        columns={name: MEASURED[name] for name in MEASURED if name in _shown_columns(parts)},
        report_file=str(out),
    )
    write_text(out, page)
    return Path(out)


COLUMNS_OF_KINDS: dict[str, tuple[str, ...]] = {
    "time_over_ranks": ("training_time_s",),
    "throughput_over_ranks": ("throughput_samples_per_s",),
    "efficiency": ("efficiency",),
    "stacked": PARTS,
    "accuracy_over_time": ("accuracy", "auroc"),
    "staleness": ("staleness",),
}
"""Columns that a kind of figure draws by itself."""


def _shown_columns(parts: Sequence[Mapping[str, Any]]) -> set[str]:
    """The columns that figures and tables show, whose meanings the page ends with."""
    of_tables = {value for part in parts for table, _ in part["tables"] for value in table.values}
    figures = [figure for part in parts for figure in part["study"].figures]
    return of_tables | {
        column
        for figure in figures
        for column in (figure.x, figure.y, *COLUMNS_OF_KINDS.get(figure.kind, ()))
        if column
    }


def _instruments(rows: Iterable[Row]) -> list[tuple[dict[str, str], int]]:
    """Each instrument found, and with how many runs."""
    found: Counter[tuple[tuple[str, str], ...]] = Counter()
    for row in rows:
        facts = tuple((key, str(row[f"instrument.{key}"])) for key in notes.INSTRUMENT if row.get(f"instrument.{key}"))
        if facts:
            found[facts] += 1
    return [(dict(facts), count) for facts, count in found.most_common()]


# Text on the page


def templates() -> jinja2.Environment:
    """The templates of this folder, which escape text and show control characters."""
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(Path(__file__).parent),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=lambda value: visible(value) if isinstance(value, str) and not hasattr(value, "__html__") else value,
    )
    environment.filters.update(marked=marked, whole=whole, capital=lambda text: f"{text[:1].upper()}{text[1:]}")
    return environment


def marked(text: str) -> Markup:
    """`text` for HTML, with what stands between backticks as code."""
    return Markup(re.sub(r"`([^`]+)`", r"<code>\1</code>", str(escape(visible(text)))))


def whole(text: str) -> Markup:
    """A sentence for HTML, of which no line ends inside a number, its interval or its unit."""
    return marked(
        re.sub(r"(?<=\d),? (?=[±%\d])|(?<=±) ", lambda space: space[0].replace(" ", "\N{NO-BREAK SPACE}"), text)
    )
