"""Axes of a study and their combinations: crossed, excluded and included."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from scalestudy.errors import UserError, raise_all
from scalestudy.files import canonical_json
from scalestudy.spec.base import KeyPath, Spec, dotted_keys, parse, printable, shown
from scalestudy.spec.machine_axes import HOST_WORDS, MachineAxis, MachineCapacity, NoHosts
from scalestudy.spec.program import own_keys
from scalestudy.spec.run import RunSpec
from scalestudy.spec.study_file import MAX_REPEATS, StudySpec
from scalestudy.spec.yamlfile import OPTION, YamlDocument, dotted


@dataclass(frozen=True)
class Setting:
    """One value of one axis."""

    key: str
    value: Any
    label: str | None = None
    of_machine: bool = False
    """Whether the machine chose the value."""
    place: KeyPath = ()
    """The value in the study file; empty where the command line or the machine set it."""


class LabelledValue(Spec):
    """`{value: …, label: …}` in place of a value."""

    value: Any
    label: str | int | float | None = None


Point = tuple[Setting, ...]
Axis = list[Point]


@dataclass(frozen=True)
class Combination:
    """Settings of one configuration, and the entry of the study file that makes it."""

    point: Point
    repeats: int
    place: KeyPath
    """`vary`, or an entry of `include`."""
    can_be_excluded: bool = True

    def __str__(self) -> str:
        """Keys and values, for messages."""
        return printable(", ".join(f"{each.key} {each.label or shown(each.value).strip('`')}" for each in self.point))


@dataclass(frozen=True)
class Combinations:
    """Axes to cross, combinations to leave out and combinations to add, at one scale."""

    axes: list[Axis]
    exclude: list[dict[str, Any]]
    include: list[tuple[Point, Any, KeyPath]]
    """Settings, repeats as the file has them, and place of each added combination."""
    repeats: int
    lacks: list[str]
    """Axes that the machine has no value for, a sentence each."""

    @property
    def settings(self) -> Iterator[Setting]:
        """One setting of each key of each axis, then those of `include`."""
        yield from itertools.chain.from_iterable(axis[0] for axis in self.axes if axis)
        yield from itertools.chain.from_iterable(point for point, _, _ in self.include)

    def all(self) -> Iterator[Combination]:
        """The crossed combinations, where `include` is not alone, then the added ones."""
        crossed = itertools.product(*self.axes) if self.axes or not self.include else ()
        for points in crossed:
            yield Combination(tuple(itertools.chain.from_iterable(points)), self.repeats, ("vary",))
        for point, repeats, place in self.include:
            yield Combination(point, self.repeats if repeats is None else repeats, place, can_be_excluded=False)


def at_scale(spec: StudySpec, scale: str, key: str) -> tuple[Any, KeyPath]:
    """A part of a study at one scale, which may replace that of the file, and its place."""
    changed = getattr(spec.at(scale), key)
    return (getattr(spec, key), (key,)) if changed is None else (changed, ("scales", scale, key))


def combinations(document: YamlDocument, spec: StudySpec, scale: str, capacity: MachineCapacity) -> Combinations:
    """The combinations of a study at one scale."""
    lacks: list[str] = []
    reader = _Reader(document, capacity, lacks)
    zips, zip_place = at_scale(spec, scale, "zip")
    include, include_place = at_scale(spec, scale, "include")
    places = {
        **{key: (values, ("vary", key)) for key, values in spec.vary.items()},
        **{key: (values, ("scales", scale, "vary", key)) for key, values in spec.at(scale).vary.items()},
    }
    axes = [reader.axis(key, values, place) for key, (values, place) in places.items() if values is not None]
    for index, zipped in enumerate(zips if isinstance(zips, list) else [zips]):
        axes += reader.zipped(zipped, (*zip_place, index) if isinstance(zips, list) else zip_place)
    included = [each for index, rule in enumerate(include) for each in reader.included(rule, (*include_place, index))]
    repeats = at_scale(spec, scale, "repeats")[0]
    return Combinations(axes, at_scale(spec, scale, "exclude")[0], included, repeats, lacks)


@dataclass(frozen=True)
class _Reader:
    """Reads axes of one study file for one machine."""

    document: YamlDocument
    capacity: MachineCapacity
    lacks: list[str]

    def axis(self, key: str, values: Any, place: KeyPath) -> Axis:
        if isinstance(values, MachineAxis):
            numbers = self.capacity.values(key, values, self.document.where(place))
            return [(Setting(key, number, of_machine=True),) for number in numbers]
        if isinstance(values, str):
            return [(setting,) for setting in self.hosts(key, values, place)]
        return [(self.setting(key, value, (*place, index)),) for index, value in enumerate(values)]

    def hosts(self, key: str, word: str, place: KeyPath) -> list[Setting]:
        if key != "nodes":
            what = f"`{word}` stands for nodes by name, and `{key}` has none"
            raise UserError(what, self.document.where(place), f"write `nodes: {word}`, or `[{word}]` for the word")
        try:
            return [Setting("hosts", list(hosts)) for hosts in self.capacity.groups(word)]
        except NoHosts as error:
            if error.where:
                raise
            self.lacks.append(error.what)
            return []

    def zipped(self, zipped: Mapping[str, Any], place: KeyPath) -> Iterator[Axis]:
        columns = {key: values for key, values in zipped.items() if values is not None}
        if len({len(values) for values in columns.values()}) > 1:
            sizes = ", ".join(f"{key} has {len(values)}" for key, values in columns.items())
            what = f"keys that vary together need equally many values: {sizes}"
            raise UserError(what, self.document.where(place), "give each key one value per point")
        settings = [
            [self.setting(key, value, (*place, key, index)) for index, value in enumerate(values)]
            for key, values in columns.items()
        ]
        if settings:
            yield list(zip(*settings, strict=True))

    def included(self, rule: Mapping[str, Any], place: KeyPath) -> Iterator[tuple[Point, Any, KeyPath]]:
        """One combination, or one for each group of nodes by name."""
        word = rule.get("nodes")
        by_name = word in HOST_WORDS if isinstance(word, str) else False
        settings = tuple(
            self.setting(key, value, (*place, key))
            for key, value in rule.items()
            if key != "repeats" and not (by_name and key == "nodes")
        )
        groups: list[Point] = [(each,) for each in self.hosts("nodes", str(word), place)] if by_name else [()]
        for hosts in groups:
            yield (*settings, *hosts), rule.get("repeats"), place

    def setting(self, key: str, value: Any, place: KeyPath) -> Setting:
        if not isinstance(value, dict) or "value" not in value:
            return Setting(key, value, place=place)
        labelled, problems = parse(LabelledValue, value)
        raise_all([UserError(p.what, self.document.where((*place, *p.path)), p.remedy) for p in problems])
        assert labelled is not None
        return Setting(key, labelled.value, None if labelled.label is None else str(labelled.label), place=place)


def place_of(
    document: YamlDocument,
    scale: str,
    path: KeyPath,
    changes: Mapping[str, Any],
    entry: KeyPath = (),
    point: Point = (),
) -> str:
    """Place that sets a key of a run: the command line, the combination's entry, a value of an axis, or `base`."""
    key = dotted(path)
    if changed := next((name for name in changes if key == name or key.startswith(f"{name}.")), None):
        return f"{OPTION} {changed}"
    for setting in point:
        if setting.place and (key == setting.key or key.startswith((f"{setting.key}.", f"{setting.key}["))):
            return document.where(setting.place)
    for place, keys in _maps(document, scale, entry):
        for name in keys:
            if key == name or key.startswith((f"{name}.", f"{name}[")) or (key, name) == ("hosts", "nodes"):
                return document.where((*place, *path) if place[-1] == "base" else (*place, name))
    return document.where(entry)


