"""YAML as data with places: every value has its line."""

from __future__ import annotations

import contextlib
import copy
import functools
import math
import re
import stat
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from scalestudy.errors import UserError
from scalestudy.spec.base import KeyPath, printable

MAX_BYTES = 1 << 18
MAX_NODES = 100_000
MAX_DEPTH = 30
OPTION = "--set"
"""A key path that begins with this word names a key on the command line, not in the file."""


class _Loader(yaml.SafeLoader):
    """SafeLoader with the plain values of YAML 1.2's core schema.

    `1e-3` is a number; `1:30`, `0777`, `yes`, `on` and `2020-01-01` are not what YAML 1.1 makes of them.
    """

    yaml_implicit_resolvers: dict[str, list[tuple[str, re.Pattern[str]]]] = {}


_TAG = "tag:yaml.org,2002:"
_NUMBER = list("-+.0123456789")
PLAIN = {
    "null": (re.compile(r"^(?:~|null|Null|NULL|)$"), ["~", "n", "N", ""]),
    "bool": (re.compile(r"^(?:true|True|TRUE|false|False|FALSE)$"), list("tTfF")),
    "int": (re.compile(r"^[-+]?[0-9]+$"), _NUMBER),
    "float": (
        re.compile(
            r"^(?:[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?|[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN))$"
        ),
        _NUMBER,
    ),
}
"""How values that are no text are written, and with which characters they begin."""
for _name, (_pattern, _first) in PLAIN.items():
    _Loader.add_implicit_resolver(f"{_TAG}{_name}", _pattern, _first)
_Loader.add_implicit_resolver(f"{_TAG}merge", re.compile(r"^<<$"), ["<"])


@dataclass(frozen=True)
class YamlDocument:
    """Plain data from one YAML file, and the line of each of its keys and values."""

    file: str
    data: dict[str, Any]
    lines: dict[KeyPath, int] = field(repr=False, compare=False)

    def line(self, path: KeyPath) -> int:
        """The line of the deepest part of `path` that the file has."""
        while path and path not in self.lines:
            path = path[:-1]
        return self.lines.get(path, 1)

    def where(self, path: KeyPath) -> str:
        """`file:line: dotted.key`, the line that of the deepest part of `path` that the file has."""
        if path and path[0] == OPTION:
            return f"{OPTION} {printable(dotted(path[1:]))}"
        place = f"{self.file}:{self.line(path)}"
        return f"{place}: {printable(dotted(path))}" if path else place


def dotted(path: Iterable[str | int]) -> str:
    """`("vary", "ranks", 2)` as `vary.ranks[2]`."""
    text = ""
    for part in path:
        text += f"[{part}]" if isinstance(part, int) else f".{part}" if text else str(part)
    return text


def read_yaml(file: Path | str) -> YamlDocument:
    """Read one YAML mapping.

    Raises UserError, with file and line, for what is unreadable, not UTF-8, no YAML, no mapping, too large when its
    aliases are resolved, or has double keys, non-text keys, merge keys, NaN or infinity.
    """
    name = str(file)
    try:
        if not stat.S_ISREG(Path(file).stat().st_mode):
            raise UserError("is not a file", name, "give the path of a YAML file")
        with open(file, "rb") as stream:
            raw = stream.read(MAX_BYTES + 1)
    except OSError as error:
        remedy = "" if isinstance(error, FileNotFoundError) else "make it readable, then run the same command again"
        raise UserError(f"cannot be read: {error.strerror}", name, remedy) from None
    if len(raw) > MAX_BYTES:
        raise UserError(f"is larger than {MAX_BYTES:,} bytes", name, "is it the right file?")
    try:
        text = raw.decode("utf-8")
    except UnicodeDecodeError as error:
        line = raw[: error.start].count(b"\n") + 1
        raise UserError(f"is not UTF-8 text (byte {error.start})", f"{name}:{line}", "save it as UTF-8") from None
    return parse_yaml(text, name)


