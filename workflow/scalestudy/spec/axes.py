"""Axes of a study and their combinations: crossed, excluded and included."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from scalestudy.errors import UserError
from scalestudy.spec.base import KeyPath, dotted_keys, printable, shown
from scalestudy.spec.machine_axes import HOST_WORDS, MachineAxis, MachineCapacity, NoHosts, powers_of_two
from scalestudy.spec.program import own_keys
from scalestudy.spec.run import MAX_REPEATS, RunSpec
from scalestudy.spec.study_file import Labelled, StudySpec
from scalestudy.spec.yamlfile import YamlDocument, as_map, dotted, with_key


@dataclass(frozen=True)
class Setting:
    """One value of one axis."""

    key: str
    value: Any
    label: str | None = None
    of_machine: bool = False
    """Whether the machine chose the value."""
    lacks: str = ""
    """Why the machine has no value for the key."""


Point = tuple[Setting, ...]
Axis = Sequence[Point]


@dataclass(frozen=True)
class Combination:
    """Settings of one configuration, and the entry of the study file that makes it."""

    point: Point
    repeats: Any
    """As the file has them, until they are checked."""
    place: KeyPath
    """`vary`, or an entry of `include`."""

    def __str__(self) -> str:
        """Keys and values, for messages."""
        return printable(", ".join(f"{each.key} {each.label or shown(each.value).strip('`')}" for each in self.point))


@dataclass(frozen=True)
class Combinations:
    """Axes to cross, combinations to leave out and combinations to add, at one scale."""

    axes: list[Axis]
    exclude: list[dict[str, Any]]
    include: list[Combination]
    repeats: int

    def all(self) -> Iterator[Combination]:
        """The crossed combinations, where `include` is not alone, then the added ones."""
        for points in itertools.product(*self.axes) if self.axes or not self.include else ():
            yield Combination(tuple(itertools.chain.from_iterable(points)), self.repeats, ("vary",))
        yield from self.include


def combinations(
    document: YamlDocument, spec: StudySpec, scale: str, capacity: MachineCapacity, changes: Mapping[str, Any]
) -> Combinations:
    """The combinations of a study at one scale, with `changes` of keys as `--config set=…` has them."""
    zips = spec.part(scale, "zip")
    zips = zips if isinstance(zips, list) else [zips]
    vary = {key: values for key, values in {**spec.vary, **spec.at(scale).vary}.items() if values is not None}
    include, repeats = spec.part(scale, "include"), spec.part(scale, "repeats")
    if changes:
        vary, zips, include, repeats = _changed(vary, zips, include, repeats, changes)

    def hosts(word: str) -> list[Point]:
        try:
            return [(Setting("hosts", list(names)),) for names in capacity.groups(word)]
        except NoHosts as error:
            if error.where:
                raise
            return [(Setting("hosts", None, of_machine=True, lacks=error.what),)]

    def axis(key: str, values: Any) -> Axis:
        if isinstance(values, MachineAxis):
            numbers = powers_of_two(capacity.end(key, values.to))
            return [(Setting(key, number, of_machine=True),) for number in numbers]
        return hosts(values) if isinstance(values, str) else [(_setting(key, value),) for value in values]

    axes = [axis(key, values) for key, values in vary.items()]
    for zipped in zips:
        columns = [[_setting(key, value) for value in values] for key, values in zipped.items()]
        axes += [list(zip(*columns, strict=True))] if columns else []
    top = ("include",) if document.at(("scales", scale, "include")) is None else ("scales", scale, "include")
    added = []
    for index, rule in enumerate(include):
        word = rule.get("nodes")
        is_by_name = isinstance(word, str) and word in HOST_WORDS
        left_out = ("repeats", "nodes") if is_by_name else ("repeats",)
        point = tuple(_setting(key, value) for key, value in rule.items() if key not in left_out)
        for names in hosts(str(word)) if is_by_name else [()]:
            own = rule.get("repeats")
            added.append(Combination((*point, *names), repeats if own is None else own, (*top, index)))
    return Combinations(axes, spec.part(scale, "exclude"), added, repeats)


def _setting(key: str, value: Any) -> Setting:
    if not isinstance(value, Labelled):
        return Setting(key, value)
    return Setting(key, value.value, None if value.label is None else str(value.label))


def _changed(
    vary: dict[str, Any], zips: list[Any], include: list[Any], repeats: int, changes: Mapping[str, Any]
) -> tuple[dict[str, Any], list[Any], list[Any], int]:
    """The parts of a study with other values for some keys, wherever it sets them; a list stands for several values."""
    values = {key: value if isinstance(value, list) else [value] for key, value in changes.items() if key != "repeats"}
    if empty := next((key for key, value in values.items() if not value), None):
        raise UserError("is an empty list", f"set: {empty}", "give it a value; `null` stands for the default")
    replaced = {*values, *(["nodes"] if "hosts" in values else [])}

    def kept(keys: Mapping[str, Any]) -> dict[str, Any]:
        return {key: value for key, value in keys.items() if key not in replaced}

    if vary or any(zips) or not include:  # a study of included runs alone stays one
        vary = {**values, **kept(vary)}
    include = [
        {**dict(zip(values, each, strict=True)), **kept(rule)}
        for rule in include
        for each in itertools.product(*values.values())
    ]
    if "repeats" in changes:
        repeats = changes["repeats"]
        if type(repeats) is not int or not 1 <= repeats <= MAX_REPEATS:
            what = f"must be a whole number from 1 to {MAX_REPEATS:,}, not {shown(repeats)}"
            raise UserError(what, "set: repeats")
        include = [
            {**rule, "repeats": min(own, repeats)} if type(own := rule.get("repeats")) is int else rule
            for rule in include
        ]
    return vary, [kept(zipped) for zipped in zips], include, repeats


def place_of(document: YamlDocument, scale: str, path: KeyPath, changes: Mapping[str, Any], entry: KeyPath = ()) -> str:
    """Place that sets a key of a run: the command line, the combination's entry, an axis, or `base`."""
    maps = list(_maps(document, scale, entry))
    names = {*changes, *(name for _, keys in maps for name in keys)}
    if path[:2] == ("program", "keys") and names & {*path[2:3]}:
        path = path[2:]  # as `vary` and the like write a program's own keys
    key = dotted(path)
    if changed := next((name for name in changes if key == name or key.startswith(f"{name}.")), None):
        return f"set: {changed}"
    for is_exact in (True, False):  # of two bases, the one that has the key itself
        for place, keys in maps:
            is_base = place[-1] == "base"
            if is_exact and is_base and document.at((*place, *path)) is None:
                continue
            for name, value in keys.items():
                is_set = key == name or key.startswith((f"{name}.", f"{name}[")) or (key, name) == ("hosts", "nodes")
                if is_set and (is_base or value is not None or not is_exact):  # null removes an axis
                    return document.where((*place, *path) if is_base else (*place, name))
    return document.where(entry)


