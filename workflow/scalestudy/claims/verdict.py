"""The outcome of one claim."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from scalestudy.claims import words
from scalestudy.claims.model import AnyClaim, Comparison, Published

REPRODUCED, NOT_REPRODUCED, INCONCLUSIVE = "reproduced", "not reproduced", "inconclusive"
NOT_HERE, CONSISTENT, INCONSISTENT = "not testable here", "consistent", "inconsistent"


@dataclass(frozen=True)
class Verdict:
    """A claim with its outcome. Numbers are in `unit`; `n` counts rounds; None where there is no such number."""

    id: str
    statement: str
    source: str
    place: str
    kind: str
    digest: str
    verdict: str = INCONCLUSIVE
    sentence: str = ""
    estimate: float | None = None
    low: float | None = None
    high: float | None = None
    confidence: float | None = None
    unit: str = ""
    threshold: str = ""
    margin_reason: str = ""
    n: int | None = None
    emulated_parts: list[str] = field(default_factory=list)
    disturbed: int = 0
    runs: list[str] = field(default_factory=list)
    reason: str = ""
    repeats_needed: int | None = None
    cost_s: float | None = None
    cost_device_hours: float | None = None
    changed_after_measuring: bool = False
    p: float | None = None
    p_holm: float | None = None

    @classmethod
    def of(cls, claim: AnyClaim) -> Verdict:
        """A claim before it is judged."""
        compared = claim if isinstance(claim, Comparison) else None
        return cls(
            id=claim.id,
            statement=claim.statement,
            source=claim.source,
            place=claim.place,
            kind=claim.kind,
            digest=claim.digest,
            unit=words.unit_of_claim(compared) if compared else "",
            threshold=words.threshold_text(compared) if compared and claim.scales else "",
            margin_reason=(compared.margin_reason or "") if compared else "",
            n=1 if isinstance(claim, Published) else None,
        )

    @property
    def emulated(self) -> bool:
        """Whether a part of its runs is emulated."""
        return bool(self.emulated_parts)

    @property
    def plain(self) -> dict[str, Any]:
        """The stored form."""
        return {**asdict(self), "emulated": self.emulated}

    def not_here(self, reason: str) -> Verdict:
        """*Not testable here*, with the reason."""
        return replace(self, verdict=NOT_HERE, reason=reason, sentence=f"Not testable here: {reason}")

    def inconclusive(self, reason: str, **more: Any) -> Verdict:
        """*Inconclusive*, with the reason."""
        sentence = f"Inconclusive{words.emulated_text(self.emulated_parts)}: {reason}."
        return replace(self, verdict=INCONCLUSIVE, reason=reason, sentence=sentence, **more)

    def too_few_planned(self, rounds: int, needed: int, **more: Any) -> Verdict:
        """*Inconclusive*, because the study plans fewer rounds than the claim needs."""
        planned = f"{words.rounds(rounds)} planned, at least {needed} needed"
        return self.inconclusive(f"not judgeable at this scale: {planned}", **more)

    def decided(self, verdict: str, said: str, **more: Any) -> Verdict:
        """Decided either way; `said` follows the colon of its sentence."""
        head = f"{verdict.capitalize()}{words.emulated_text(self.emulated_parts)}"
        return replace(self, verdict=verdict, sentence=f"{head}: {said}.", **more)


def absence(rows: Sequence[Any], planned: int, problem: object) -> str:
    """The reason why `rows` of `planned` runs give no number: no result, an invalid run, or the `problem`."""
    missing = [row for row in rows if row["status"] == "missing"]
    invalid = [row for row in rows if row["status"] == "invalid"]
    if missing:
        return f"not run: {len(missing)} of {planned} runs have no result"
    if invalid:
        return f"run invalid: {len(invalid)} of {planned} runs: {invalid[0]['reason']}"
    return f"not judgeable at this scale: {problem}"
