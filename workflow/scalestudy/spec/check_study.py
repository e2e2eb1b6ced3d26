"""Problems of a study beyond single keys: keys that vary twice, too many runs, duplicate runs."""

from __future__ import annotations

import itertools
import math
from collections.abc import Collection, Iterator, Mapping
from typing import Any

from scalestudy.errors import Problem, UserError, raise_all
from scalestudy.spec.axes import Combination, Combinations, place_of
from scalestudy.spec.base import dotted_keys, key_problem, shown
from scalestudy.spec.program import own_keys
from scalestudy.spec.run import RunSpec
from scalestudy.spec.study import Run, Study
from scalestudy.spec.study_file import StudySpec
from scalestudy.spec.yamlfile import YamlDocument, dotted

MAX_RUNS = 50_000
MAX_ERRORS = 20
MAX_SEED = 2**31 - 1
SET_BY_REPEATS = Problem(("repeat",), "`repeat` is set by the study's `repeats`", "set `repeats`")


def check_keys(
    document: YamlDocument, found: Combinations, base: Mapping[str, Any], scale: str, changes: Mapping[str, Any]
) -> None:
    """Raise UserError for dotted keys that no run has, keys that vary twice, and wrong `repeats` in `include`."""
    own = own_keys(base, dotted_keys(RunSpec))
    varied = [setting.key for axis in found.axes for setting in (axis[0] if axis else ())]
    keys = [*varied, *(key for rule in found.exclude for key in rule)]
    keys += [setting.key for point, _, _ in found.include for setting in point]
    problems = [Problem((key,), f"`{key}` varies twice", "keep one of them") for key in varied if varied.count(key) > 1]
    problems += [SET_BY_REPEATS for key in keys if key == "repeat"]
    problems += [problem for key in keys if key not in own and (problem := key_problem(RunSpec, key)) is not None]
    problems += type_problems(found, own, (base.get("program") or {}).get("keys") or {})
    errors = [UserError(p.what, place_of(document, scale, p.path, changes), p.remedy) for p in problems]
    for _, repeats, place in found.include:
        if repeats is not None and not (type(repeats) is int and 1 <= repeats <= found.repeats):
            what = f"must be a whole number from 1 to the study's {found.repeats}, not {shown(repeats)}"
            errors.append(UserError(what, document.where((*place, "repeats")), "raise the study's `repeats`"))
    raise_all(errors)


def type_problems(found: Combinations, own: Collection[str], defaults: Mapping[str, Any]) -> Iterator[Problem]:
    """Keys of the user's own whose values are of several types."""
    points = [*itertools.chain.from_iterable(found.axes), *(point for point, _, _ in found.include)]
    for key in sorted(own):
        values = [setting.value for point in points for setting in point if setting.key == key]
        values += [defaults[key]] if key in defaults else []
        types = {"number" if type(value) in (int, float) else type(value).__name__ for value in values}
        if len(types) > 1:
            yield Problem(
                (key,), f"`{key}` has values of several types: {', '.join(map(shown, values))}", "use one type"
            )


def check_size(document: YamlDocument, found: Combinations) -> None:
    """Raise UserError where a study has more runs than are expanded."""
    count = (math.prod(len(axis) for axis in found.axes) + len(found.include)) * found.repeats
    if count > MAX_RUNS:
        what = f"makes {count:,} runs; at most {MAX_RUNS:,} are expanded"
        raise UserError(what, document.where(("vary",)), "vary fewer keys, or vary keys together with `zip`")


def empty_sections(spec: StudySpec) -> Iterator[Problem]:
    """Sections of `base` with nothing in them: their keys may have lost their indentation."""
    for key, value in spec.base.items():
        if value in (None, {}) and any(name.startswith(f"{key}.") for name in dotted_keys(RunSpec)):
            yield Problem(("base", key), "is empty", "indent its keys below it, or remove it")


def duplicate_problems(runs: list[Run], entries: list[Combination]) -> Iterator[tuple[Problem, Combination]]:
    """Combinations that are one run: it would appear twice in every figure."""
    first: dict[str, Combination] = {}
    for run, entry in zip(runs, entries, strict=True):
        if (other := first.setdefault(run.id, entry)) is not entry:
            yield (
                Problem(
                    (),
                    "makes the same run as another combination",
                    f"leave one out; the other is {dotted(other.place)}: {other}",
                ),
                entry,
            )


def repeat_problems(run: RunSpec, repeats: int) -> Iterator[Problem]:
    """Repeats without a seed, or counted by hand."""
    if run.repeat:
        yield Problem(("repeat",), "`repeat` is set by the study's `repeats`", "remove it, and set `repeats`")
    if run.seed + repeats - 1 > MAX_SEED:
        yield Problem(("seed",), f"repeat {repeats - 1} has seed {run.seed + repeats - 1}; the largest is {MAX_SEED}")


def check_collisions(studies: list[Study]) -> None:
    """Raise UserError where two different runs have one id."""
    seen: dict[str, RunSpec] = {}
    for study in studies:
        for run in study.runs:
            if seen.setdefault(run.id, run.spec) != run.spec:
                raise UserError(f"two different runs have the id `{run.id}`", study.name, "change a seed by one")
