"""The verdicts on a study's claims, as they were written: read back, counted, and put into one sentence."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from scalestudy.errors import UserError
from scalestudy.figures.words import number, quantity
from scalestudy.files import read_json
from scalestudy.spec.layout import claims_file

VERDICTS = {
    "reproduced": "✓",
    "not reproduced": "✗",
    "inconclusive": "?",
    "not testable here": "–",
    "consistent": "=",
    "inconsistent": "≠",
}
"""Verdicts in the order in which they are told, each with the sign that stands before it."""
OF_TABLES = ("consistent", "inconsistent")
"""Verdicts on a published table's own arithmetic, which say nothing of any run."""
MOST_SENTENCES = 3


class Judged(BaseModel):
    """One claim and what became of it; the keys of `claims/<study>.json`. Numbers are in `unit`."""

    model_config = ConfigDict(extra="ignore", frozen=True)

    id: str = Field(pattern=r"^[A-Za-z0-9_-]+$")
    statement: str
    source: str = ""
    place: str = ""
    kind: str = ""
    verdict: str = Field(pattern=f"^({'|'.join(VERDICTS)})$")
    sentence: str
    estimate: float | None = None
    low: float | None = None
    high: float | None = None
    unit: str | None = None
    threshold: float | str | None = None
    margin_reason: str | None = None
    n: int | None = None
    emulated: bool = False
    disturbed: bool = False
    runs: tuple[str, ...] = ()
    reason: str | None = None
    repeats_needed: int | None = None
    cost_s: float | None = None
    changed_after_measuring: bool = False
    digest: str | None = None
    p_holm: float | None = None

    @property
    def label(self) -> str:
        """The verdict in words; emulated compute is part of it."""
        judged = self.verdict in ("reproduced", "not reproduced", "inconclusive")
        return f"{self.verdict} on emulated compute" if judged and self.emulated else self.verdict

    @property
    def sign(self) -> str:
        """One character for the verdict."""
        return VERDICTS[self.verdict]

    @property
    def interval(self) -> str:
        """`1.4 (1.2 to 1.6) s`; empty where nothing was estimated."""
        if self.estimate is None:
            return ""
        ends = "" if self.low is None or self.high is None else f" ({number(self.low)} to {number(self.high)})"
        return f"{number(self.estimate)}{ends} {self.unit or ''}".strip()

    @property
    def threshold_text(self) -> str:
        """What it is held against."""
        if isinstance(self.threshold, float):
            return f"{number(self.threshold)} {self.unit or ''}".strip()
        return str(self.threshold)

    @property
    def cost_text(self) -> str:
        """How long the repeats take that would decide it."""
        return quantity(self.cost_s or 0.0, "s")

    @property
    def basis(self) -> str:
        """What the verdict rests on."""
        if self.verdict in OF_TABLES:
            return "arithmetic of published tables"
        if self.verdict == "not testable here":
            return "not testable here"
        return "judged on emulated compute" if self.emulated else "judged on measured runs"


class _File(BaseModel):
    model_config = ConfigDict(extra="ignore", frozen=True)

    claims: tuple[Judged, ...]


def read_verdicts(machine: str, scale: str, study: str, file: Path | None = None) -> tuple[Judged, ...]:
    """The verdicts on a study's claims; none where none were judged. Raises UserError where the file is damaged."""
    file = claims_file(machine, scale, study) if file is None else file
    if not file.exists():
        return ()
    try:
        return _File.model_validate(read_json(file)).claims
    except (OSError, ValueError) as error:
        first = error.errors()[0] if isinstance(error, ValidationError) else None
        what = f"{'.'.join(map(str, first['loc']))}: {first['msg']}" if first else str(error)
        raise UserError(f"cannot be read: {what}", str(file), f"delete it, then: snakemake {file} --cores 1") from None


@dataclass(frozen=True)
class Tally:
    """How many claims rest on one basis, and with which verdicts."""

    basis: str
    count: int
    verdicts: tuple[tuple[str, int], ...]

    def __str__(self) -> str:
        """`judged on measured runs: 5 (3 reproduced, 2 inconclusive)`."""
        same = len(self.verdicts) == 1 and self.verdicts[0][0] == self.basis
        inside = "" if same else f" ({', '.join(f'{count} {verdict}' for verdict, count in self.verdicts)})"
        return f"{self.basis}: {self.count}{inside}"


BASES = (
    "judged on measured runs",
    "judged on emulated compute",
    "arithmetic of published tables",
    "not testable here",
)


def tallies(claims: Sequence[Judged]) -> list[Tally]:
    """How many claims each basis bears: the denominators of all that is said of them."""
    found = []
    for basis in BASES:
        counts = Counter(claim.verdict for claim in claims if claim.basis == basis)
        if counts:
            verdicts = tuple((verdict, counts[verdict]) for verdict in VERDICTS if counts[verdict])
            found.append(Tally(basis, counts.total(), verdicts))
    return found


def answer(claims: Iterable[Judged]) -> list[tuple[str, str]]:
    """What a study answers, from the sentences of its claims: pairs of a verdict and what was found.

    Claims that were decided are told with their sentences, the others are counted. Empty without claims.
    """
    groups: dict[str, list[Judged]] = {}
    for claim in sorted(claims, key=lambda claim: (list(VERDICTS).index(claim.verdict), claim.emulated)):
        groups.setdefault(claim.label, []).append(claim)
    said = []
    for label, group in groups.items():
        if group[0].verdict in ("reproduced", "not reproduced"):
            sentences = [claim.sentence.strip().rstrip(".") for claim in group[:MOST_SENTENCES]]
            rest = len(group) - len(sentences)
            said.append((label, "; ".join([*sentences, *([f"{rest} more"] if rest else [])])))
        else:
            said.append((label, f"{len(group)} claim{'s' * (len(group) != 1)}"))
    return said


def answer_text(claims: Iterable[Judged]) -> str:
    """The same as one sentence: `Reproduced: …; inconclusive: 2 claims.`"""
    text = "; ".join(f"{label}: {found}" for label, found in answer(claims))
    return f"{text[:1].upper()}{text[1:]}." if text else "No claims judged."
