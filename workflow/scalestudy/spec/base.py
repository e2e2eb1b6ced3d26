"""The frozen base of every spec model, and its errors as sentences with places."""

from __future__ import annotations

import difflib
import heapq
import json
import math
import types
from collections.abc import Iterable, Iterator, Sequence
from typing import Annotated, Any, Literal, TypeVar, Union, get_args, get_origin

from pydantic import BaseModel, ConfigDict, ValidationError
from pydantic.fields import FieldInfo
from pydantic_core import ErrorDetails, PydanticCustomError

from scalestudy.errors import Problem, nearest
from scalestudy.spec.synonyms import meant_keys, meant_values

KeyPath = tuple[str | int, ...]
"""Keys and positions from the top of a document down to one value."""
M = TypeVar("M", bound="Spec")


class Spec(BaseModel):
    """A frozen description: unknown keys are errors, types are strict, NaN is refused."""

    model_config = ConfigDict(
        frozen=True,
        extra="forbid",
        strict=True,
        allow_inf_nan=False,
        populate_by_name=True,
    )

    def plain(self) -> dict[str, Any]:
        """The keys that differ from their defaults, as plain data: what is hashed, stored and read again."""
        return self.model_dump(mode="json", by_alias=True, exclude_none=True, exclude_defaults=True)

    @classmethod
    def as_written_now(cls, data: Any) -> Any:
        """Plain data of this model, older spellings of its keys replaced."""
        return data

    def full(self) -> dict[str, Any]:
        """All keys, defaults included, as plain data."""
        return self.model_dump(mode="json", by_alias=True)


def parse(model: type[M], data: Any) -> tuple[M | None, list[Problem]]:
    """`data` (plain YAML or JSON data) as `model`, or what is wrong with it."""
    data = model.as_written_now(data)
    try:
        text = json.dumps(data, allow_nan=False)
    except (TypeError, ValueError):
        return None, list(_not_plain(data, ()))
    try:
        return model.model_validate_json(text), []
    except ValidationError as error:
        return None, list(problems(model, data, error))


def _not_plain(data: Any, path: KeyPath) -> Iterator[Problem]:
    """Values that JSON does not have; files cannot hold them, a command line can."""
    if isinstance(data, dict):
        for key, value in data.items():
            yield from _not_plain(value, (*path, str(key)))
    elif isinstance(data, (list, tuple)):
        for index, value in enumerate(data):
            yield from _not_plain(value, (*path, index))
    elif isinstance(data, float) and not math.isfinite(data):
        yield Problem(path, f"`{data}` is not a finite number", "give a number")
    elif data is not None and not isinstance(data, (str, int, float, bool)):
        yield Problem(path, f"`{data}` is neither text, number, true, false nor null", "put it in quotes")


TYPES = {
    "int_type": "a whole number",
    "int_from_float": "a whole number",
    "float_type": "a number",
    "string_type": "text",
    "bool_type": "true or false",
    "list_type": "a list",
    "tuple_type": "a list",
    "dict_type": "a map of keys to values",
    "model_type": "a map of keys to values",
    "model_attributes_type": "a map of keys to values",
}

LIMITS = {
    "greater_than": ("gt", "more than"),
    "greater_than_equal": ("ge", "at least"),
    "less_than": ("lt", "less than"),
    "less_than_equal": ("le", "at most"),
}

WORD = "a word of lower-case letters, digits and `_`, starting with a letter"
FILE_AND_CLASS = "`file:Class`, a file in config/extensions/ without its .py"

