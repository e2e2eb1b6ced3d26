"""YAML files as plain data with a line for every key."""

from __future__ import annotations

import functools
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ruamel.yaml import YAML
from ruamel.yaml.error import MarkedYAMLError, YAMLError
from ruamel.yaml.scalarbool import ScalarBoolean

from scalestudy.errors import UserError
from scalestudy.spec.base import KeyPath, printable


@dataclass(frozen=True)
class YamlDocument:
    """Plain data of one YAML file, and the parsed tree with the line of each key."""

    file: str
    data: dict[str, Any]
    tree: Any = field(repr=False, compare=False)

    def line(self, path: KeyPath) -> int:
        """Line of the deepest part of `path` that the file has."""
        node, line = self.tree, 1
        for part in path:
            try:
                line = (node.lc.item(part) if isinstance(part, int) else node.lc.key(part))[0] + 1
                node = node[part]
            except (AttributeError, KeyError, IndexError, TypeError):
                break
        return line

    def where(self, path: KeyPath) -> str:
        """`file:line: dotted.key`."""
        place = f"{self.file}:{self.line(path)}"
        return f"{place}: {printable(dotted(path))}" if path else place

    def at(self, path: KeyPath) -> Any:
        """The value at a path; None where there is none."""
        value: Any = self.data
        for part in path:
            try:
                value = value[part]
            except (KeyError, IndexError, TypeError):
                return None
        return value


def dotted(path: Iterable[str | int]) -> str:
    """`("vary", "ranks", 2)` as `vary.ranks[2]`."""
    return "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in path).removeprefix(".")


def read_yaml(file: Path | str) -> YamlDocument:
    """Read one YAML mapping. Raises UserError with file and line."""
    try:
        return parse_yaml(Path(file).read_text(encoding="utf-8"), str(file))
    except OSError as error:
        raise UserError(f"cannot be read: {error.strerror}", str(file), "name a readable YAML file") from None
    except UnicodeDecodeError as error:
        raise UserError(f"is not UTF-8 text (byte {error.start})", str(file), "save it as UTF-8") from None


def parse_yaml(text: str, name: str) -> YamlDocument:
    """As `read_yaml`, from text; `name` stands for the file in messages."""
    tree, plain = _load(text, name)
    if not isinstance(tree, dict):
        raise UserError("is not a map of keys to values", name, "`scalestudy check --keys` lists the keys")
    return YamlDocument(name, plain, tree)


@functools.lru_cache(maxsize=64)
def _load(text: str, name: str) -> tuple[Any, Any]:
    """The tree of one text, and its plain data. Cached: a command reads a study once per scale."""
    yaml = YAML()
    try:
        tree = yaml.load(text)
        return tree, _plain(tree)
    except MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        where = f"{name}:{mark.line + 1}" if mark else name
        what = (error.problem or error.context or "it cannot be parsed").partition("\n")[0]
        what = f"{error.context}, {what}" if what.startswith("but ") else what
        raise UserError(f"is not valid YAML: {what}", where, "check keys, brackets, quotes and indentation") from None
    except (YAMLError, ValueError, RecursionError) as error:
        what = str(error).partition("\n")[0]
        raise UserError(f"is not valid YAML: {what}", name, "put text in quotes, and save it as plain text") from None


def _plain(value: Any) -> Any:
    """A tree as dicts, lists, text and numbers."""
    if isinstance(value, dict):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_plain(item) for item in value]
    if isinstance(value, ScalarBoolean):  # one with an anchor, which is an int
        return bool(value)
    if isinstance(value, float) and not math.isfinite(value):  # JSON has none
        return str(value)
    for kind in (bool, int, float, str):
        if isinstance(value, kind):
            return kind(value)
    return None if value is None else str(value)


def setting(text: str, command: str) -> tuple[str, Any]:
    """`"train.epochs=3"` as its dotted key and its value."""
    key, equals, value = text.partition("=")
    if not equals or not all(part and part.isprintable() for part in key.split(".")):
        raise UserError(f"`{printable(text)}` is not a setting", command, "write key=value, for example ranks=2")
    if not value.strip():
        remedy = "write one after the `=`; `null` stands for the default"
        raise UserError("has no value", f"{command}: {key}", remedy)
    try:
        return key, _load(value, command)[1]
    except UserError as error:
        raise UserError(error.what, f"{command}: {key}", error.remedy) from None


def as_map(value: Any) -> dict[str, Any]:
    """A map; `resnet50` stands for `{name: resnet50}`, so that its options can be set too."""
    return value if isinstance(value, dict) else {"name": value} if isinstance(value, str) else {}


def with_key(data: Mapping[str, Any], path: Sequence[str], value: Any) -> dict[str, Any]:
    """`data` with another value at a path of keys; null removes what is there, and makes no map to remove it from."""
    head, *rest = path
    result = dict(data)
    if value is None and head not in data:
        return result
    if rest:
        result[head] = with_key(as_map(data.get(head)), rest, value)
    elif value is None:
        del result[head]
    else:
        result[head] = value
    return result
