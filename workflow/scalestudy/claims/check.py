"""Claims of a study at one scale, from its own file and from those of documents, checked before any run is made."""

from __future__ import annotations

import difflib
import functools
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from scalestudy.claims.basis import DOCUMENT
from scalestudy.claims.model import AnyClaim, ClaimsOfDocument, Exact, Published, Sampled
from scalestudy.claims.select import Row, chosen, configurations, parts_of, published_number, published_rows, spec_rows
from scalestudy.errors import Problem, nearest, raise_problems
from scalestudy.spec.base import KeyPath, Spec, dotted_keys, parse, shown, suggest
from scalestudy.spec.check_figures import choice_problems, unknown_column
from scalestudy.spec.columns import MEASURED, SHARES
from scalestudy.spec.config import checked
from scalestudy.spec.layout import CLAIMS, REFERENCES, STUDIES
from scalestudy.spec.machine_axes import MachineCapacity
from scalestudy.spec.run import RunSpec
from scalestudy.spec.study import Study
from scalestudy.spec.yamlfile import YamlDocument, read_yaml

SAME_AT_EVERY_SCALE = ("id", "statement", "origin", "source", "place", "study", "scales", "not_testable", "at", "kind")
MAX_FACTOR = 100.0
"""Largest ratio that a margin may allow for: two ways of one thing do not differ by more."""
MAX_SLOPE = 10.0
"""Largest exponent that a margin may allow for."""


# From files


@dataclass(frozen=True)
class Written:
    """A claim as a file has it at one scale, and its place."""

    document: YamlDocument
    index: int
    scale: str
    data: Mapping[str, Any]
    changes: Mapping[str, Any]

    def where(self, path: KeyPath) -> str:
        """File, line and key of a path below the claim: within `at` where the scale sets the key."""
        at = ("at", self.scale) if path and path[0] in self.changes else ()
        return self.document.where(("claims", self.index, *at, *path))


class _Claims(Spec):
    claims: list[AnyClaim] = []


def written_claims(document: YamlDocument, study: str, scale: str) -> list[Written]:
    """The claims of a study file, then those in config/claims/ about this study."""
    all_claims = list(_written(document, scale, {}))
    for file in documents_about(study, Path(document.file).parent.parent / "claims"):
        claims = _document(str(file), file.read_bytes())
        more = {} if claims.data["source"] == "own" else {"origin": DOCUMENT, "source": claims.data["source"]}
        all_claims += [each for each in _written(claims, scale, more) if each.data.get("study") == study]
    return all_claims


def _written(document: YamlDocument, scale: str, more: Mapping[str, Any]) -> Iterator[Written]:
    for index, claim in enumerate(document.data.get("claims") or []):
        changes = claim.get("at", {}).get(scale, {})
        merged = {**claim, **more, **changes}
        data = {key: value for key, value in merged.items() if value is not None and key != "at"}
        yield Written(document, index, scale, data, changes)


def documents_about(study: str, folder: Path = CLAIMS) -> list[Path]:
    """The files of claims in which the name of a study stands."""
    name = re.compile(rf"\b{study}\b".encode())
    return [file for file in _documents(folder) if name.search(file.read_bytes())]


def _documents(folder: Path) -> list[Path]:
    return sorted(folder.glob("[!.]*.yaml"))


def claims_of_mistyped_studies(folder: Path = CLAIMS, studies: Path = STUDIES) -> Iterator[str]:
    """Name the claims of documents about a study that is absent while one has nearly its name: no run judges them."""
    names = [file.stem for file in studies.glob("*.yaml")]
    for file in _documents(folder):
        document = _document(str(file), file.read_bytes())
        for index, claim in enumerate(document.data.get("claims") or []):
            study = claim["study"]
            if study not in names and (near := difflib.get_close_matches(study, names, n=1, cutoff=0.8)):
                where = document.where(("claims", index, "study"))
                yield f"{where}: there is no study `{study}`\n    did you mean `{near[0]}`?"


@functools.cache
def _document(file: str, content: bytes) -> YamlDocument:
    """A checked file of claims; the content of a file may change."""
    document = read_yaml(file)
    checked(ClaimsOfDocument, document)
    return document


