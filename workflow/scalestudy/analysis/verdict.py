"""What was found of one claim."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any

from scalestudy.analysis.claim_words import threshold_text, unit_of_claim
from scalestudy.spec.claims import AnyClaim, Comparison, Published

REPRODUCED, NOT_REPRODUCED, INCONCLUSIVE = "reproduced", "not reproduced", "inconclusive"
NOT_HERE, CONSISTENT, INCONSISTENT = "not testable here", "consistent", "inconsistent"
VERDICTS = (REPRODUCED, NOT_REPRODUCED, INCONCLUSIVE, NOT_HERE, CONSISTENT, INCONSISTENT)
DECIDED = (REPRODUCED, NOT_REPRODUCED)


@dataclass(frozen=True)
class Verdict:
    """A claim and what was found. Numbers are in `unit`; `n` counts rounds; None where there is no such number."""

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

    @property
    def emulated(self) -> bool:
        """Whether something of its runs is emulated."""
        return bool(self.emulated_parts)

    @property
    def plain(self) -> dict[str, Any]:
        """As it is stored."""
        return {**asdict(self), "emulated": self.emulated}


def verdict_of(claim: AnyClaim) -> Verdict:
    """A claim of which nothing is known yet."""
    return Verdict(
        id=claim.id,
        statement=claim.statement,
        source=claim.source,
        place=claim.place,
        kind=claim.kind,
        digest=claim.digest,
        unit=unit_of_claim(claim) if isinstance(claim, Comparison) else "",
        threshold=threshold_text(claim) if isinstance(claim, Comparison) and claim.scales else "",
        margin_reason=(claim.margin_reason or "") if isinstance(claim, Comparison) else "",
        n=1 if isinstance(claim, Published) else None,
    )
