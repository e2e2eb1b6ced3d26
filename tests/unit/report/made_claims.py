"""Verdicts, made up."""

from __future__ import annotations

from typing import Any

from scalestudy.claims.basis import ELSEWHERE, MEASURED, PUBLISHED, WITH_STAND_INS
from scalestudy.claims.outcome import Verdict
from scalestudy.report.verdicts import write_verdicts
from scalestudy.spec.study import Study
from tests.unit.analysis.fake_results import MACHINE

BASES = {"not testable here": ELSEWHERE, "consistent": PUBLISHED, "inconsistent": PUBLISHED}


def made(name: str, verdict: str, sentence: str, **more: Any) -> Verdict:
    """The verdict on one claim, of a document unless `more` says otherwise."""
    facts = {
        "statement": f"Statement of {name}", "source": "A paper", "place": "Fig. 1", "kind": "direction", "digest": "ab12",
        "origin": "document", "basis": BASES.get(verdict, MEASURED),
    }  # fmt: skip
    return Verdict(**{**facts, "id": name, "verdict": verdict, "sentence": sentence, **more})


def write_claims(study: Study) -> None:
    """One claim of each verdict, one of them with a stand-in, one of them ours."""
    number = {"estimate": 0.571, "low": 0.532, "high": 0.61, "n": 3, "threshold": "below 0.95"}
    said = "the ratio of throughput is 0.571 [0.532 … 0.610], below 0.95 is claimed; 3 rounds."
    runs = [run.id for run in study.runs[:4]]
    stand_ins = ["The step of a p100 is emulated"]
    server = {**number, "runs": runs, "basis": WITH_STAND_INS, "stand_ins": stand_ins}
    verdicts = [
        made("server", "reproduced", f"Reproduced with stand-ins: {said}", **server),
        made("slower", "not reproduced", f"Not reproduced: {said}", runs=runs, **number, source="A book"),
        made("unsure", "inconclusive", "Inconclusive: not run.", runs=runs, origin="ours", disturbed=1),
        made("absent", "not testable here", "Not testable here: there is one <socket>."),
        made("sum", "consistent", "Consistent: 10 s over 5 s is 2.", changed_after_measuring=True),
        made("ratio", "inconsistent", "Inconsistent: 10 s over 4 s is 2.5."),
    ]
    write_verdicts(study, MACHINE, verdicts)
