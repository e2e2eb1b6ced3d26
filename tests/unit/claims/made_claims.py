"""Claims over made numbers: a study of two strategies and four sizes, and rows whose values a function gives."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from scalestudy.claims.fixed import Fixed, with_plan
from scalestudy.claims.judge import judge
from scalestudy.claims.outcome import Verdict
from scalestudy.claims.select import Row, spec_rows
from scalestudy.spec.columns import METRICS
from scalestudy.spec.machine import Machine
from scalestudy.spec.read_study import read_studies
from scalestudy.spec.study import Run, Study

STUDY = """
question: How?
vary:
  strategy: [{{value: allreduce, label: ring all-reduce}}, parameter_server]
  train.epochs: [1, 2, 4, 8]
repeats: {repeats}
scales:
  mini: {{repeats: 2}}
claims:
"""
CLAIM = """
  - id: {id}
    statement: A server is slower.
    source: Someone, Something
    place: page 1
    {text}
"""
DIRECTION = """kind: direction
    column: throughput_samples_per_s
    where: {train.epochs: 1}
    of: {strategy: parameter_server}
    against: {strategy: allreduce}
    below: 0.95
    margin_reason: five percent is what matters"""
Numbers = Callable[[Run], Mapping[str, Any]]


def study_with(folder: Path, *claims: str, repeats: int = 5, scale: str = "paper", base: str = "{}") -> Study:
    """The study with these claims, named `c0`, `c1`, …"""
    text = f"base: {base}\n{STUDY.format(repeats=repeats)}" + "".join(
        CLAIM.format(id=f"c{index}", text=claim) for index, claim in enumerate(claims)
    )
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "s.yaml").write_text(text, encoding="utf-8")
    return read_studies(["s"], scale, Machine(), folder=folder)[0]


def rows_of(study: Study, numbers: Numbers) -> list[Row]:
    """Rows as `study_rows` gives them; `numbers` are a run's metrics, and its status where it is not valid."""
    nothing: dict[str, Any] = dict.fromkeys(METRICS, math.nan)
    valid = {"status": "valid", "reason": "", "wall_s": 10.0, "instrument.device_name": "cpu"}
    return [{**nothing, **valid, **spec_rows([run])[0], **numbers(run)} for run in study.runs]


def as_fixed(study: Study) -> dict[str, Fixed]:
    """What a driver writes of the study's claims before the first run."""
    planned = [with_plan(claim, spec_rows(study.runs), {}) for claim in study.claims]
    return {claim.id: Fixed(claim.digest, getattr(claim, "looks", ())) for claim in planned}


def verdicts(study: Study, numbers: Numbers, fixed: Mapping[str, Fixed] | None = None) -> list[Verdict]:
    """The verdicts on a study's claims, which were fixed before its runs unless `fixed` says otherwise."""
    return judge(study, rows_of(study, numbers), as_fixed(study) if fixed is None else fixed)