PATTERNS = {
    r"^[A-Za-z0-9]+(/[A-Za-z0-9]+)*$": "a transport as NCCL's log names it, such as `P2P` or `NET/IB`",
    r"^[a-z][a-z0-9_]{0,63}$": WORD,
    r"^([1-9][0-9]{0,5}|any)$": "a number of ranks, or `any`",
    r"^[a-z0-9_]+$": "a word of lower-case letters, digits and `_`",
    r"^(mini|node)$": "`mini` or `node` (the rest of the file is `paper`)",
    r"^(cpu|cuda|emulated:[a-z0-9_]+)$": "`cpu`, `cuda` or `emulated:<accelerator>`",
    r"^[0-9.]+ *(x node memory|[KMGT]i?B)$": "a size such as `64 MiB` or `2x node memory`",
    r"^[A-Za-z_][A-Za-z0-9_]*:[A-Za-z_][A-Za-z0-9_]*$": FILE_AND_CLASS,
    r"^[A-Za-z0-9][A-Za-z0-9._-]{0,252}$": "the name of a host",
    r"^[A-Za-z0-9][A-Za-z0-9._,\[\]-]*$": "the name of a host, or of several such as `node[01-16]`",
}
"""What each regular expression of the models means; a test proves that none is missing."""


def refused(what: str, remedy: str = "", key: str | None = None) -> PydanticCustomError:
    """What a validator of ours raises: a sentence, a remedy, and the key below the field that it is about."""
    return PydanticCustomError("refused", "{what}", {"what": what, "remedy": remedy, "key": key})


def problems(model: type[Spec], data: Any, error: ValidationError) -> Iterator[Problem]:
    """Each pydantic error as a path that exists in `data` (or its missing key), a sentence and a remedy.

    A value that fits no member of a union gives an error per member; they become one.
    """
    all_items = error.errors(include_url=False, include_context=True)
    items = [(_path_in(data, item["loc"]), item) for item in all_items if not _long_enough(item)]
    for path in dict.fromkeys(path for path, _ in items):
        here = [item for other, item in items if other == path]
        deeper = any(len(other) > len(path) and other[: len(path)] == path for other, _ in items)
        wrong_type = [item for item in here if item["type"] in TYPES]
        one_of = [item for item in here if item["type"] == "literal_error"]
        other_kinds = [item for item in here if item not in (*wrong_type, *one_of)]
        if not (wrong_type or other_kinds or deeper):
            other_kinds = one_of
        for item in other_kinds:
            yield _problem(model, data, path, item)
        if wrong_type and not other_kinds and not deeper:
            expected = list(dict.fromkeys(map(_expected, here)))
            value = here[0]["input"]
            yield Problem(
                path, f"must be {' or '.join(expected)}, not {shown(value)}", _as_written(model, path, expected, value)
            )


def _long_enough(item: ErrorDetails) -> bool:
    """Whether a list is only called too short because some of its items are wrong."""
    return item["type"] == "too_short" and len(item["input"]) >= item["ctx"]["min_length"]


def _expected(item: ErrorDetails) -> str:
    return TYPES.get(item["type"]) or item["ctx"]["expected"].replace("'", "`")


def _problem(model: type[Spec], data: Any, path: KeyPath, item: ErrorDetails) -> Problem:
    kind, context, value = item["type"], item.get("ctx", {}), item["input"]
    what, remedy = f"{shown(value)} is wrong: {item['msg'][0].lower()}{item['msg'][1:]}", ""
    if kind == "extra_forbidden":
        what, remedy = f"unknown key `{printable(str(path[-1]))}`", _nearest_key(model, data, path)
    elif kind == "missing":
        what, remedy = f"key `{path[-1]}` is missing", "add it"
    elif kind == "value_error":
        what = str(context["error"])
    elif kind == "refused":
        path = (*path, context["key"]) if context["key"] else path
        what, remedy = context["what"], context["remedy"]
    elif kind == "union_tag_not_found":
        path = (*path, context["discriminator"].strip("'"))
        what, remedy = f"key `{path[-1]}` is missing", "add it"
    elif kind == "union_tag_invalid":
        path = (*path, context["discriminator"].strip("'"))
        what, remedy = _not_one_of(context["tag"], context["expected_tags"])
    elif kind == "literal_error":
        what, remedy = _not_one_of(value, context["expected"])
    elif kind in LIMITS:
        limit, words = LIMITS[kind]
        what = f"must be {words} {context[limit]:,.10g}, not {shown(value)}"
    elif kind == "string_pattern_mismatch":
        what = f"must be {PATTERNS[context['pattern']]}, not {shown(value)}"
    elif kind in ("too_short", "too_long"):
        most, count = kind == "too_long", context["max_length" if kind == "too_long" else "min_length"]
        values = "value" if count == 1 else "values"
        what = f"must have at {'most' if most else 'least'} {count} {values}, not {len(value)}"
    return Problem(path, what, remedy)