def _maps(document: YamlDocument, scale: str, entry: KeyPath) -> Iterator[tuple[KeyPath, Mapping[str, Any]]]:
    """Maps of keys of a run in a study file, those of the scale and of the entry first, with their places."""
    data = document.data
    levels: dict[KeyPath, Mapping[str, Any]] = {
        ("scales", scale): (data.get("scales") or {}).get(scale) or {},
        (): data,
    }
    found: list[tuple[KeyPath, Any]] = []
    for part in ("vary", "zip", "base", "include", "exclude"):
        for place, level in levels.items():
            below = level.get(part)
            items = enumerate(below) if isinstance(below, list) else ()
            found += [((*place, part), below), *(((*place, part, index), item) for index, item in items)]
    found.sort(key=lambda each: each[0] != entry)
    yield from (each for each in found if isinstance(each[1], dict))


def merged(below: Mapping[str, Any], above: Mapping[str, Any]) -> dict[str, Any]:
    """`above` laid over `below`: maps merge, all else replaces, null removes."""
    result = dict(below)
    for key, value in above.items():
        old = result.get(key)
        if value is None:
            result.pop(key, None)
        elif isinstance(value, dict):
            is_same_kind = isinstance(old, dict) and not any(
                name in value and value[name] != old.get(name) for name in ("name", "source", "import")
            )
            result[key] = merged(old if isinstance(old, dict) and is_same_kind else {}, value)
        else:
            result[key] = value
    return result


