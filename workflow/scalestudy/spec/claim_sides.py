"""The two sides of a claim: which runs, or which published rows, are compared."""

from __future__ import annotations

import csv
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from scalestudy.errors import UserError
from scalestudy.files import canonical_json
from scalestudy.spec.claims import Comparison, Exact, OfRuns, Published
from scalestudy.spec.columns import columns_of
from scalestudy.spec.matching import matches
from scalestudy.spec.run import RunSpec

REFERENCES = Path("config/reference")
Row = Mapping[str, Any]


@dataclass(frozen=True)
class Part:
    """One comparison of a claim: the value of its column `each` (None without), and the rows of its sides."""

    value: Any
    of: tuple[Row, ...]
    against: tuple[Row, ...] | None

    @property
    def rows(self) -> tuple[Row, ...]:
        """The rows of both sides."""
        return self.of + (self.against or ())


def chosen(rows: Iterable[Row], *wheres: Mapping[str, Any]) -> tuple[Row, ...]:
    """The rows that agree with all of `wheres`."""
    return tuple(row for row in rows if all(matches(row.get(key), to) for where in wheres for key, to in where.items()))


def parts_of(claim: Comparison, rows: Sequence[Row]) -> list[Part]:
    """The comparisons of a claim: one, or one per value of `each`. A side with a single such value is in all of them."""
    of = chosen(rows, claim.where, claim.of)
    against = None if claim.against is None else chosen(rows, claim.where, claim.against)
    if claim.each is None:
        return [Part(None, of, against)]
    values = {
        canonical_json(row.get(claim.each)): row.get(claim.each)
        for side in _split_sides(claim.each, of, against)
        for row in side
    }
    return [
        Part(value, _with(of, claim.each, value), None if against is None else _with(against, claim.each, value))
        for value in values.values()
    ]


def _split_sides(each: str, of: tuple[Row, ...], against: tuple[Row, ...] | None) -> list[tuple[Row, ...]]:
    """The sides that have several values of `each`; the first where neither has."""
    sides = [side for side in (of, against or ()) if len({canonical_json(row.get(each)) for row in side}) > 1]
    return sides or [of]


def _with(side: tuple[Row, ...], each: str, value: Any) -> tuple[Row, ...]:
    """The rows with that value; all of a side that has a single one."""
    if len({canonical_json(row.get(each)) for row in side}) == 1:
        return side
    return tuple(row for row in side if row.get(each) == value)


def rows_of_claim(claim: OfRuns, rows: Sequence[Row]) -> list[Row]:
    """All rows that a claim looks at, each once, in their order."""
    if isinstance(claim, Exact):
        wanted = [row for check in claim.checks or () for row in chosen(rows, claim.where, check.of)]
    else:
        wanted = [row for part in parts_of(claim, rows) for row in part.rows]
    known = {id(row) for row in wanted}
    return [row for row in rows if id(row) in known]


def emulated_parts(spec: RunSpec) -> tuple[str, ...]:
    """What of a run is emulated: compute, storage, network."""
    parts = {"compute": spec.accelerator, "storage": spec.loader.storage, "network": spec.network}
    return tuple(name for name, emulated in parts.items() if emulated is not None)


def spec_row(spec: RunSpec, run: str, configuration: str) -> Row:
    """What is known of a run before it is made."""
    return {**columns_of(spec), "run": run, "configuration": configuration, "emulated_parts": emulated_parts(spec)}


def configurations(side: Iterable[Row]) -> list[str]:
    """The configurations of a side, each once."""
    return list(dict.fromkeys(row["configuration"] for row in side))


def published_rows(claim: Published, folder: Path = REFERENCES) -> list[Row]:
    """The rows of a claim's reference files that have its columns, numbers as numbers, with the file's name as `reference`."""
    needed = [column for column in (claim.column, claim.per) if column]
    rows = [row for name in claim.reference or () for row in _reference(name, folder)]
    return [row for row in rows if all(isinstance(row.get(column), (int, float)) for column in needed)]


def _reference(name: str, folder: Path) -> list[Row]:
    file = folder / f"{name}.csv"
    try:
        with open(file, encoding="utf-8", newline="") as stream:
            rows = list(csv.DictReader(stream))
    except OSError as error:
        raise UserError(f"cannot be read: {error.strerror}", str(file)) from None
    return [{"reference": name, **{key: _value(cell or "") for key, cell in row.items() if key}} for row in rows]


def _value(cell: str) -> Any:
    """A cell as a number where it is one, None where it is empty."""
    for kind in (int, float):
        try:
            return kind(cell)
        except ValueError:
            continue
    return cell or None
