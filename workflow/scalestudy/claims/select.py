"""The two sides of a claim: which runs, or which published rows, are compared."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from scalestudy.claims.model import Exact, OfRuns, Published, Sampled
from scalestudy.files import NUMBER, WHOLE, canonical_json, read_table
from scalestudy.spec.columns import METRICS, agrees, columns_of_runs, is_number
from scalestudy.spec.layout import REFERENCES

if TYPE_CHECKING:
    from scalestudy.spec.study import Run

Row = Mapping[str, Any]


@dataclass(frozen=True)
class ClaimPart:
    """One comparison of a claim: the value of its column `each` (None without), and the rows of its one or two sides."""

    value: Any
    sides: tuple[tuple[Row, ...], ...]

    @property
    def rows(self) -> list[Row]:
        """The rows of all sides."""
        return [row for side in self.sides for row in side]


def chosen(rows: Iterable[Row], *wheres: Mapping[str, Any]) -> tuple[Row, ...]:
    """The rows that agree with all of `wheres`."""
    return tuple(row for row in rows if all(agrees(row, where) for where in wheres))


def parts_of(claim: Sampled, rows: Sequence[Row]) -> list[ClaimPart]:
    """The comparisons of a claim: one, or one per value of `each`. A side with a single value, which the other does not have, is
    in all of them."""
    sides = tuple(chosen(rows, claim.where, side) for side in claim.sides.values())
    if claim.each is None:
        return [ClaimPart(None, sides)]
    by_value: list[dict[str, list[Row]]] = [{} for _ in sides]
    for rows_by_value, side in zip(by_value, sides, strict=True):
        for row in side:
            rows_by_value.setdefault(canonical_json(row.get(claim.each)), []).append(row)
    # Values are those of the sides that have several; of the first side where neither has.
    several = [side for side in by_value if len(side) > 1] or by_value[:1]
    values = {name: side[name][0].get(claim.each) for side in several for name in side}

    def rows_at(side: dict[str, list[Row]], name: str) -> tuple[Row, ...]:
        is_in_all = len(side) == 1 and not side.keys() <= values.keys()
        return tuple(next(iter(side.values())) if is_in_all else side.get(name, ()))

    return [ClaimPart(value, tuple(rows_at(side, name) for side in by_value)) for name, value in values.items()]


def rows_of_claim(claim: OfRuns, rows: Sequence[Row]) -> list[Row]:
    """All rows that a claim looks at, each once, in their order."""
    if isinstance(claim, Exact):
        claim_rows = [row for check in claim.checks for row in chosen(rows, claim.where, check.of)]
    else:
        claim_rows = [row for part in parts_of(claim, rows) for row in part.rows]
    row_ids = {id(row) for row in claim_rows}
    return [row for row in rows if id(row) in row_ids]


def spec_rows(runs: Sequence[Run]) -> list[Row]:
    """What is known of each run before it is made."""
    rows = zip(runs, columns_of_runs(runs), strict=True)
    return [{**row, "run": run.id, "configuration": run.configuration} for run, row in rows]


def configurations(side: Iterable[Row]) -> frozenset[str]:
    """The configurations of a side."""
    return frozenset(row["configuration"] for row in side)


def number_of(row: Row, column: str, per: str | None) -> float | None:
    """The number of a run in a column, over that in the column `per`; None where it is not valid or has none."""
    value, whole = row.get(column), row.get(per) if per else 1.0
    if row["status"] != "valid" or not is_number(value) or not is_number(whole) or not whole:
        return None
    return float(value) / float(whole)


def published_rows(claim: Published) -> list[Row]:
    """The rows of a claim's reference files that have its column, numbers as numbers, with the file's name as `reference`."""
    rows = [
        {"reference": name, **{key: _value(cell) for key, cell in row.items()}}
        for name in claim.reference
        for row in read_table(REFERENCES / f"{name}.csv", numbers=METRICS)
    ]
    return [row for row in rows if isinstance(row.get(claim.column), (int, float))]


def published_number(claim: Published) -> float:
    """The number of a claim about published rows, of which there is one on each side. ZeroDivisionError where it has none."""
    rows = published_rows(claim)
    sides = [chosen(rows, claim.where, side) for side in claim.sides.values()]
    first, *second = (float(row[claim.column]) for (row,) in sides)
    return first / second[0] if second else first


def _value(cell: str) -> Any:
    """A cell as a number where it is one, None where it is empty."""
    if WHOLE.fullmatch(cell.removeprefix("-")):
        return int(cell)
    return float(cell) if NUMBER.fullmatch(cell) else cell or None