def applied(base: Mapping[str, Any], point: Point) -> dict[str, Any]:
    """The base with one value for each axis; a key of the user's own belongs to the program."""
    own = own_keys(base, dotted_keys(RunSpec))

    def key_of(setting: Setting) -> str:
        return f"program.keys.{setting.key}" if setting.key in own else setting.key

    return functools.reduce(lambda data, setting: _with(data, key_of(setting), setting.value), point, dict(base))


def _with(data: Mapping[str, Any], key: str, value: Any) -> dict[str, Any]:
    """`data` with another value for a dotted key; null removes it."""
    head, _, rest = key.partition(".")
    result = dict(data)
    if rest:
        below = data.get(head)
        # `model: resnet50` stands for `{name: resnet50}`, so that `model.kwargs` can be set too.
        below = below if isinstance(below, dict) else {"name": below} if isinstance(below, str) else {}
        result[head] = _with(below, rest, value)
    elif value is None:
        result.pop(head, None)
    else:
        result[head] = value
    return result


def override(found: Combinations, changes: Mapping[str, Any]) -> Combinations:
    """`found` with other values for some keys, as `scalestudy plan --set` has them.

    A key is replaced wherever the study sets it. A list stands for several values. `repeats` counts as a key.
    """
    values = {key: value if isinstance(value, list) else [value] for key, value in changes.items() if key != "repeats"}
    added: list[Axis] = [[(Setting(key, value),) for value in several] for key, several in values.items()]
    kept = [axis for axis in (_without(axis, values) for axis in found.axes) if any(axis) or not axis]
    is_listed = not found.axes and bool(found.include)
    include = [
        ((*itertools.chain.from_iterable(points), *(each for each in point if each.key not in values)), repeats, place)
        for point, repeats, place in found.include
        for points in itertools.product(*added)
    ]
    changed = replace(found, axes=[] if is_listed else [*added, *kept], include=include)
    return _with_repeats(changed, changes["repeats"]) if "repeats" in changes else changed


def _without(axis: Axis, keys: Mapping[str, Any]) -> Axis:
    """An axis without some keys; points that differ in nothing else become one."""
    points: dict[str, Point] = {}
    for point in axis:
        rest = tuple(setting for setting in point if setting.key not in keys)
        points.setdefault(canonical_json([[setting.key, setting.value] for setting in rest]), rest)
    return list(points.values())


def _with_repeats(found: Combinations, repeats: Any) -> Combinations:
    if type(repeats) is not int or not 1 <= repeats <= MAX_REPEATS:
        what = f"must be a whole number from 1 to {MAX_REPEATS:,}, not {shown(repeats)}"
        raise UserError(what, f"{OPTION} repeats")
    include = [(point, min(own, repeats) if type(own) is int else own, place) for point, own, place in found.include]
    return replace(found, repeats=repeats, include=include)
