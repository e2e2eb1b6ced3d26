"""Frozen base of the configuration models, and validation errors as sentences with key paths."""

from __future__ import annotations

import difflib
import functools
import json
import types
from collections.abc import Iterable, Iterator
from typing import Annotated, Any, Literal, TypeVar, Union, get_args, get_origin

from pydantic import BaseModel, ConfigDict, ValidationError
from pydantic_core import ErrorDetails, PydanticCustomError

from scalestudy.errors import Problem
from scalestudy.spec.words import SYNONYMS

KeyPath = tuple[str | int, ...]
"""Keys and positions from the top of a document down to one value."""
M = TypeVar("M", bound="Spec")
MAX_LISTED = 20
"""Valid words that a remedy lists where none of them is near."""
KWARGS = ("model.kwargs.", "data.kwargs.")
"""Beginnings of dotted keys that may end in anything."""


class Spec(BaseModel):
    """Frozen model: strict types, no unknown keys, no NaN."""

    model_config = ConfigDict(
        frozen=True,
        extra="forbid",
        strict=True,
        allow_inf_nan=False,
        populate_by_name=True,
    )

    def plain(self) -> dict[str, Any]:
        """Keys that differ from their defaults, as plain data: hashed, stored and read again."""
        return self.model_dump(mode="json", by_alias=True, exclude_none=True, exclude_defaults=True)

    def full(self) -> dict[str, Any]:
        """All keys, defaults included, as plain data."""
        return self.model_dump(mode="json", by_alias=True)


def parse(model: type[M], data: Any) -> tuple[M | None, list[Problem]]:
    """Validate plain YAML or JSON data. Returns the model, or None and the problems."""
    try:
        return model.model_validate_json(json.dumps(data, default=str)), []
    except ValidationError as error:
        return None, list(_problems(model, data, error))


def refused(what: str, remedy: str = "", key: str | None = None) -> PydanticCustomError:
    """Error of a validator: sentence, remedy, and the key below the validated field."""
    return PydanticCustomError("refused", "{what}", {"what": what, "remedy": remedy, "key": key})


def _problems(model: type[BaseModel], data: Any, error: ValidationError) -> Iterator[Problem]:
    """One problem per place; the members of a union report theirs at the same one."""
    places: dict[KeyPath, list[ErrorDetails]] = {}
    for item in error.errors(include_url=False):
        places.setdefault(_path_in(data, item), []).append(item)
    for path, items in places.items():
        if not any(len(other) > len(path) and other[: len(path)] == path for other in places):
            yield Problem(path, _sentence(items), _remedy(model, path, items[0]))


def _path_in(data: Any, item: ErrorDetails) -> KeyPath:
    """Location of an error without the tags of union members, which are no keys of the data."""
    path: list[str | int] = []
    context = item.get("ctx", {})
    for part in item["loc"]:
        is_key = part in data if isinstance(data, dict) else isinstance(data, list) and isinstance(part, int)
        if is_key:
            data = data[part]
            path.append(part)
    if item["type"] == "missing":
        path.append(item["loc"][-1])
    elif isinstance(data, dict) and "discriminator" in context:
        path.append(context["discriminator"].strip("'"))
    elif item["type"] == "refused" and context["key"]:
        path.append(context["key"])
    return tuple(path)


def _sentence(items: list[ErrorDetails]) -> str:
    """Pydantic's messages in the words of YAML, with the value."""
    item = items[0]
    kind, context = item["type"], item.get("ctx", {})
    if kind in ("missing", "union_tag_not_found"):
        return "key is missing"
    if kind == "extra_forbidden":
        return "unknown key"
    if kind == "refused":
        return str(context["what"])
    if kind == "value_error":
        return str(context["error"])
    if kind == "union_tag_invalid":
        return f"unknown name {shown(context['tag'])}"
    messages = dict.fromkeys(each["msg"][0].lower() + each["msg"][1:] for each in items)
    what = " or ".join(messages).replace(" or input should be ", " or ")
    return f"{what.replace('valid array', 'list').replace('an object', 'a map')}, not {shown(item['input'])}"


