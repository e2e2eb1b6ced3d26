"""YAML as data with places: every value knows the line it stands on."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path as FilePath
from typing import Any

import yaml

from scalestudy.errors import UserError

Path = tuple[str | int, ...]

MAX_BYTES = 1 << 20
MAX_NODES = 100_000
MAX_DEPTH = 30


class _Loader(yaml.SafeLoader):
    """SafeLoader that reads `1e-3` as a number, as YAML 1.2 and everybody's expectation have it."""


# Copied on write: PyYAML shares the resolver table between a loader and its base.
_Loader.yaml_implicit_resolvers = {
    first: [(tag, regexp) for tag, regexp in resolvers if tag != "tag:yaml.org,2002:timestamp"]
    for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
}
_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float",
    re.compile(r"^[-+]?[0-9][0-9_]*(\.[0-9_]*)?[eE][-+]?[0-9]+$"),
    list("-+0123456789"),
)


@dataclass(frozen=True)
class Document:
    """Plain data from one YAML file, and the line of each of its keys and values."""

    file: str
    data: dict[str, Any]
    lines: dict[Path, int] = field(repr=False, compare=False)

    def where(self, path: Path) -> str:
        """`file:line: dotted.key` of the deepest part of `path` that the file has."""
        known = path
        while known and known not in self.lines:
            known = known[:-1]
        line = self.lines.get(known, 1)
        return f"{self.file}:{line}: {dotted(path)}" if path else f"{self.file}:{line}"


def dotted(path: Iterable[str | int]) -> str:
    """`("vary", "ranks", 2)` as `vary.ranks[2]`."""
    text = ""
    for part in path:
        text += f"[{part}]" if isinstance(part, int) else f".{part}" if text else str(part)
    return text


def read_yaml(file: FilePath | str) -> Document:
    """Read one YAML mapping.

    Raises UserError, with file and line, for what is unreadable, not UTF-8, no YAML, no mapping, too large when its
    aliases are resolved, or has double keys, non-text keys, merge keys, NaN or infinity.
    """
    name = str(file)
    try:
        raw = FilePath(file).read_bytes()
    except OSError as error:
        raise UserError(f"cannot be read: {error.strerror}", name) from None
    if len(raw) > MAX_BYTES:
        raise UserError(f"is {len(raw):,} bytes; at most {MAX_BYTES:,} are read", name, "is it the right file?")
    try:
        text = raw.decode("utf-8")
    except UnicodeDecodeError as error:
        line = raw[: error.start].count(b"\n") + 1
        raise UserError(f"is not UTF-8 text (byte {error.start})", f"{name}:{line}", "save it as UTF-8") from None
    return parse_yaml(text, name)


def parse_yaml(text: str, name: str) -> Document:
    """As `read_yaml`, from text; `name` stands for the file in messages."""
    try:
        loader = _Loader(text)
        try:
            node = loader.get_single_node()
            if node is None:
                raise UserError("is empty", name, "see config/README.md for the keys")
            if not isinstance(node, yaml.MappingNode):
                raise UserError("holds no mapping of keys to values", f"{name}:{node.start_mark.line + 1}")
            lines: dict[Path, int] = {}
            data = _Builder(loader, name, lines).value(node, ())
        finally:
            loader.dispose()
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        place = f"{name}:{mark.line + 1}" if mark else name
        raise UserError(f"is not valid YAML: {error.problem or error.context}", place) from None
    except yaml.YAMLError as error:
        raise UserError(f"is not valid YAML: {' '.join(str(error).split())}", name) from None
    except RecursionError:
        raise UserError(f"is nested more than {MAX_DEPTH} deep", name) from None
    return Document(name, data, lines)


class _Builder:
    """Turns composed nodes into plain data, counting what aliases multiply."""

    def __init__(self, loader: yaml.SafeLoader, name: str, lines: dict[Path, int]) -> None:
        self.loader, self.name, self.lines = loader, name, lines
        self.count = 0

    def place(self, node: yaml.Node, path: Path = ()) -> str:
        place = f"{self.name}:{node.start_mark.line + 1}"
        return f"{place}: {dotted(path)}" if path else place

    def value(self, node: yaml.Node, path: Path) -> Any:
        self.count += 1
        if self.count > MAX_NODES:
            raise UserError(f"expands to more than {MAX_NODES:,} values", self.place(node), "aliases multiply; use fewer")
        if len(path) > MAX_DEPTH:
            raise UserError(f"is nested more than {MAX_DEPTH} deep", self.place(node), "an alias may hold itself")
        self.lines.setdefault(path, node.start_mark.line + 1)
        if isinstance(node, yaml.MappingNode):
            return self.mapping(node, path)
        if isinstance(node, yaml.SequenceNode):
            return [self.value(item, (*path, index)) for index, item in enumerate(node.value)]
        return self.scalar(node, path)

    def mapping(self, node: yaml.MappingNode, path: Path) -> dict[str, Any]:
        result: dict[str, Any] = {}
        for key_node, value_node in node.value:
            key = key_node.value
            if not isinstance(key_node, yaml.ScalarNode) or key_node.tag == "tag:yaml.org,2002:merge":
                raise UserError("only plain text can be a key here", self.place(key_node, path))
            if key in result:
                raise UserError(f"key `{key}` stands here twice", self.place(key_node, path), "keep one of them")
            self.lines[(*path, key)] = key_node.start_mark.line + 1
            result[key] = self.value(value_node, (*path, key))
        return result

    def scalar(self, node: yaml.Node, path: Path) -> Any:
        try:
            value = self.loader.construct_object(node)
        except (ValueError, yaml.YAMLError):
            raise UserError(f"`{node.value}` cannot be read as a value", self.place(node, path)) from None
        if isinstance(value, float) and not math.isfinite(value):
            raise UserError(f"`{node.value}` is not a finite number", self.place(node, path), "give a number")
        if value is not None and not isinstance(value, (str, int, float, bool)):
            raise UserError(f"`{node.value}` is neither text, number, true, false nor null", self.place(node, path))
        return value
