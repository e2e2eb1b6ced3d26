"""What is wrong with a study beyond single keys: keys that vary twice, too many runs, duplicate runs."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator

from scalestudy.errors import Problem, UserError, raise_all
from scalestudy.spec.axes import Combinations, Point
from scalestudy.spec.base import KeyPath, key_problem, shown
from scalestudy.spec.run import RunSpec
from scalestudy.spec.study import Run, Study
from scalestudy.spec.yamlfile import YamlDocument

MOST_RUNS = 50_000
MOST_ERRORS = 20
MOST_SEED = 2**31 - 1
SET_BY_REPEATS = Problem(("repeat",), "`repeat` is set by the study's `repeats`", "set `repeats`")


def check_keys(document: YamlDocument, found: Combinations) -> None:
    """Raise UserError for dotted keys that no run has, keys that vary twice, and wrong `repeats` in `include`."""
    errors: list[UserError] = []
    places: dict[str, KeyPath] = {}
    for setting in itertools.chain.from_iterable(axis[0] for axis in found.axes if axis):
        if setting.key in places:
            first = document.where(places[setting.key])
            errors.append(
                UserError(f"`{setting.key}` varies twice", document.where(setting.place), f"first at {first}")
            )
        places.setdefault(setting.key, setting.place)
    used = list(places.items())
    used += [(key, (*found.exclude_place, index, key)) for index, rule in enumerate(found.exclude) for key in rule]
    used += [(setting.key, setting.place) for each in found.include for setting in each.point]
    for key, place in used:
        wrong = SET_BY_REPEATS if key == "repeat" else key_problem(RunSpec, key)
        if wrong:
            errors.append(UserError(wrong.what, document.where(place), wrong.remedy))
    errors += _wrong_repeats(document, found)
    raise_all(errors)


def _wrong_repeats(document: YamlDocument, found: Combinations) -> Iterator[UserError]:
    for each in found.include:
        if each.repeats is not None and not (type(each.repeats) is int and 1 <= each.repeats <= found.repeats):
            what = f"must be a whole number from 1 to the study's {found.repeats}, not {shown(each.repeats)}"
            remedy = "raise the study's `repeats`, or lower this one"
            yield UserError(what, document.where((*each.place, "repeats")), remedy)


def check_size(document: YamlDocument, found: Combinations) -> None:
    """Raise UserError where a study has more runs than are expanded."""
    count = (math.prod(len(axis) for axis in found.axes) + len(found.include)) * found.repeats
    if count > MOST_RUNS:
        what = f"makes {count:,} runs; at most {MOST_RUNS:,} are expanded"
        raise UserError(what, document.where(("vary",)), "vary fewer keys, or vary keys together with `zip`")


def check_duplicates(document: YamlDocument, runs: list[Run], points: list[Point]) -> None:
    """Raise UserError for two combinations that are one run: it would appear twice in every figure."""
    points_by_id: dict[str, Point] = {}
    errors: dict[KeyPath, UserError] = {}
    for run, point in zip(runs, points, strict=True):
        first = points_by_id.setdefault(run.id, point)
        if first is not point:
            differing = [(a.origin, b.origin) for a, b in zip(first, point, strict=False) if a.origin != b.origin]
            there, here = (differing or [(("include",), ("include",))])[-1]
            remedy = f"leave one out; the other is at {document.where(there)}"
            errors[here] = UserError("makes the same run as another combination", document.where(here), remedy)
    raise_all(list(errors.values())[:MOST_ERRORS])


def repeat_problems(run: RunSpec, repeats: int) -> Iterator[Problem]:
    """Whether the repeats of a run have seeds, and are counted by the study alone."""
    if run.repeat:
        yield Problem(("repeat",), "`repeat` is set by the study's `repeats`", "remove it, and set `repeats`")
    if run.seed + repeats - 1 > MOST_SEED:
        yield Problem(("seed",), f"repeat {repeats - 1} has seed {run.seed + repeats - 1}; the largest is {MOST_SEED}")


def check_collisions(studies: list[Study]) -> None:
    """Raise UserError where two different runs have one id."""
    seen: dict[str, RunSpec] = {}
    for study in studies:
        for run in study.runs:
            if seen.setdefault(run.id, run.spec) != run.spec:
                raise UserError(f"two different runs have the id `{run.id}`", study.name, "change a seed by one")
