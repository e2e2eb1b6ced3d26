"""The outcome of one claim."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

from scalestudy.claims import words
from scalestudy.claims.basis import ELSEWHERE, INSTRUMENT_CHECK, MARKS, OURS, basis_of, label
from scalestudy.claims.model import AnyClaim, Comparison, Published

REPRODUCED, NOT_REPRODUCED, INCONCLUSIVE = "reproduced", "not reproduced", "inconclusive"
NOT_RUN, NOT_HERE, CONSISTENT, INCONSISTENT = "not run", "not testable here", "consistent", "inconsistent"
CHECK_OUTCOMES = {REPRODUCED: "passed", NOT_REPRODUCED: "failed"}
"""Verdicts of an instrument check."""


@dataclass(frozen=True)
class Verdict:
    """A claim with its outcome. Numbers are in `unit`; `n` counts rounds; None where there is no such number."""

    id: str
    statement: str
    source: str
    place: str
    kind: str
    digest: str
    origin: str
    basis: str
    stand_ins: list[str] = field(default_factory=list)
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
    disturbed: int = 0
    runs: list[str] = field(default_factory=list)
    reason: str = ""
    repeats_needed: int | None = None
    changed_after_measuring: bool = False
    p: float | None = None
    p_holm: float | None = None
    measured_on: list[str] = field(default_factory=list)
    """Processors and accelerators of its runs."""
    apart: int = 0
    """Rounds far from the others, as slow ones are: the number is that of the median round."""
    look: int | None = None
    """Which of the planned looks this is, from 1."""
    looks: list[int] = field(default_factory=list)
    """Numbers of rounds at which it is judged."""
    campaigns: int = 1
    """Campaigns of this machine that have the number, this one included."""
    next_low: float | None = None
    next_high: float | None = None
    """Ends of the 95 % interval for the number of the next campaign; None before there are three."""

    @classmethod
    def of(cls, claim: AnyClaim) -> Verdict:
        """A claim before it is judged."""
        compared = claim if isinstance(claim, Comparison) else None
        same = ("id", "statement", "source", "place", "kind", "digest", "origin")
        return cls(
            **{key: getattr(claim, key) for key in same},
            basis=basis_of(claim, ()),
            unit=compared.unit if compared else "",
            threshold=words.threshold_text(compared) if compared else "",
            margin_reason=compared.margin_reason if compared else "",
            n=1 if isinstance(claim, Published) else None,
        )

    @property
    def label(self) -> str:
        """The verdict in words, with its stand-ins."""
        return label(self.verdict, self.basis)

    @property
    def cited(self) -> str:
        """Who claims it, and where."""
        return OURS if self.origin == OURS else ", ".join(filter(None, (self.source, self.place)))

    @property
    def sign(self) -> str:
        """One character for the verdict."""
        return MARKS[self.verdict]

    @property
    def finding(self) -> str:
        """The sentence without the verdict that it begins with and without its full stop, where that stands beside it."""
        return self.sentence.partition(": ")[2].strip().rstrip(".")

    def not_here(self, reason: str) -> Verdict:
        """*Not testable here*, with the reason."""
        return replace(self, verdict=NOT_HERE, basis=ELSEWHERE, reason=reason, sentence=f"Not testable here: {reason}.")

    def inconclusive(self, reason: str, **more: Any) -> Verdict:
        """*Inconclusive*, with the reason."""
        return replace(self, verdict=INCONCLUSIVE, reason=reason, sentence=self._sentence(INCONCLUSIVE, reason), **more)

    def not_run(self, missing: int, planned: int) -> Verdict:
        """*Not run*: `missing` of the `planned` runs have no result."""
        reason = f"{missing} of {planned} runs have no result"
        return replace(self, verdict=NOT_RUN, reason=reason, sentence=f"Not run: {reason}.", n=0)

    def decided(self, verdict: str, reason: str, **more: Any) -> Verdict:
        """Decided either way; `reason` follows the colon of its sentence."""
        word = CHECK_OUTCOMES.get(verdict, verdict) if self.basis == INSTRUMENT_CHECK else verdict
        return replace(self, verdict=word, sentence=self._sentence(word, reason), **more)

    def _sentence(self, verdict: str, finding: str) -> str:
        """Verdict, finding, and what stands for something else."""
        stand_ins = "".join(f" {sentence}." for sentence in self.stand_ins)
        return f"{label(verdict, self.basis).capitalize()}: {finding}.{stand_ins}"
