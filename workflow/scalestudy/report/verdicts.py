"""The verdicts on a study's claims, as they were written: read back, counted, and put into one sentence."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from scalestudy.claims.words import interval_text
from scalestudy.errors import UserError
from scalestudy.files import read_sealed
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
NOT_HERE = "not testable here"
ON_MEASURED, ON_EMULATED = "judged on measured runs", "judged on emulated parts"
OF_PUBLISHED = "arithmetic of published tables"
BASES = (ON_MEASURED, ON_EMULATED, OF_PUBLISHED, NOT_HERE)
TOLD = ("reproduced", "not reproduced", "inconclusive")
"""Verdicts whose statements an answer repeats; of the others it says how many there are."""
MOST_STATEMENTS = 3
"""Statements with one verdict that an answer repeats; it says how many more there are."""


NUMBER = re.compile(r"[-−]?\d[\d.,]* \[[^\]]+\]")
"""A number with its interval in a verdict's sentence: `0.571 [0.532 … 0.610]`."""


class Judged(BaseModel):
    """One claim and what became of it: those keys of `claims/<study>.json` that a page shows."""

    model_config = ConfigDict(extra="ignore", frozen=True)

    id: str = Field(pattern=r"^[A-Za-z0-9_-]+$")
    statement: str
    source: str = ""
    place: str = ""
    verdict: str = Field(pattern=f"^({'|'.join(VERDICTS)})$")
    sentence: str
    estimate: float | None = None
    low: float | None = None
    high: float | None = None
    unit: str = ""
    threshold: str = ""
    margin_reason: str = ""
    n: int | None = None
    emulated: bool = False
    emulated_parts: tuple[str, ...] = ()
    disturbed: int = 0
    runs: tuple[str, ...] = ()
    changed_after_measuring: bool = False
    p_holm: float | None = None

    @property
    def label(self) -> str:
        """The verdict in words; what was emulated is part of it."""
        if self.basis != ON_EMULATED:
            return self.verdict
        *others, last = self.emulated_parts or ("parts",)
        return f"{self.verdict} on emulated {', '.join(others)}{' and ' if others else ''}{last}"

    @property
    def sign(self) -> str:
        """One character for the verdict."""
        return VERDICTS[self.verdict]

    @property
    def finding(self) -> str:
        """The sentence without the verdict that it begins with and without its full stop, for where the verdict stands beside it."""
        head, colon, rest = self.sentence.partition(": ")
        told = bool(colon) and head.lower().startswith(self.verdict)
        return (rest if told else self.sentence).strip().rstrip(".")

    @property
    def finding_parts(self) -> tuple[str, str, str]:
        """The finding before its number, the number with its interval, and what follows; no number: all before."""
        found = NUMBER.search(self.finding)
        return (
            (self.finding[: found.start()], found[0], self.finding[found.end() :]) if found else (self.finding, "", "")
        )

    @property
    def basis(self) -> str:
        """What the verdict rests on."""
        if self.verdict in OF_TABLES:
            return OF_PUBLISHED
        if self.verdict == NOT_HERE:
            return NOT_HERE
        return ON_EMULATED if self.emulated else ON_MEASURED


class _File(BaseModel):
    model_config = ConfigDict(extra="ignore", frozen=True)

    claims: tuple[Judged, ...]


def read_verdicts(machine: str, scale: str, study: str, file: Path | None = None) -> tuple[Judged, ...]:
    """The verdicts on a study's claims; none where none were judged. Raises UserError where the file is damaged."""
    file = claims_file(machine, scale, study) if file is None else file
    if not file.exists():
        return ()
    remedy = f"delete it, then: snakemake {file} --cores 1"
    try:
        return _File.model_validate(read_sealed(file, remedy)).claims
    except (OSError, ValueError) as error:
        first = error.errors()[0] if isinstance(error, ValidationError) else None
        what = f"{'.'.join(map(str, first['loc']))}: {first['msg']}" if first else str(error)
        raise UserError(f"cannot be read: {what}", str(file), remedy) from None


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
    """What a study answers: pairs of a verdict and the statements that it is the verdict on, each with its number.

    Statements end with a full stop. Empty without claims.
    """
    groups: dict[str, list[Judged]] = {}
    for claim in sorted(claims, key=lambda claim: (list(VERDICTS).index(claim.verdict), claim.emulated, claim.label)):
        groups.setdefault(claim.label, []).append(claim)
    return [(label, _told(group)) for label, group in groups.items()]


def capital(text: str) -> str:
    """Text with a capital letter at its beginning; the rest stays."""
    return f"{text[:1].upper()}{text[1:]}"


def _told(group: Sequence[Judged]) -> str:
    if group[0].verdict not in TOLD:
        return f"{len(group)} claim{'s' * (len(group) != 1)}."
    said = [_statement(claim) for claim in group[:MOST_STATEMENTS]]
    rest = len(group) - len(said)
    return " ".join([*said, *([f"And {rest} more."] if rest else [])])


def _statement(claim: Judged) -> str:
    """`A server costs time (0.57 [0.55 … 0.59]).`; with the limit where it was not met."""
    number = interval_text(claim.estimate, claim.low, claim.high, claim.unit)
    limit = f"required: {claim.threshold}" if claim.threshold and claim.verdict != "reproduced" else ""
    found = "; ".join(filter(None, (number, limit if number else "")))
    return f"{claim.statement.rstrip('.')}{f' ({found})' if found else ''}."