def parse_yaml(text: str, name: str) -> YamlDocument:
    """As `read_yaml`, from text; `name` stands for the file in messages."""
    found = _parsed(text, name)
    if isinstance(found, UserError):
        raise found.with_traceback(None)
    return YamlDocument(name, copy.deepcopy(found.data), dict(found.lines))


@functools.lru_cache(maxsize=64)
def _parsed(text: str, name: str) -> YamlDocument | UserError:
    """What a text holds, or what is wrong with it. Kept, because a command reads a study again for each scale."""
    try:
        return _parse(text, name)
    except UserError as error:
        return error


def _parse(text: str, name: str) -> YamlDocument:
    lines: dict[KeyPath, int] = {}

    def at(line: int) -> str:
        return f"{name}:{line}"

    with _composed(text, name, at) as node:
        if node is None:
            raise UserError("is empty", name, "`scalestudy keys` lists the keys")
        if not isinstance(node, yaml.MappingNode):
            raise UserError("is not a map of keys to values", at(node.start_mark.line + 1), KEYS)
        data = _Builder(at, lines).value(node, ())
    return YamlDocument(name, data, lines)


def parse_value(text: str, name: str) -> Any:
    """One value from a command line, read as those in files are; `name` stands for its place in messages.

    Raises UserError for what `read_yaml` refuses, and where there is nothing.
    """
    with _composed(text, name, lambda line: name) as node:
        if node is None:
            raise UserError("has no value", name, "write one after the `=`; `null` stands for the default")
        return _Builder(lambda line: name, {}).value(node, ())


@contextlib.contextmanager
def _composed(text: str, name: str, at: Callable[[int], str]) -> Iterator[yaml.Node | None]:
    """The nodes of a text; what YAML refuses in it, and in the block, becomes a UserError. `at` names a line."""
    loader: _Loader | None = None
    try:
        loader = _Loader(text)
        yield loader.get_single_node()
    except yaml.reader.ReaderError as error:
        place = at(text[: error.position].count(chr(10)) + 1)
        raise UserError(f"holds the control character U+{error.character:04X}", place, "is it a text file?") from None
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        what, remedy = _explained(error)
        raise UserError(f"is not valid YAML: {what}", at(mark.line + 1) if mark else name, remedy) from None
    except RecursionError:
        raise UserError(f"is nested more than {MAX_DEPTH} deep", name, "check brackets") from None
    finally:
        if loader is not None:
            loader.dispose()


CONTROL = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")
"""Also the marks that turn the direction of writing: with them a text reads otherwise than it is."""
KEYS = "write `key: value`; `scalestudy keys` lists them"

REMEDIES = {
    "cannot start any token": "indent with spaces; put text that begins with a special character in quotes",
    "mapping values are not allowed here": "check the indentation, and put text that holds `: ` in quotes",
    "found undefined alias": "put text that begins with `*` in quotes",
    "could not determine a constructor": "write the value without the tag",
    "found unexpected end of stream": "close the quote",
    "but found another document": "keep one document in the file, without `---` between",
}


def _explained(error: yaml.MarkedYAMLError) -> tuple[str, str]:
    """What the parser says, and what to do about it."""
    what = error.problem or error.context or "it cannot be parsed"
    if "\\t" in what:
        return "a tab is used where spaces are needed", "indent with spaces"
    remedy = next((text for part, text in REMEDIES.items() if part in what), "check brackets, quotes and indentation")
    return printable(what), remedy