def _maps(document: YamlDocument, scale: str, entry: KeyPath) -> Iterator[tuple[KeyPath, dict[str, Any]]]:
    """Maps of keys of a run in a study file, with their places: the entry and those of the scale first."""
    places = [] if entry == ("vary",) else [entry]  # what is crossed may be an axis of the scale
    for part in ("vary", "zip", "base", "include", "exclude"):
        for top in (("scales", scale, part), (part,)):
            below = document.at(top)
            places += [(*top, index) for index in range(len(below))] if isinstance(below, list) else [top]
    yield from ((place, keys) for place in places if place and isinstance(keys := document.at(place), dict))


def merged(below: Mapping[str, Any], above: Mapping[str, Any]) -> dict[str, Any]:
    """`above` laid over `below`: maps merge, all else replaces, null removes."""
    result = dict(below)
    for key, value in above.items():
        if value is None:
            result.pop(key, None)
        elif isinstance(value, dict):
            old = as_map(result.get(key))
            names = [name for name in ("name", "source", "import") if name in value]
            is_other = bool(old.keys() & {"name", "source", "import"}) and any(value[n] != old.get(n) for n in names)
            result[key] = merged({} if is_other else old, value)
        else:
            result[key] = value
    return result


def applied(base: Mapping[str, Any], point: Point) -> dict[str, Any]:
    """The base with one value for each axis, maps before the keys in them; a key of the user's own belongs to the program."""
    own, data = own_keys(base, dotted_keys(RunSpec)), dict(base)
    paths = [("program", "keys", each.key) if each.key in own else tuple(each.key.split(".")) for each in point]
    for path, setting in sorted(zip(paths, point, strict=True), key=lambda item: len(item[0])):
        data = with_key(data, path, setting.value)
    return data
