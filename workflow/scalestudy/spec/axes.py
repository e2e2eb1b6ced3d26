"""Axes of a study and their combinations: crossed, excluded and included."""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from scalestudy.errors import Problem, UserError, raise_all
from scalestudy.spec.base import KeyPath, dotted_keys, printable, shown
from scalestudy.spec.machine_axes import HOST_WORDS, MachineAxis, MachineCapacity, NoHosts
from scalestudy.spec.program import own_keys
from scalestudy.spec.run import MAX_REPEATS, RunSpec
from scalestudy.spec.study_file import Labelled, StudySpec
from scalestudy.spec.yamlfile import YamlDocument, as_map, with_key

MAX_RUNS = 50_000


@dataclass(frozen=True)
class Setting:
    """One value of one key."""

    key: str
    path: tuple[str, ...]
    """The keys of a run that lead to it: one of the user's own belongs to the program."""
    value: Any
    place: str
    """File, line and key that set it, or the command line."""
    label: str | None = None
    of_machine: bool = False
    """Whether the machine chose the value."""


Point = tuple[Setting, ...]


@dataclass(frozen=True)
class Combination:
    """Settings of one configuration, and the part of the study that makes it."""

    point: Point
    repeats: Any
    """As the file has them, until they are checked."""
    part: KeyPath
    """`vary`, or an entry of `include`."""

    def __str__(self) -> str:
        """Keys and values, for messages."""
        settings = ", ".join(f"{each.key} {each.label or shown(each.value).strip('`')}" for each in self.point)
        return printable(settings) or "`base` alone"


@dataclass(frozen=True)
class Expansion:
    """A study file at one scale on one machine, with `changes` of keys as `--config set=…` has them."""

    document: YamlDocument
    spec: StudySpec
    scale: str
    base: Mapping[str, Any]
    """The run that all others are variations of."""
    capacity: MachineCapacity
    changes: Mapping[str, Any]
    left_out: Counter[str] = field(default_factory=Counter)
    """Runs that the machine has no place for, by reason; 0 where they cannot be counted."""
    beyond: list[UserError] = field(default_factory=list)
    """The errors that these are if no run remains."""
    keys: list[tuple[str, str]] = field(default_factory=list)
    """Key and place of each axis, also of one without a value."""

    @cached_property
    def repeats(self) -> int:
        """How often each configuration is measured."""
        repeats = self.changes.get("repeats", self.spec.part(self.scale, "repeats"))
        if type(repeats) is not int or not 1 <= repeats <= MAX_REPEATS:
            what = f"must be a whole number from 1 to {MAX_REPEATS:,}, not {shown(repeats)}"
            raise UserError(what, "set: repeats")
        return repeats

    @cached_property
    def own_keys(self) -> set[str]:
        """Keys of the user's own program."""
        return own_keys(self.base, dotted_keys(RunSpec))

    def where(self, path: KeyPath) -> str:
        """Place of a part of the study, or of a key of `vary`: within `scales` where this scale sets it."""
        at_scale = ("scales", self.scale, *path)
        depth = 4 if path[0] == "vary" else 3
        return self.document.where(path if self.document.at(at_scale[:depth]) is None else at_scale)

    def error(self, problem: Problem, entry: Combination) -> UserError:
        """A problem of a run, with the place of its key and the combination that has it."""
        settings = f" (with {entry})" if entry.point else ""
        return UserError(f"{problem.what}{settings}", self._place_of(problem.path, entry), problem.remedy)

    def _place_of(self, path: KeyPath, entry: Combination) -> str:
        """What sets a key of a run: a setting of the combination, `base`, or else the combination."""
        for setting in entry.point:
            if path[: len(setting.path)] == setting.path:
                return setting.place
        for key_path in (path, path[:1]):  # of two bases, the one that has the key itself
            for base in (("scales", self.scale, "base"), ("base",)):
                if self.document.at((*base, *key_path)) is not None:
                    return self.document.where((*base, *path))
        return self.where(entry.part)

    def axis(self, key: str, values: Any, place: str) -> list[Point]:
        """The settings of one key: of a list, up to what the machine has, or its nodes by name."""
        of_machine = isinstance(values, MachineAxis)
        if isinstance(values, MachineAxis):
            end = self.capacity.end(key, values.to)
            values = [*(1 << power for power in range(end.bit_length()) if 1 << power < end), end]
        elif isinstance(values, str):
            key, values = "hosts", self._hosts(values, place)
        self.keys.append((key, place))
        path = ("program", "keys", key) if key in self.own_keys else tuple(key.split("."))
        points: list[Point] = []
        for value in values:
            one = value if isinstance(value, Labelled) else Labelled(value=value)
            label = None if one.label is None else str(one.label)
            points.append((Setting(key, path, one.value, place, label, of_machine),))
        return points

    def _hosts(self, word: str, place: str) -> list[list[str]]:
        groups = self.capacity.groups(word)
        if not groups:
            what = f"`nodes: {word}` needs two nodes, and machine `{self.capacity.name}` has one"
            self.left_out[what] = 0
            self.beyond.append(NoHosts(what, place, "choose a machine of several nodes"))
        return [list(names) for names in groups]


