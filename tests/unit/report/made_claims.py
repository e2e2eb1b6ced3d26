"""Verdicts as `claims/<study>.json` holds them, made up."""

from __future__ import annotations

from typing import Any

from scalestudy.claims.basis import ELSEWHERE, MEASURED, PUBLISHED, WITH_STAND_INS
from scalestudy.files import write_json
from scalestudy.spec.layout import claims_file
from scalestudy.spec.study import Study
from tests.unit.analysis.fake_results import MACHINE


def made(name: str, verdict: str, **more: Any) -> dict[str, Any]:
    """One claim; its sentence begins with the verdict."""
    sentence = more.pop("sentence", f"{verdict.capitalize()}: nothing was measured.")
    statement = more.pop("statement", f"Statement of {name}")
    basis = {"not testable here": ELSEWHERE, "consistent": PUBLISHED, "inconsistent": PUBLISHED}.get(verdict, MEASURED)
    return {
        "origin": "document", "basis": basis, "id": name, "statement": statement, "source": "A paper", "place": "Fig. 1", "kind": "direction",
        "verdict": verdict, "sentence": sentence, "digest": "ab12", "runs": [], **more,
    }  # fmt: skip


def claims_of(study: Study) -> list[dict[str, Any]]:
    """One claim of each verdict, one of them with a stand-in, one of them ours."""
    number = {"estimate": 0.571, "low": 0.532, "high": 0.61, "confidence": 0.95, "n": 3, "threshold": "below 0.95"}
    said = "the ratio of throughput is 0.571 [0.532 … 0.610], below 0.95 is claimed; 3 rounds."
    runs = [run.id for run in study.runs[:4]]
    stood_in: dict[str, Any] = {"basis": WITH_STAND_INS, "stand_ins": ["The step of a p100 is emulated"]}
    return [
        made("server", "reproduced", sentence=f"Reproduced with stand-ins: {said}", runs=runs, **number, **stood_in),
        made("slower", "not reproduced", sentence=f"Not reproduced: {said}", runs=runs, **number, source="A book"),
        made("unsure", "inconclusive", origin="ours", sentence="Inconclusive: not run.", runs=runs, disturbed=1),
        made("absent", "not testable here", sentence="Not testable here: there is one <socket>."),
        made("sum", "consistent", sentence="Consistent: 10 s over 5 s is 2.", changed_after_measuring=True),
        made("ratio", "inconsistent", sentence="Inconsistent: 10 s over 4 s is 2.5."),
    ]


def write_claims(study: Study) -> None:
    facts = {"study": study.name, "title": study.title, "machine": MACHINE, "scale": study.scale}
    write_json(claims_file(MACHINE, study.scale, study.name), {**facts, "claims": claims_of(study)})
