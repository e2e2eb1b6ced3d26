"""The verdicts on a study's claims: written as JSON, CSV, Markdown and LaTeX, and read back for the page."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

import pandas as pd

from scalestudy.analysis.summarise import storable
from scalestudy.claims.outcome import Verdict
from scalestudy.claims.words import interval_text
from scalestudy.errors import UserError
from scalestudy.figures.tables import booktabs, markdown, pipe_table
from scalestudy.files import read_json, visible_texts, write_json, write_text
from scalestudy.spec.layout import claims_file
from scalestudy.spec.study import Study

HEAD = ("Claim", "Verdict", "Basis", "Number", "Needed", "n", "Source")
NOTE = "Number with its 95 % interval, of equivalences 90 %, wider where a claim has several looks; n: rounds; consistent and inconsistent judge published rows alone"


def write_verdicts(study: Study, machine: str, verdicts: Sequence[Verdict]) -> list[Path]:
    """Write results/<machine>/<scale>/claims/<study>.json, .csv, .md and .tex; returns their paths."""
    plain = [asdict(verdict) for verdict in verdicts]
    content = {
        "study": study.name, "title": study.title, "machine": machine, "scale": study.scale, "claims": plain
    }  # fmt: skip
    frame = storable(pd.DataFrame(plain, columns=list(Verdict.__dataclass_fields__)))
    lines, title = [_line(verdict) for verdict in verdicts], f"{study.title}: claims"
    text = [f"**{markdown(title)}**", "", *pipe_table(HEAD, ("---",) * 3 + ("--:",) * 3 + ("---",), lines)]
    text += ["", f"{markdown(NOTE)}.", "", *(f"- `{each.id}`: {markdown(each.sentence)}" for each in verdicts)]
    files = {suffix: claims_file(machine, study.scale, study.name, suffix) for suffix in ("json", "csv", "md", "tex")}
    write_json(files["json"], visible_texts(content))
    write_text(files["csv"], frame.to_csv(index=False, float_format="%.10g"))
    write_text(files["md"], "\n".join(text) + "\n")
    write_text(files["tex"], booktabs(title, "p{6cm}llrrrp{4cm}", HEAD, lines, [NOTE]))
    return list(files.values())


def _line(verdict: Verdict) -> list[str]:
    return [
        verdict.statement,
        verdict.verdict,
        verdict.basis,
        interval_text(verdict.estimate, verdict.low, verdict.high, verdict.unit),
        verdict.threshold,
        "" if verdict.n is None else str(verdict.n),
        verdict.cited,
    ]


def read_verdicts(study: Study, machine: str) -> tuple[Verdict, ...]:
    """The verdicts on a study's claims; none where none were judged. Raises UserError where the file is damaged."""
    file = claims_file(machine, study.scale, study.name)
    if not study.claims or not file.exists():  # without claims, as under `set`, the file is that of other runs
        return ()
    remedy = f"delete it, then: snakemake {file} --cores 1"
    try:
        return tuple(Verdict(**claim) for claim in read_json(file)["claims"])
    except (KeyError, TypeError):
        raise UserError("holds no verdicts of this version", str(file), remedy) from None
