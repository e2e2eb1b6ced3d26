"""The verdicts on a study's claims, as they were written: read back and counted."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from scalestudy.claims import basis as bases
from scalestudy.claims.basis import BASES, DOCUMENT, MARKS, OURS, Tally
from scalestudy.errors import UserError
from scalestudy.files import read_sealed
from scalestudy.spec.layout import claims_file

NUMBER = re.compile(r"[-−]?\d[\d.,]* \[[^\]]+\]")
"""A number with its interval in a verdict's sentence: `0.571 [0.532 … 0.610]`."""


class Judged(BaseModel):
    """One claim and what became of it: those keys of `claims/<study>.json` that a page shows."""

    model_config = ConfigDict(extra="ignore", frozen=True)

    id: str = Field(pattern=r"^[A-Za-z0-9_-]+$")
    statement: str
    source: str = ""
    place: str = ""
    origin: str = DOCUMENT
    basis: str = Field(pattern=f"^({'|'.join(BASES)})$")
    verdict: str = Field(pattern=f"^({'|'.join(MARKS)})$")
    sentence: str
    estimate: float | None = None
    low: float | None = None
    high: float | None = None
    unit: str = ""
    threshold: str = ""
    margin_reason: str = ""
    n: int | None = None
    stand_ins: tuple[str, ...] = ()
    disturbed: int = 0
    runs: tuple[str, ...] = ()
    changed_after_measuring: bool = False
    p_holm: float | None = None

    @property
    def label(self) -> str:
        """The verdict in words, with its stand-ins."""
        return bases.label(self.verdict, self.basis)

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


def tallies(claims: Iterable[Judged]) -> list[Tally]:
    """How many claims rest on each basis: the denominators of all that is said of them."""
    return bases.tallies((claim.basis, claim.origin, claim.verdict) for claim in claims)


def capital(text: str) -> str:
    """Text with a capital letter at its beginning; the rest stays."""
    return f"{text[:1].upper()}{text[1:]}"
