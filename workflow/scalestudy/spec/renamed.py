"""Keys that have a new name. The old one stays valid, and stays in ids and stored specs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from scalestudy.errors import UserError
from scalestudy.spec.base import KeyPath

if TYPE_CHECKING:
    from scalestudy.spec.yamlfile import YamlDocument

RENAMED = {"tolerate_stall_s": "heartbeat_timeout_s"}
"""Old to new names of the keys of a run."""
STORED = {new: old for old, new in RENAMED.items()}


def with_new_names(data: Any) -> Any:
    """The keys of one run, under their new names."""
    if not isinstance(data, dict):
        return data
    return {(key if RENAMED.get(key) in data else RENAMED.get(key, key)): value for key, value in data.items()}


def with_stored_names(data: Mapping[str, Any]) -> dict[str, Any]:
    """The keys of one run, under the names that ids are made from."""
    return {STORED.get(key, key): value for key, value in data.items()}


def renamed_document(document: YamlDocument) -> tuple[YamlDocument, list[str]]:
    """A study file with new names throughout, and a notice for each place with an old one."""
    notices: list[str] = []

    def walk(value: Any, path: KeyPath) -> Any:
        if isinstance(value, dict):
            return {rename(key, value, path): walk(below, (*path, key)) for key, below in value.items()}
        if isinstance(value, list):
            return [walk(item, (*path, index)) for index, item in enumerate(value)]
        is_column = "figures" in path or "tables" in path
        return rename(value, {}, path[:-1]) if is_column and isinstance(value, str) else value

    def rename(key: str, among: Mapping[str, Any], path: KeyPath) -> str:
        new = RENAMED.get(key)
        if new is None or "kwargs" in path:
            return key
        where = document.where((*path, key))
        if new in among:
            raise UserError(f"is the old name of `{new}`, which is set too", where, "remove one of them")
        notices.append(f"{where}: is now called `{new}`; the old name remains valid")
        return new

    data = walk(document.data, ())
    if not notices:
        return document, []
    lines = {tuple(RENAMED.get(str(part), part) for part in path): line for path, line in document.lines.items()}
    return replace(document, data=data, lines=lines), notices
