"""The verdicts on a study's claims as JSON, CSV, Markdown and LaTeX."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

import pandas as pd

from scalestudy.claims.basis import OURS
from scalestudy.claims.verdict import Verdict
from scalestudy.claims.words import interval_text
from scalestudy.figures.tables import latex, markdown
from scalestudy.files import canonical_json, write_sealed, write_text
from scalestudy.spec.layout import claims_file
from scalestudy.spec.study import Study

HEAD = ("Claim", "Verdict", "Basis", "Number", "Needed", "n", "Source")
NOTE = "Number with its 95 % interval, of equivalences 90 %; n: rounds; consistent and inconsistent judge published rows alone"


def write_verdicts(study: Study, machine: str, verdicts: Sequence[Verdict]) -> list[Path]:
    """Write results/<machine>/<scale>/claims/<study>.json, .csv, .md and .tex; returns their paths."""
    content = {
        "study": study.name,
        "title": study.title,
        "machine": machine,
        "scale": study.scale,
        "claims": [asdict(verdict) for verdict in verdicts],
    }
    files = {suffix: claims_file(machine, study.scale, study.name, suffix) for suffix in ("json", "csv", "md", "tex")}
    write_sealed(files["json"], content)
    write_text(files["csv"], as_csv(verdicts))
    write_text(files["md"], as_markdown(study, verdicts))
    write_text(files["tex"], as_latex(study, verdicts))
    return list(files.values())


def as_csv(verdicts: Sequence[Verdict]) -> str:
    """All fields, a row per claim; lists as JSON."""
    rows = [
        {key: canonical_json(value) if isinstance(value, list) else value for key, value in asdict(verdict).items()}
        for verdict in verdicts
    ]
    return pd.DataFrame(rows, columns=list(Verdict.__dataclass_fields__)).to_csv(index=False, float_format="%.10g")


def _lines(verdicts: Sequence[Verdict]) -> list[list[str]]:
    return [
        [
            verdict.statement,
            verdict.verdict,
            verdict.basis,
            interval_text(verdict.estimate, verdict.low, verdict.high, verdict.unit),
            verdict.threshold,
            "" if verdict.n is None else str(verdict.n),
            "ours" if verdict.origin == OURS else f"{verdict.source}, {verdict.place}",
        ]
        for verdict in verdicts
    ]


def as_markdown(study: Study, verdicts: Sequence[Verdict]) -> str:
    """A pipe table, and below it a sentence per claim."""
    rows = [list(HEAD), ["---", "---", "---", "--:", "--:", "--:", "---"], *_lines(verdicts)]
    text = [f"**{markdown(study.title)}: claims**", ""]
    text += [
        "| " + " | ".join(cell if set(cell) <= set("-:") else markdown(cell) for cell in row) + " |" for row in rows
    ]
    text += ["", f"{markdown(NOTE)}.", ""]
    text += [f"- `{verdict.id}`: {markdown(verdict.sentence)}" for verdict in verdicts]
    return "\n".join(text) + "\n"


def as_latex(study: Study, verdicts: Sequence[Verdict]) -> str:
    """A booktabs tabular with its note below."""
    text = [
        f"% {latex(study.title)}: claims. Needs \\usepackage{{booktabs}}.",
        r"\begin{tabular}{p{6cm}llrrrp{4cm}}",
        r"\toprule",
        " & ".join(HEAD) + r" \\",
        r"\midrule",
        *(" & ".join(map(latex, line)) + r" \\" for line in _lines(verdicts)),
        r"\bottomrule",
        r"\end{tabular}",
        r"\par\smallskip",
        rf"{{\footnotesize {latex(NOTE)}.\par}}",
    ]
    return "\n".join(text) + "\n"
