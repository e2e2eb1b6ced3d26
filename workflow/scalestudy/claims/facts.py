"""Claims without spread: facts that hold in every run, and arithmetic on published rows."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from scalestudy.claims import words
from scalestudy.claims.model import Check, Exact, Published
from scalestudy.claims.select import ClaimPart, Row, chosen, parts_of, published_rows
from scalestudy.claims.verdict import CONSISTENT, INCONSISTENT, NOT_REPRODUCED, REPRODUCED, Verdict, absence
from scalestudy.spec.matching import matches
from scalestudy.spec.study import Study

SAME = 1e-9
"""Relative difference up to which two numbers are the same fact."""


def judge_exact(study: Study, claim: Exact, verdict: Verdict, rows: Sequence[Row]) -> Verdict:
    """Reproduced where every run of every check has the value; one run with another value decides against it."""
    said, absent, held = [], [], True
    for check in claim.checks:
        found = [(row, _fact(row, check)) for row in chosen(rows, claim.where, check.of)]
        known = [value for _, value in found if value is not None]
        absent += [row for row, value in found if value is None]
        agreeing = sum(_agrees(value, check.equals) for value in known)
        held = held and agreeing == len(known)
        said.append(_check_text(study, check, agreeing, known))
    planned = len({row["repeat"] for check in claim.checks for row in chosen(rows, claim.where, check.of)})
    if held and absent:
        if all(row["status"] == "skipped" for row in absent):
            return verdict.not_here(str(absent[0]["reason"]))
        once = list({row["run"]: row for row in absent}.values())
        without = f"{len(once)} of {len(verdict.runs)} runs do not have the value"
        return verdict.inconclusive(absence(once, len(verdict.runs), without))
    if held and planned < claim.repeats:
        return verdict.too_few_planned(planned, claim.repeats)
    outcome = REPRODUCED if held else NOT_REPRODUCED
    return verdict.decided(outcome, f"{'; '.join(said)}; {words.rounds(planned)}", n=planned)


def _fact(row: Row, check: Check) -> Any:
    """A run's value in the check's column; None where it has none."""
    if row["status"] == "missing" or (check.column not in ("status", "reason") and row["status"] != "valid"):
        return None
    value = row.get(check.column)
    return None if isinstance(value, float) and math.isnan(value) else value


def _agrees(value: Any, wanted: Any) -> bool:
    numbers = [one for one in (wanted if isinstance(wanted, list) else [wanted]) if isinstance(one, (int, float))]
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        return any(math.isclose(value, one, rel_tol=SAME, abs_tol=SAME) for one in numbers)
    return matches(value, wanted)


def _check_text(study: Study, check: Check, agreeing: int, known: Sequence[Any]) -> str:
    where = words.side_text(study, check.of)
    at = f" with {where}" if where else ""
    wanted = check.equals if isinstance(check.equals, list) else [check.equals]
    other = sorted({str(value) for value in known if not _agrees(value, check.equals)})[:3]
    found = f", others have {', '.join(other)}" if other else ""
    return f"{agreeing} of {len(known)} runs{at} have `{check.column}` {' or '.join(map(str, wanted))}{found}"


def judge_published(study: Study, claim: Published, verdict: Verdict) -> Verdict:
    """Whether published rows agree with the document's statement of them, within its rounding."""
    found = [(part, _number(claim, part)) for part in parts_of(claim, published_rows(claim))]
    worst, value = min(found, key=lambda each: _depth(claim, each[1]))
    unit = f" {verdict.unit}" if verdict.unit else ""
    said = (
        f"by the published rows, {words.compared_text(study, claim, worst.value)}"
        f" = {words.plain(value)}{unit}; required: {verdict.threshold}{unit}"
    )
    return verdict.decided(CONSISTENT if _depth(claim, value) >= 0 else INCONSISTENT, said, estimate=value)


def _number(claim: Published, part: ClaimPart) -> float:
    default = claim.column

    def of(row: Mapping[str, Any], column: str = default) -> float:
        per = claim.per if column == default and claim.compared_as != "share" else None
        return float(row[column]) / (float(row[per]) if per else 1.0)

    (left,) = part.of
    if part.against is None:
        return of(left)
    (right,) = part.against
    if claim.compared_as == "share":
        assert claim.per is not None
        return (of(left) - of(right)) / (of(left, claim.per) - of(right, claim.per))
    return of(left) - of(right) if claim.compared_as == "difference" else of(left) / of(right)


def _depth(claim: Published, value: float) -> float:
    """How far inside the document's statement the number lies; negative outside."""
    if claim.value is not None:
        return (claim.within or 0.0) - abs(value - claim.value)
    return value - claim.above if claim.above is not None else (claim.below or 0.0) - value
