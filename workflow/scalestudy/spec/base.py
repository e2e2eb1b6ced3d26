"""The frozen base of every spec model, and the translation of its errors into sentences with places."""

from __future__ import annotations

import types
from collections.abc import Iterator, Sequence
from typing import Annotated, Any, Literal, TypeVar, Union, get_args, get_origin

from pydantic import BaseModel, ConfigDict, ValidationError

from scalestudy.errors import Problem, nearest
from scalestudy.files import canonical_json

Loc = tuple[str | int, ...]
M = TypeVar("M", bound="Spec")


class Spec(BaseModel):
    """A frozen description: unknown keys are errors, types are strict, NaN is refused."""

    model_config = ConfigDict(
        frozen=True, extra="forbid", strict=True, allow_inf_nan=False, populate_by_name=True, use_attribute_docstrings=True
    )

    def plain(self) -> dict[str, Any]:
        """The keys that differ from their defaults, as plain data: what is hashed, stored and read again."""
        return self.model_dump(mode="json", by_alias=True, exclude_none=True, exclude_defaults=True)

    def full(self) -> dict[str, Any]:
        """All keys, defaults included, as plain data."""
        return self.model_dump(mode="json", by_alias=True)


def parse(model: type[M], data: Any) -> tuple[M | None, list[Problem]]:
    """`data` (plain YAML or JSON data) as `model`, or what is wrong with it."""
    try:
        return model.model_validate_json(canonical_json(data)), []
    except ValidationError as error:
        return None, list(problems(model, data, error))


def problems(model: type[Spec], data: Any, error: ValidationError) -> Iterator[Problem]:
    """Each pydantic error as a path that exists in `data` (or its missing key), a sentence and a remedy."""
    for item in error.errors(include_url=False, include_context=True):
        path, kind = _path_in(data, item["loc"]), item["type"]
        value = _short(item.get("input"))
        if kind == "extra_forbidden":
            yield Problem(path, f"unknown key `{path[-1]}`", nearest(str(path[-1]), _keys_at(model, data, path[:-1])))
        elif kind == "missing":
            yield Problem(path, f"key `{path[-1]}` is missing", "add it")
        elif kind in ("union_tag_invalid", "union_tag_not_found", "literal_error", "enum"):
            context = item.get("ctx", {})
            expected = [word.strip(" '\"") for word in context.get("expected_tags", context.get("expected", "")).replace(" or ", ", ").split(",")]
            given = context.get("tag", item.get("input"))
            yield Problem(path, f"{_short(given)} is not valid here", nearest(str(given), filter(None, expected)))
        elif kind in ("value_error", "assertion_error"):
            yield Problem(path, str(item.get("ctx", {}).get("error", item["msg"])))
        else:
            sentence = item["msg"][0].lower() + item["msg"][1:]
            yield Problem(path, f"value {value} is wrong: {sentence}")


def _short(value: Any) -> str:
    text = canonical_json(value) if not isinstance(value, str) else f"`{value}`"
    return text if len(text) <= 60 else text[:57] + "..."


def _path_in(data: Any, loc: Loc) -> Loc:
    """`loc` without the names of union members that pydantic puts between the keys."""
    path: list[str | int] = []
    for position, part in enumerate(loc):
        last = position == len(loc) - 1
        if isinstance(data, dict) and isinstance(part, str):
            if part in data:
                data = data[part]
            elif not last:
                continue
            elif not _looks_like_key(part):
                continue
            path.append(part)
        elif isinstance(data, list) and isinstance(part, int) and part < len(data):
            data = data[part]
            path.append(part)
    return tuple(path)


def _looks_like_key(part: str) -> bool:
    return part.isidentifier()


def _keys_at(model: type[Spec], data: Any, path: Loc) -> set[str]:
    """The keys that the models standing at `path` know; of a union, those of the member that `data` chose."""
    models: list[type[Spec]] = [model]
    for part in path:
        data = data[part] if isinstance(data, (dict, list)) else None
        if isinstance(part, int):
            continue
        models = [found for candidate in models for found in _models_of_key(candidate, part)]
    chosen = [m for m in models if _tags(m) and isinstance(data, dict) and any(data.get(k) == v for k, v in _tags(m))]
    return {name for m in chosen or models for name in key_names(m)}


def _tags(model: type[Spec]) -> list[tuple[str, str]]:
    return [
        (field.alias or name, value)
        for name, field in model.model_fields.items()
        if get_origin(field.annotation) is Literal
        for value in get_args(field.annotation)
        if name in ("name", "source")
    ]


def key_names(model: type[Spec]) -> list[str]:
    """The keys of a model as they stand in YAML."""
    return [field.alias or name for name, field in model.model_fields.items()]


def _models_of_key(model: type[Spec], key: str) -> list[type[Spec]]:
    for name, field in model.model_fields.items():
        if key in (name, field.alias):
            return list(models_in(field.annotation))
    return []


def models_in(annotation: Any) -> Iterator[type[Spec]]:
    """All Spec models that an annotation mentions."""
    if isinstance(annotation, type) and issubclass(annotation, Spec):
        yield annotation
    elif get_origin(annotation) in (Union, types.UnionType, tuple, dict, list, Annotated):
        arguments: Sequence[Any] = get_args(annotation)
        for argument in arguments:
            yield from models_in(argument)