def _remedy(model: type[BaseModel], path: KeyPath, item: ErrorDetails) -> str:
    """Nearest valid word of an unknown key or value."""
    kind, context = item["type"], item.get("ctx", {})
    if kind == "extra_forbidden":
        key, level = str(path[-1]), _keys_at(model, item["loc"][:-1])
        head, dot, rest = key.partition(".")
        if dot and head in level:
            return f"write `{head}: {{{printable(rest)}: …}}`"
        here = ".".join(map(str, path))
        return suggest(key, level, (name for name in dotted_keys(model) if name != here))
    if kind == "refused":
        return str(context["remedy"])
    if kind in ("union_tag_invalid", "literal_error"):
        valid = context["expected_tags" if "tag" in context else "expected"]
        word = str(context.get("tag", item["input"]))
        return suggest(word, (name.strip(" '") for name in valid.replace(" or ", ", ").split(",")))
    return ""


def suggest(word: str, valid: Iterable[str], deeper: Iterable[str] = ()) -> str:
    """Remedy for an unknown word: its synonym, the nearest valid words, or all of them where they are few.

    Words that only contain it are searched in `deeper` too.
    """
    names = sorted(set(valid))
    more = sorted({*names, *deeper})
    last = word.rpartition(".")[2]
    near = [name for name in SYNONYMS.get(last.lower().replace("-", "_"), ()) if name in more]
    near = near or difflib.get_close_matches(word, names, n=1, cutoff=0.6)
    near = near or [name for name in more if name.endswith(f".{last}")]
    near = near or [name for name in more if last in name]
    if near:
        return f"did you mean {' or '.join(f'`{name}`' for name in near[:3])}?"
    return f"valid: {', '.join(names)}" if 0 < len(names) <= MAX_LISTED else "`scalestudy check --keys` lists them"


def shown(value: Any) -> str:
    """A value as messages quote it: on one line, printable, not too long."""
    return f"`{printable(value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str))}`"


def printable(text: str) -> str:
    """`text` with line breaks and control characters escaped, cut at 60 characters."""
    text = text if text.isprintable() else text.encode("unicode_escape").decode()
    return text if len(text) <= 60 else text[:57] + "..."


def _keys_at(model: type[BaseModel], location: KeyPath) -> set[str]:
    """Keys of the models at a location; a tag in it chooses one member of a union."""
    models = [model]
    for part in location:
        if chosen := [each for each in models if part in _tags(each)]:
            models = chosen
        elif fields := [field for each in models for key, field in _fields(each).items() if key == part]:
            models = [below for field in fields for below in models_in(field.annotation)]
    return {key for each in models for key in _fields(each)}


def _tags(model: type[BaseModel]) -> list[str]:
    """Values by which a union chooses a model."""
    required = (field.annotation for field in model.model_fields.values() if field.is_required())
    return [tag for annotation in required if get_origin(annotation) is Literal for tag in get_args(annotation)]


def _fields(model: type[BaseModel]) -> dict[str, Any]:
    """Fields of a model by their keys in YAML."""
    return {field.alias or name: field for name, field in model.model_fields.items()}


@functools.cache
def dotted_keys(model: type[BaseModel]) -> tuple[str, ...]:
    """Every key of a model and of the models below it, dotted; of a union, those of all its members."""
    found: list[str] = []
    for key, field in _fields(model).items():
        found.append(key)
        found += [f"{key}.{deeper}" for below in models_in(field.annotation) for deeper in dotted_keys(below)]
    return tuple(dict.fromkeys(found))


def key_problem(model: type[BaseModel], key: str) -> Problem | None:
    """The problem of a dotted key that `model` does not have."""
    if key in dotted_keys(model) or key.startswith(KWARGS):
        return None
    return Problem((key,), f"unknown key `{printable(key)}`", suggest(key, dotted_keys(model)))


def models_in(annotation: Any) -> Iterator[type[BaseModel]]:
    """All models that an annotation mentions."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    elif get_origin(annotation) in (Union, types.UnionType, tuple, dict, list, Annotated):
        for argument in get_args(annotation):
            yield from models_in(argument)