def _not_one_of(value: Any, expected: str) -> tuple[str, str]:
    """Sentence and remedy for a value that is not in pydantic's list of valid ones."""
    valid = [word.strip(" '\"") for word in expected.replace(" or ", ", ").split(",")]
    return f"{shown(value)} is not valid here", meant_values(str(value), valid) or nearest(
        str(value), filter(None, valid)
    )


def shown(value: Any) -> str:
    """A value as messages quote it: on one line, printable, not too long."""
    return f"`{printable(value if isinstance(value, str) else json.dumps(value, ensure_ascii=False))}`"


def shown_safely(value: Any) -> str:
    """As `shown`, for what may be no value of JSON."""
    try:
        return shown(value)
    except (TypeError, ValueError, RecursionError):
        return "something that is not a value"


def printable(text: str) -> str:
    """`text` without what would break a line or a terminal, cut at 60 characters."""
    text = text if text.isprintable() else text.encode("unicode_escape").decode()
    return text if len(text) <= 60 else text[:57] + "..."


def _as_written(model: type[Spec], path: KeyPath, expected: list[str], value: Any) -> str:
    """How the value of a wrong type could have been written."""
    if "a list" in expected:
        if isinstance(value, dict):
            varies, key = len(path) > 1 and path[-2] in ("vary", "zip"), next(iter(value), "…")
            return f"write `{path[-1]}.{printable(key)}: […]`" if varies else "write a list of maps, each after `- `"
        return f"write `[{printable(str(value))}]`"
    if "true or false" in expected and str(value).lower() in ("yes", "no", "on", "off"):
        return f"write `{'true' if str(value).lower() in ('yes', 'on') else 'false'}`"
    if TYPES["model_type"] in expected:
        keys = sorted({name for m in _models_at(model, path) for name in key_names(m)})
        return f"its keys: {', '.join(keys)}" if keys else "write `key: value`"
    return "put it in quotes" if "text" in expected and not isinstance(value, (dict, list)) else ""


def _nearest_key(model: type[Spec], data: Any, path: KeyPath) -> str:
    """The remedy for an unknown key: how it is written, the nearest at the same level, the same word at a lower level."""
    key, valid = str(path[-1]), _keys_at(model, data, path[:-1])
    head, dot, rest = key.partition(".")
    if dot and head in valid:
        return f"write `{head}: {{{printable(rest)}: …}}`"
    if meant := meant_keys(key, dotted_keys(model)):
        return meant
    if not difflib.get_close_matches(key, valid, n=1, cutoff=0.6):
        deeper = [found for m in _models_at(model, path[:-1]) for found in dotted_keys(m) if found.endswith(f".{key}")]
        if deeper:
            return "did you mean " + " or ".join(f"`{found}`" for found in list(dict.fromkeys(deeper))[:3]) + "?"
    return nearest(key, valid)


def nearest_of_many(word: str, valid: Iterable[str]) -> str:
    """A remedy where the valid words are too many to list: the nearest, by the whole word or a part of it."""

    valid = set(valid)
    if meant := meant_keys(word, valid):
        return meant

    def likeness(name: str) -> float:
        parts = [name, *name.split("."), *name.split("_")]
        return max(difflib.SequenceMatcher(None, word, part).ratio() for part in parts)

    scores = {name: likeness(name) for name in sorted(valid)}
    near = [name for name in heapq.nlargest(3, scores, key=scores.__getitem__) if scores[name] >= 0.6]
    near = [name for name in near if scores[name] >= scores[near[0]] - 0.05]
    return "did you mean " + " or ".join(f"`{name}`" for name in near) + "?" if near else "`scalestudy keys` lists them"


