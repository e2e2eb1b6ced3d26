"""Checks of the claims of a study at one scale, before any of its runs is made."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from scalestudy.claims.model import Claim, Comparison, Exact, OfRuns, Published, Sampled
from scalestudy.claims.select import (
    ClaimPart,
    Row,
    chosen,
    configurations,
    parts_of,
    published_rows,
    rows_of_claim,
    spec_rows,
)
from scalestudy.errors import Problem, nearest
from scalestudy.spec.base import KeyPath, shown, suggest
from scalestudy.spec.columns import MEASURED
from scalestudy.spec.layout import REFERENCES
from scalestudy.spec.matching import matches
from scalestudy.spec.study import Study

MOST_SHOWN = 6


def claim_problems(study: Study, depends_on_machine: bool = False) -> Iterator[Problem]:
    """Claims with one id, over columns that no run has, of runs that the study does not have at this scale.

    Where the runs depend on the machine, a side without runs is no problem: the verdict is *not testable*.
    """
    rows = spec_rows(study.runs)
    ids: set[str] = set()
    for index, claim in enumerate(study.claims):
        path: KeyPath = ("claims", index)
        if claim.id in ids:
            yield Problem((*path, "id"), f"two claims have the id `{claim.id}`", "give one of them another id")
        ids.add(claim.id)
        if study.scale not in claim.scales:
            continue
        if depends_on_machine and not isinstance(claim, Published) and not _all_sides_there(claim, rows):
            continue
        for problem in _problems(claim, rows):
            yield Problem((*path, *problem.path), problem.what, problem.remedy)


def _all_sides_there(claim: Sampled | Exact, rows: list[Row]) -> bool:
    """Whether each side of a claim has runs, and not the same ones."""
    sides = [check.of for check in claim.checks] if isinstance(claim, Exact) else [side for _, side in _sides(claim)]
    found = [chosen(rows, claim.where, side) for side in sides]
    return all(found) and (isinstance(claim, Exact) or len(found) < 2 or found[0] != found[1])


def _problems(claim: Claim, rows: list[Row]) -> Iterator[Problem]:
    if isinstance(claim, Published):
        yield from _published_problems(claim)
    elif isinstance(claim, Exact):
        found = list(_exact_problems(claim, rows))
        yield from found or _follows_problems(claim, rows)
    elif isinstance(claim, Sampled):
        found = (
            list(_column_problems(claim, rows)) or list(_side_problems(claim, rows)) or list(_margin_problems(claim))
        )
        yield from found or _follows_problems(claim, rows)  # type: ignore[arg-type]


def _column_problems(claim: Sampled, rows: list[Row]) -> Iterator[Problem]:
    known = {key for row in rows for key in row} | set(MEASURED)
    for key in ("column", "per", "over", "each"):
        column = getattr(claim, key)
        if column is not None and column not in known:
            yield Problem((key,), f"no run of this study has a column {shown(column)}", suggest(column, known))
    if claim.compared_as == "share" and claim.per is None:
        yield Problem(("compare",), "`share` needs `per`, the column whose difference is the whole", "add `per`")
    for key in ("compare", "take"):
        if claim.over is not None and getattr(claim, key) is not None:
            yield Problem((key,), f"a slope over an axis has no `{key}`", "remove it")


def _side_problems(claim: Sampled, rows: list[Row]) -> Iterator[Problem]:
    """Sides that choose no run, or several configurations where there may be one."""
    for key, side in _sides(claim):
        yield from _where_problems(rows, claim.where, side, key)
    if any(not chosen(rows, claim.where, side) for _, side in _sides(claim)):
        return
    for part in parts_of(claim, rows):
        for key, found in (("of", part.of), ("against", part.against)):
            if found is not None:
                yield from _configuration_problems(claim, key, found, part)
        if part.against is not None and part.of and set(configurations(part.of)) == set(configurations(part.against)):
            yield Problem(("against",), "`of` and `against` choose the same runs", "choose other runs for one of them")


def _margin_problems(claim: Sampled) -> Iterator[Problem]:
    """A margin that every possible number meets: the claim cannot fail."""
    (low, high), (least, most) = claim.bounds, claim.possible
    if low <= least and most <= high:
        key = next(key for key in ("above", "below", "within") if getattr(claim, key, None) is not None)
        of = {"value": f"a `{claim.column}`"}.get(claim.compared_as, f"a {claim.compared_as}")
        what = (
            f"any number that {of} may have meets `{key}` {shown(getattr(claim, key))}, so that the claim cannot fail"
        )
        yield Problem((key,), what, "choose a limit that a measurement can miss; of a ratio, 1.05 is 5 % more")


def _sides(claim: Comparison) -> list[tuple[str, Mapping[str, Any]]]:
    return [("of", claim.of), *([("against", claim.against)] if claim.against is not None else [])]


def _where_problems(
    rows: Sequence[Row], where: Mapping[str, Any], side: Mapping[str, Any], key: str, kind: str = "run of this study"
) -> Iterator[Problem]:
    known = {column for row in rows for column in row}
    for place, given in (("where", where), (key, side)):
        for column, wanted in given.items():
            if column not in known:
                what = f"no {kind} has a key {shown(column)}"
                yield Problem((place, column), what, suggest(column, known))
                return
            if not any(matches(row.get(column), wanted) for row in rows):
                values = list(dict.fromkeys(shown(row.get(column)) for row in rows))
                what = f"no {kind} has `{column}` {shown(wanted)}"
                yield Problem((place, column), what, f"there is {', '.join(values[:10])}")
                return
    if not chosen(rows, where, side):
        yield Problem((key,), f"no {kind} agrees with all of `where` and `{key}`", "remove a key")


def _configuration_problems(claim: Sampled, key: str, side: Sequence[Row], part: ClaimPart) -> Iterator[Problem]:
    count = len(configurations(side))
    at = f" at `{claim.each}` {shown(part.value)}" if claim.each else ""
    if count == 0:
        yield Problem((key,), f"no run is left{at}", f"leave `{claim.each}` out, or choose values that both sides have")
    elif claim.over is not None:
        values = [row.get(claim.over) for row in side]
        if count < 2 or (claim.over not in MEASURED and len(set(map(str, values))) != count):
            what = f"`{key}` has {count} configurations{at}, and `over` needs two or more, one at each `{claim.over}`"
            yield Problem((key,), what, _what_differs(side))
    elif count > 1 and claim.take is None:
        yield Problem((key,), f"`{key}` chooses {count} configurations{at}", f"{_what_differs(side)}, or add `take`")


def _what_differs(side: Sequence[Row]) -> str:
    """The remedy: keys in which the configurations of a side differ, and their values."""
    seen = {key: list(dict.fromkeys(shown(row.get(key)) for row in side)) for key in side[0]}
    ignored = ("seed", "repeat", "run", "configuration")
    several = [key for key, values in seen.items() if len(values) > 1 and key not in ignored]
    varied = {key: seen[key] for key in several if not any(key.startswith(f"{above}.") for above in several)}
    said = [f"`{key}` ({', '.join(values[:MOST_SHOWN])})" for key, values in list(varied.items())[:3]]
    return f"they differ in {' and '.join(said)}: choose one value" if said else "choose other runs"


def _exact_problems(claim: Exact, rows: list[Row]) -> Iterator[Problem]:
    known = {key for row in rows for key in row} | set(MEASURED) | {"status", "reason"}
    for index, check in enumerate(claim.checks):
        path: KeyPath = ("checks", index)
        if check.column not in known:
            what = f"no run of this study has a column {shown(check.column)}"
            yield Problem((*path, "column"), what, suggest(check.column, known))
        for problem in _where_problems(rows, claim.where, check.of, "of"):
            yield Problem((*(path if problem.path[0] == "of" else ()), *problem.path), problem.what, problem.remedy)


def _follows_problems(claim: OfRuns, rows: list[Row]) -> Iterator[Problem]:
    """An instrument check names a key that its runs set."""
    of_claim = rows_of_claim(claim, rows)
    key = claim.follows_from
    if key is not None and not any(row.get(key) for row in of_claim):
        known = {name for row in of_claim for name, value in row.items() if value}
        yield Problem(("follows_from",), f"no run of this claim sets {shown(key)}", suggest(key, known))


def _published_problems(claim: Published) -> Iterator[Problem]:
    known_files = {file.stem for file in REFERENCES.glob("*.csv")}
    for name in claim.reference:
        if name not in known_files:
            yield Problem(("reference",), f"there is no {REFERENCES}/{name}.csv", nearest(name, known_files))
            return
    rows = published_rows(claim)
    if not rows:
        yield Problem(("column",), f"no row of these files has a number in `{claim.column}`", "name another column")
        return
    for key, side in _sides(claim):
        problems = list(_where_problems(rows, claim.where, side, key, "published row"))
        yield from problems
        if problems:
            return
    for part in parts_of(claim, rows):
        for key, found in (("of", part.of), ("against", part.against)):
            if found is not None and len(found) != 1:
                at = f" at `{claim.each}` {shown(part.value)}" if claim.each else ""
                remedy = "choose one by `where`, or by another value"
                yield Problem((key,), f"`{key}` chooses {len(found)} published rows{at}, and needs one", remedy)
