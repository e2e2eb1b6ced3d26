"""What a study varies: axes of points, each point a value for one key or for several that vary together."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from scalestudy.errors import UserError
from scalestudy.files import canonical_json
from scalestudy.spec.base import KeyPath, shown
from scalestudy.spec.hosts import KEY as NODES
from scalestudy.spec.hosts import WORDS, HostAxis, groups
from scalestudy.spec.study import MOST_REPEATS, ScaleSpec, StudySpec
from scalestudy.spec.up_to import Extent, UpTo
from scalestudy.spec.yamlfile import OPTION, YamlDocument


@dataclass(frozen=True)
class Setting:
    """One value of one axis."""

    key: str
    value: Any
    label: str | None
    origin: KeyPath
    place: KeyPath
    """Where the key is written; `origin` is where the value is written."""
    of_machine: bool = False
    """Whether the value follows from what the machine has."""


Point = tuple[Setting, ...]
Axis = list[Point]


@dataclass(frozen=True)
class Included:
    """A combination that `include` adds."""

    point: Point
    repeats: Any
    """How often it is measured, as the file says; None where it says nothing."""
    place: KeyPath


@dataclass(frozen=True)
class Combinations:
    """What is crossed, what is left out of it, and what is added to it."""

    axes: list[Axis]
    exclude: list[dict[str, Any]]
    exclude_place: KeyPath
    include: list[Included]
    repeats: int

    @property
    def crossed(self) -> list[Point]:
        """Every combination of the axes; none where `include` alone lists the runs."""
        if not self.axes and self.include:
            return []
        return [tuple(itertools.chain.from_iterable(points)) for points in itertools.product(*self.axes)]


def combinations(document: YamlDocument, spec: StudySpec, scale: str, extent: Extent) -> Combinations:
    """The combinations of a study at one scale, whose parts replace those of the file.

    `extent` gives the axes that are as many as the machine has their values.
    """
    change = spec.scales.get(scale, ScaleSpec())
    at: KeyPath = ("scales", scale)
    axes = [*_vary_axes(document, spec, change, at, extent), *_zip_axes(document, spec, change, at)]
    exclude, exclude_place = (
        (spec.exclude, KeyPath(("exclude",))) if change.exclude is None else (change.exclude, (*at, "exclude"))
    )
    include, place = (
        (spec.include, KeyPath(("include",))) if change.include is None else (change.include, (*at, "include"))
    )
    included = [
        each for index, rule in enumerate(include) for each in _included(document, rule, (*place, index), extent)
    ]
    return Combinations(axes, exclude, exclude_place, included, change.repeats or spec.repeats)


def _vary_axes(
    document: YamlDocument, spec: StudySpec, change: ScaleSpec, at: KeyPath, extent: Extent
) -> Iterator[Axis]:
    vary: dict[str, tuple[Any, KeyPath]] = {key: (values, ("vary", key)) for key, values in spec.vary.items()}
    vary |= {key: (values, (*at, "vary", key)) for key, values in change.vary.items()}
    for key, (values, place) in vary.items():
        if isinstance(values, UpTo):
            yield [
                (Setting(key, value, None, place, place, of_machine=True),)
                for value in extent.values(key, values, document.where(place))
            ]
        elif isinstance(values, HostAxis):
            yield [(setting,) for setting in _host_settings(key, values, place, extent, document)]
        elif values is not None:
            yield [(_setting(document, key, value, (*place, index), place),) for index, value in enumerate(values)]


def _host_settings(key: str, axis: HostAxis, place: KeyPath, extent: Extent, document: YamlDocument) -> list[Setting]:
    """The nodes of the machine by name, as values of `hosts`."""
    if key != NODES:
        what = f"`{axis.hosts}` stands for nodes by name, and `{key}` has none"
        raise UserError(what, document.where(place), f"write `{NODES}: {axis.hosts}`, or `[{axis.hosts}]` for the word")
    found = groups(axis, extent.hosts)
    if not found:
        extent.lack(f"`{NODES}: {axis.hosts}` needs two nodes, and machine `{extent.name}` has one")
    return [Setting("hosts", list(hosts), None, place, place) for hosts in found]


def _zip_axes(document: YamlDocument, spec: StudySpec, change: ScaleSpec, at: KeyPath) -> Iterator[Axis]:
    zips, origin = (spec.zip, KeyPath(("zip",))) if change.zip is None else (change.zip, (*at, "zip"))
    for index, zipped in enumerate(zips if isinstance(zips, list) else [zips]):
        here: KeyPath = (*origin, index) if isinstance(zips, list) else origin
        columns = {key: values for key, values in zipped.items() if values is not None}
        if len({len(values) for values in columns.values()}) > 1:
            sizes = ", ".join(f"{key} has {len(values)}" for key, values in columns.items())
            what = f"keys that vary together need equally many values: {sizes}"
            raise UserError(what, document.where(here), "give each key one value per point")
        if columns:
            yield [
                tuple(
                    _setting(document, key, values[i], (*here, key, i), (*here, key)) for key, values in columns.items()
                )
                for i in range(len(next(iter(columns.values()))))
            ]


def _included(document: YamlDocument, rule: Mapping[str, Any], place: KeyPath, extent: Extent) -> Iterator[Included]:
    """One combination; where it is for nodes by name, one for each of these."""
    keys = [key for key in rule if key != "repeats"]
    settings = tuple(_setting(document, key, rule[key], (*place, key), (*place, key)) for key in keys)
    by_name = next((each for each in settings if each.key == NODES and each.value in WORDS), None)
    if by_name is None:
        yield Included(settings, rule.get("repeats"), place)
        return
    others = tuple(each for each in settings if each is not by_name)
    for hosts in _host_settings(NODES, HostAxis(hosts=by_name.value), by_name.place, extent, document):
        yield Included((*others, hosts), rule.get("repeats"), place)


def _setting(document: YamlDocument, key: str, value: Any, origin: KeyPath, place: KeyPath) -> Setting:
    """One value of one axis, with or without a label."""
    if not isinstance(value, dict) or "value" not in value:
        return Setting(key, value, None, origin, place)
    for other in value.keys() - {"value", "label"}:
        remedy = "a value with a label is `{value: …, label: …}`"
        raise UserError(f"unknown key {shown(other)}", document.where((*origin, other)), remedy)
    label = value.get("label")
    if isinstance(label, (dict, list)):
        raise UserError(f"must be text, not {shown(label)}", document.where((*origin, "label")))
    return Setting(key, value["value"], None if label is None else str(label), (*origin, "value"), place)


def override(found: Combinations, changes: Mapping[str, Any]) -> Combinations:
    """`found` with some keys set to other values, as `scalestudy plan --set` asks.

    A key gets its values wherever the study sets it: crossed, varied together with others, or in `include`. A list
    stands for several values. `repeats` counts as a key.
    """
    keys = {key: value if isinstance(value, list) else [value] for key, value in changes.items() if key != "repeats"}
    added: list[Axis] = [
        [(Setting(key, value, None, (OPTION, key), (OPTION, key)),) for value in values] for key, values in keys.items()
    ]
    kept = [axis for axis in (_without(axis, keys) for axis in found.axes) if any(axis) or not axis]
    alone = not found.axes and found.include
    points = [tuple(itertools.chain.from_iterable(points)) for points in itertools.product(*added)]
    include = [
        replace(each, point=(*point, *(setting for setting in each.point if setting.key not in keys)))
        for each in found.include
        for point in points
    ]
    changed = replace(found, axes=[] if alone else [*added, *kept], include=include)
    return _with_repeats(changed, changes["repeats"]) if "repeats" in changes else changed


def _without(axis: Axis, keys: Mapping[str, Any]) -> Axis:
    """An axis without some keys; points that differ in nothing else become one."""
    points: dict[str, Point] = {}
    for point in axis:
        rest = tuple(setting for setting in point if setting.key not in keys)
        points.setdefault(canonical_json([[setting.key, setting.value] for setting in rest]), rest)
    return list(points.values())


def _with_repeats(found: Combinations, repeats: Any) -> Combinations:
    if type(repeats) is not int or not 1 <= repeats <= MOST_REPEATS:
        what = f"must be a whole number from 1 to {MOST_REPEATS:,}, not {shown(repeats)}"
        raise UserError(what, f"{OPTION} repeats")
    include = [
        replace(each, repeats=min(each.repeats, repeats) if type(each.repeats) is int else each.repeats)
        for each in found.include
    ]
    return replace(found, repeats=repeats, include=include)