def claims_at(written: Sequence[Written], capacity: MachineCapacity) -> tuple[AnyClaim, ...]:
    """The claims, with numbers for `{to: machine}` and bytes for sizes of data.

    Raises UserError where one is wrong with its scale's changes.
    """
    fixed = [
        Problem(("claims", position, key), f"`{key}` is the same at every scale", "move it out of `at`")
        for position, each in enumerate(written)
        for key in each.changes
        if key in SAME_AT_EVERY_SCALE
    ]
    parsed_claims, problems = parse(_Claims, {"claims": [dict(each.data) for each in written]})
    raise_problems([*fixed, *problems], lambda path: written[int(path[1])].where(path[2:]))
    assert parsed_claims is not None
    return tuple(_on(claim, capacity) for claim in parsed_claims.claims)


def _on(claim: AnyClaim, capacity: MachineCapacity) -> AnyClaim:
    resolved = capacity.resolve
    update: dict[str, Any] = {"where": resolved(claim.where)}
    if isinstance(claim, Exact):
        update["checks"] = tuple(check.model_copy(update={"of": resolved(check.of)}) for check in claim.checks)
    else:
        update |= {key: resolved(side) for key, side in claim.sides.items()}
    return claim.model_copy(update=update)


# Against the runs


def claim_problems(study: Study, may_lack: bool = False) -> Iterator[Problem]:
    """Claims with one id, over columns that no run has, of runs that the study does not have at this scale.

    A side without runs is a NoRun: where this machine `may_lack` them, the verdict is *not testable*.
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
        for problem in _problems(claim, rows, may_lack):
            yield replace(problem, path=(*path, *problem.path))


def _problems(claim: AnyClaim, rows: list[Row], may_lack: bool) -> list[Problem]:
    """Problems of a claim, of the first step that finds any."""
    if isinstance(claim, Published):
        return _published_problems(claim)
    keys = {*(key for row in rows for key in row), *(dotted_keys(RunSpec) if may_lack else ())}
    if isinstance(claim, Exact):
        sides = [check.of for check in claim.checks]
        problems = list(_exact_problems(claim, rows, keys))
    else:
        sides = list(claim.sides.values())
        problems = list(_column_problems(claim, keys)) or _margin_problems(claim)
        problems = problems or _choice_problems(claim, rows, keys) or list(_part_problems(claim, rows, may_lack))
    key, of_claim = claim.follows_from, [row for side in sides for row in chosen(rows, claim.where, side)]
    if not problems and key is not None and not any(row.get(key) for row in of_claim):
        set_keys = {name for row in of_claim for name, value in row.items() if value}
        problems = [Problem(("follows_from",), f"no run of this claim sets {shown(key)}", suggest(key, set_keys))]
    return problems


def _column_problems(claim: Sampled, keys: set[str]) -> Iterator[Problem]:
    either = (keys | set(MEASURED), "is no column of these runs")
    # What the study sets decides nothing, and what is measured divides no claim before there are runs.
    kinds = {"column": (set(MEASURED), "is not measured"), "each": (keys, "is no key of these runs")}
    for key in ("column", "per", "over", "each"):
        column, (valid_columns, what) = getattr(claim, key), kinds.get(key, either)
        if column is not None and column not in valid_columns:
            yield Problem((key,), f"{shown(column)} {what}", suggest(column, valid_columns))
    if claim.compared_as == "share" and claim.per is None:
        yield Problem(("compare",), "`share` needs `per`, the column whose difference is the whole", "add `per`")
    for key in ("compare", "take"):
        if claim.over is not None and getattr(claim, key) is not None:
            yield Problem((key,), f"a slope over an axis has no `{key}`", "remove it")
    if claim.compared_as == "share" and claim.take is not None:
        # It could choose one configuration by `column`, and another one by `per`.
        yield Problem(("take",), "a share has no `take`", "choose one configuration for each side")


def _choice_problems(claim: Sampled | Published, rows: list[Row], keys: set[str], *kind: str) -> list[Problem]:
    """Sides that choose no row."""
    choices = ({"where": claim.where, key: side} for key, side in claim.sides.items())
    return [each for choice in choices for each in choice_problems(rows, choice, keys, *kind)]


def _part_problems(claim: Sampled, rows: list[Row], may_lack: bool) -> Iterator[Problem]:
    """Sides with several configurations where there may be one, or with too few unless they `may_lack`."""
    for part in parts_of(claim, rows):
        at = f" at `{claim.each}` {shown(part.value)}" if claim.each else ""
        for key, side in zip(claim.sides, part.sides, strict=True):
            yield from _count_problems(claim, key, side, at, may_lack)
        if not may_lack and all(part.sides) and len(set(map(configurations, part.sides))) < len(part.sides):
            what = "`of` and `against` choose the same runs"
            yield Problem(("against",), what, "choose other runs for one of them")


def _count_problems(claim: Sampled, key: str, side: Sequence[Row], at: str, may_lack: bool) -> Iterator[Problem]:
    """A side with fewer configurations than its claim compares, or with more."""
    count = len(configurations(side))
    if may_lack and count < (1 if claim.over is None else 2):
        return
    if count == 0:
        yield Problem((key,), f"no run is left{at}", f"leave `{claim.each}` out, or choose values that both sides have")
    elif claim.over is not None:
        values = {str(row.get(claim.over)) for row in side}
        if count < 2 or (claim.over not in MEASURED and len(values) != count):
            what = f"`{key}` has {count} configurations{at}, and `over` needs two or more, one at each `{claim.over}`"
            yield Problem((key,), what, _what_differs(side))
    elif count > 1 and claim.take is None:
        yield Problem((key,), f"`{key}` chooses {count} configurations{at}", f"{_what_differs(side)}, or add `take`")


def _what_differs(side: Sequence[Row]) -> str:
    """The remedy: keys in which the configurations of a side differ, and their values."""
    seen = {key: list(dict.fromkeys(shown(row.get(key)) for row in side)) for key in side[0]}
    ignored = ("seed", "repeat", "run", "configuration")
    several = [key for key, values in seen.items() if len(values) > 1 and key not in ignored]
    varied = [key for key in several if not any(key.startswith(f"{above}.") for above in several)]
    key_texts = [f"`{key}` ({', '.join(seen[key][:6])})" for key in varied[:3]]
    return f"they differ in {' and '.join(key_texts)}: choose one value" if key_texts else "choose other runs"


def _margin_problems(claim: Sampled) -> list[Problem]:
    """A margin that every possible number meets: the claim cannot fail.

    Ratios lie within MAX_FACTOR, slopes within MAX_SLOPE, columns of shares between 0 and 1, others above 0. A
    difference in a unit has no scale before it is measured, so that no difference at all is the one sure number.
    """
    is_share = claim.column in SHARES and claim.per is None
    if claim.compared_as == "ratio" or (claim.over is not None and claim.against is not None):
        least, most = 1 / MAX_FACTOR, MAX_FACTOR
    elif claim.over is not None:
        least, most = -MAX_SLOPE, MAX_SLOPE
    elif claim.compared_as == "difference":
        least, most = (-1.0, 1.0) if is_share else (math.nextafter(0.0, -1.0), math.nextafter(0.0, 1.0))
    else:
        least, most = 0.0, (1.0 if is_share or claim.compared_as == "share" else math.inf)
    low, high = claim.bounds
    if least < low or high < most:
        return []
    key = next(key for key in ("above", "below", "within") if getattr(claim, key, None) is not None)
    of = f"`{claim.column}`" if claim.compared_as == "value" else claim.compared_as
    what = f"any number that a {of} may have meets `{key}` {shown(getattr(claim, key))}, so that the claim cannot fail"
    return [Problem((key,), what, "choose a limit that a measurement can miss; of a ratio, 1.05 is 5 % more")]


def _exact_problems(claim: Exact, rows: list[Row], keys: set[str]) -> Iterator[Problem]:
    valid_columns = keys | set(MEASURED) | {"status", "reason"}
    for index, check in enumerate(claim.checks):
        path: KeyPath = ("checks", index)
        if check.column not in valid_columns:
            yield unknown_column((*path, "column"), check.column, valid_columns)
        for problem in choice_problems(rows, {"where": claim.where, "of": check.of}, keys):
            yield replace(problem, path=(*(path if problem.path[0] == "of" else ()), *problem.path))


def _published_problems(claim: Published) -> list[Problem]:
    known_files = {file.stem for file in REFERENCES.glob("*.csv")}
    for name in claim.reference:
        if name not in known_files:
            what = f"there is no {REFERENCES}/{name}.csv"
            return [Problem(("reference",), what, nearest(name, known_files))]
    if not (rows := published_rows(claim)):
        return [Problem(("column",), f"no row of these files has a number in `{claim.column}`", "name another column")]
    keys = {key for row in rows for key in row}
    if problems := _choice_problems(claim, rows, keys, "published row"):
        return problems
    for key, side in claim.sides.items():
        if (count := len(chosen(rows, claim.where, side))) != 1:
            what = f"`{key}` chooses {count} published rows, and needs one"
            return [Problem((key,), what, "choose one by `where`, or by another value")]
    try:
        published_number(claim)
    except ZeroDivisionError:
        return [Problem(("column",), "a published number that is divided by is 0", "choose other rows")]
    return []