def combinations(study: Expansion) -> list[Combination]:
    """The crossed combinations, where `include` is not alone, then the added ones.

    Changed keys have their other values wherever the study sets them.
    """
    spec, scale, repeats = study.spec, study.scale, study.repeats
    changes = {key: value for key, value in study.changes.items() if key != "repeats"}
    if empty := [key for key, value in changes.items() if value == []]:
        raise UserError("is an empty list", f"set: {empty[0]}", "give it a value; `null` stands for the default")
    lists = {key: value if isinstance(value, list) else [value] for key, value in changes.items()}
    changed = [study.axis(key, values, f"set: {key}") for key, values in lists.items()]
    replaced = {*changes, *(["nodes"] if "hosts" in changes else [])}

    def axes_of(part: KeyPath, axes: Mapping[str, Any]) -> list[list[Point]]:
        """An axis for each key that is not changed."""
        kept = {key: values for key, values in axes.items() if key not in replaced}
        return [study.axis(key, values, study.where((*part, key))) for key, values in kept.items()]

    def crossed(axes: list[list[Point]], repeats: Any, part: KeyPath) -> list[Combination]:
        return [Combination(_joined(points), repeats, part) for points in itertools.product(*axes)]

    vary = {key: values for key, values in {**spec.vary, **spec.at(scale).vary}.items() if values is not None}
    include, zips = spec.part(scale, "include"), spec.part(scale, "zip")
    zipped: dict[KeyPath, Any] = {("zip",): zips}
    if isinstance(zips, list):
        zipped = {("zip", index): together for index, together in enumerate(zips)}
    axes = [*changed, *axes_of(("vary",), vary)]
    for part, together in zipped.items():
        if columns := axes_of(part, together):
            axes.append([_joined(row) for row in zip(*columns, strict=True)])
    counts = Counter(key for key, _ in study.keys)
    twice = {key: place for key, place in study.keys if counts[key] > 1}
    raise_all([UserError(f"`{key}` varies twice", place, "keep one of them") for key, place in twice.items()])
    count = math.prod(map(len, axes)) * repeats
    if count > MAX_RUNS:
        what = f"makes {count:,} runs; at most {MAX_RUNS:,} are expanded"
        raise UserError(what, study.where(("vary",)), "vary fewer keys, or vary them together with `zip`")
    entries = crossed(axes, repeats, ("vary",)) if vary or any(zips) or not include else []
    for index, rule in enumerate(include):
        values = {key: [value] for key, value in rule.items() if key != "repeats"}
        if rule.get("nodes") in HOST_WORDS:
            values["nodes"] = rule["nodes"]
        own = rule.get("repeats", repeats)
        own = min(own, repeats) if "repeats" in study.changes and type(own) is int else own
        entries += crossed([*changed, *axes_of(("include", index), values)], own, ("include", index))
    return entries


def _joined(points: Iterable[Point]) -> Point:
    return tuple(itertools.chain.from_iterable(points))


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
    """The base with one value for each axis, maps before the keys in them."""
    data = dict(base)
    for setting in sorted(point, key=lambda each: len(each.path)):
        data = with_key(data, setting.path, setting.value)
    return data