def _path_in(data: Any, loc: KeyPath) -> KeyPath:
    """`loc` without the names of union members that pydantic puts between the keys."""
    path: list[str | int] = []
    for position, part in enumerate(loc):
        last = position == len(loc) - 1
        if isinstance(data, dict) and isinstance(part, str):
            if part in data:
                data = data[part]
            elif not last or not part.isidentifier() or part == data.get("kind"):
                continue
            path.append(part)
        elif isinstance(data, list) and isinstance(part, int) and part < len(data):
            data = data[part]
            path.append(part)
    return tuple(path)


def _keys_at(model: type[BaseModel], data: Any, path: KeyPath) -> set[str]:
    """The keys that the models standing at `path` know; of a union, those of the member that `data` chose."""
    for part in path:
        data = data[part]
    models = _models_at(model, path)
    chosen = [m for m in models if isinstance(data, dict) and any(data.get(k) == v for k, v in _tags(m))]
    return {name for m in chosen or models for name in key_names(m)}


def _models_at(model: type[BaseModel], path: KeyPath) -> list[type[BaseModel]]:
    """The models that can stand at `path`."""
    models, in_free_map = [model], False
    for part in path:
        if isinstance(part, int) or in_free_map:
            in_free_map = False
            continue
        fields = [field for candidate in models for field in _fields(candidate, part)]
        models = [found for field in fields for found in models_in(field.annotation)]
        in_free_map = any(get_origin(field.annotation) is dict for field in fields)
    return models


def _tags(model: type[BaseModel]) -> list[tuple[str, str]]:
    return [
        (field.alias or name, value)
        for name, field in model.model_fields.items()
        if get_origin(field.annotation) is Literal
        for value in get_args(field.annotation)
        if name in ("name", "source", "kind")
    ]


def key_names(model: type[BaseModel]) -> list[str]:
    """The keys of a model as they stand in YAML."""
    return [field.alias or name for name, field in model.model_fields.items()]


def _fields(model: type[BaseModel], key: str) -> list[FieldInfo]:
    return [field for name, field in model.model_fields.items() if key == (field.alias or name)]


def dotted_keys(model: type[BaseModel]) -> Iterator[str]:
    """Every key of a model and of the models below it, dotted; of a union, those of all its members."""
    for name, field in model.model_fields.items():
        key = field.alias or name
        yield key
        for below in models_in(field.annotation):
            for deeper in dotted_keys(below):
                yield f"{key}.{deeper}"


def key_problem(model: type[BaseModel], key: str) -> Problem | None:
    """What is wrong with a dotted key, None where `model` has it; what a map of free keys holds is not looked at."""
    models, parts = [model], key.split(".")
    for position, part in enumerate(parts):
        names = {name for m in models for name in key_names(m)}
        if part not in names:
            if not position:
                return Problem((key,), f"unknown key `{printable(key)}`", nearest_of_many(key, dotted_keys(model)))
            above = ".".join(parts[:position])
            remedy = meant_keys(part, dotted_keys(model)) or nearest(part, names)
            return Problem((key,), f"`{above}` has no key `{printable(part)}`", remedy)
        fields = [field for candidate in models for field in _fields(candidate, part)]
        models = [found for field in fields for found in models_in(field.annotation)]
        if not models:
            free = any(get_origin(field.annotation) is dict for field in fields)
            rest = parts[position + 1 :]
            return (
                None
                if free or not rest
                else Problem((key,), f"`{'.'.join(parts[: position + 1])}` has no keys below it")
            )
    return None


def models_in(annotation: Any) -> Iterator[type[BaseModel]]:
    """All models that an annotation mentions."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    elif get_origin(annotation) in (Union, types.UnionType, tuple, dict, list, Annotated):
        arguments: Sequence[Any] = get_args(annotation)
        for argument in arguments:
            yield from models_in(argument)
