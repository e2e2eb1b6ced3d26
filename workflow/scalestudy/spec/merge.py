"""Layers of a study laid over each other: `base`, a scale's `base`, and one value per axis."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from scalestudy.spec.axes import Point
from scalestudy.spec.base import KeyPath
from scalestudy.spec.yamlfile import YamlDocument


@dataclass
class Draft:
    """A run in the making: plain data, and where in the study file each part is written."""

    data: dict[str, Any] = field(default_factory=dict)
    origins: dict[KeyPath, KeyPath] = field(default_factory=dict)

    def copy(self) -> Draft:
        """One that can be changed by itself."""
        return Draft(copy.deepcopy(self.data), dict(self.origins))

    def where(self, document: YamlDocument, path: KeyPath) -> str:
        """The place in the study file that a part of the run comes from."""
        for cut in range(len(path), -1, -1):
            if path[:cut] in self.origins:
                return document.where((*self.origins[path[:cut]], *path[cut:]))
        return document.where(())

    def replace_origin(self, path: KeyPath, origin: KeyPath) -> None:
        """`path` and all below it now come from `origin`."""
        self.origins = {p: o for p, o in self.origins.items() if p[: len(path)] != path}
        self.origins[path] = origin


def overlay(draft: Draft, change: Mapping[str, Any], origin: KeyPath, path: KeyPath = ()) -> None:
    """Merge `change` into the draft at `path`: maps merge, all else replaces, null removes."""
    target = draft.data
    for part in path:
        target = target[str(part)]
    for key, value in change.items():
        here, written = (*path, key), (*origin, key)
        below = target.get(key)
        if value is None:
            target.pop(key, None)
            draft.origins[here] = written
        elif isinstance(value, dict) and isinstance(below, dict) and not _of_different_kinds(below, value):
            overlay(draft, value, written, here)
        else:
            draft.replace_origin(here, written)
            target[key] = {} if isinstance(value, dict) else value
            if isinstance(value, dict):
                overlay(draft, value, written, here)


def _of_different_kinds(below: Mapping[str, Any], above: Mapping[str, Any]) -> bool:
    """Whether merging two maps would mix the options of, for example, two strategies."""
    return any(key in above and above[key] != below.get(key) for key in ("name", "source", "import"))


def applied(base: Draft, point: Point) -> Draft:
    """The base with one value for each axis."""
    draft = base.copy()
    for setting in point:
        *parents, last = setting.key.split(".")
        target, path = draft.data, []
        for part in parents:
            below = target.get(part)
            # `model: resnet50` stands for `{name: resnet50}`, so that `model.kwargs` can be set too.
            target[part] = below if isinstance(below, dict) else {"name": below} if isinstance(below, str) else {}
            target = target[part]
            path.append(part)
        draft.replace_origin((*path, last), setting.origin)
        if setting.value is None:
            target.pop(last, None)
        else:
            target[last] = copy.deepcopy(setting.value)
    return draft