class _Builder:
    """Turns composed nodes into plain data, and counts values, which aliases multiply."""

    def __init__(self, at: Callable[[int], str], lines: dict[KeyPath, int]) -> None:
        self.at, self.lines = at, lines
        self.count = 0

    def place(self, node: yaml.Node, path: KeyPath = ()) -> str:
        place = self.at(node.start_mark.line + 1)
        return f"{place}: {printable(dotted(path))}" if path else place

    def value(self, node: yaml.Node, path: KeyPath) -> Any:
        self.count += 1
        if self.count > MAX_NODES:
            what = f"expands to more than {MAX_NODES:,} values"
            raise UserError(what, self.place(node), "aliases multiply; use fewer")
        if len(path) > MAX_DEPTH:
            raise UserError(f"is nested more than {MAX_DEPTH} deep", self.place(node), "an alias may hold itself")
        self.lines.setdefault(path, node.start_mark.line + 1)
        if isinstance(node, yaml.MappingNode) and node.tag == f"{_TAG}map":
            return self.mapping(node, path)
        if isinstance(node, yaml.SequenceNode) and node.tag == f"{_TAG}seq":
            return [self.value(item, (*path, index)) for index, item in enumerate(node.value)]
        return self.scalar(node, path)

    def mapping(self, node: yaml.MappingNode, path: KeyPath) -> dict[str, Any]:
        result: dict[str, Any] = {}
        for key_node, value_node in node.value:
            if key_node.tag == f"{_TAG}merge":
                what = "merge keys (`<<`) are not supported"
                raise UserError(what, self.place(key_node, path), "write the keys out, or use scales, which merge")
            if not isinstance(key_node, yaml.ScalarNode):
                raise UserError("only plain text can be a key", self.place(key_node, path), "put the key in quotes")
            key = self.text(key_node, path)
            if key in result:
                what = f"key `{printable(key)}` is here twice"
                raise UserError(what, self.place(key_node, path), "keep one of them")
            self.lines[(*path, key)] = key_node.start_mark.line + 1
            result[key] = self.value(value_node, (*path, key))
        return result

    def scalar(self, node: yaml.Node, path: KeyPath) -> Any:
        tag = node.tag.removeprefix(_TAG)
        if not isinstance(node, yaml.ScalarNode) or tag not in ("str", "int", "float", "bool", "null"):
            remedy = "write text, a number, true, false, null, a list or a map"
            raise UserError(f"the tag `!!{printable(tag)}` is not supported", self.place(node, path), remedy)
        text = self.text(node, path)
        if tag != "str" and PLAIN[tag][0].fullmatch(text) is None:
            what = f"`{printable(text)}` is not written as its tag `!!{tag}` says"
            raise UserError(what, self.place(node, path), "write the value without the tag")
        try:
            if tag == "float":
                value = math.nan if text.lower().endswith(("inf", "nan")) else float(text)
                if not math.isfinite(value):
                    raise UserError(
                        f"`{printable(text)}` is not a finite number", self.place(node, path), "give a number"
                    )
                return value
            if tag == "int":
                return int(text)
        except ValueError:
            what = f"`{printable(text)}` cannot be read as a number"
            raise UserError(what, self.place(node, path), "write it with fewer digits, or put text in quotes") from None
        return {"str": text, "bool": text.lower() == "true", "null": None}[tag]

    def text(self, node: yaml.ScalarNode, path: KeyPath) -> str:
        text: str = node.value
        if "\0" in text or any("\ud800" <= character <= "\udfff" for character in text):
            raise UserError(
                f"`{printable(text)}` holds a character that no file name or text can have", self.place(node, path)
            )
        if CONTROL.search(text):
            what = f"`{printable(text)}` holds a control character, on which a terminal or a page could act"
            raise UserError(what, self.place(node, path), "leave it out")
        return text


def setting(text: str, command: str) -> tuple[str, Any]:
    """`"train.epochs=3"` as its dotted key and its value, which is read as YAML in study files is."""
    key, equals, value = text.partition("=")
    if not equals or not all(part and part.isprintable() for part in key.split(".")):
        raise UserError(f"`{printable(text)}` is not a setting", command, "write key=value, for example ranks=2")
    return key, parse_value(value, f"{command}: {key}")
