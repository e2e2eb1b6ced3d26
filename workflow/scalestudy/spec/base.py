"""Frozen base of the configuration models; validation errors in pydantic's words, with key path and remedy."""

from __future__ import annotations

import difflib
import functools
import json
import re
import types
from collections.abc import Iterable, Iterator
from typing import Annotated, Any, Literal, TypeVar, Union, get_args, get_origin

from pydantic import BaseModel, ConfigDict, Field, ValidationError
from pydantic_core import ErrorDetails, PydanticCustomError

from scalestudy.errors import Problem

KeyPath = tuple[str | int, ...]
"""Keys and positions from the top of a document down to one value."""
NAME = r"^[a-z][a-z0-9_]{0,63}$"
Name = Annotated[str, Field(pattern=NAME)]
"""Name of a study, machine, campaign, figure, table or claim."""
Scale = Literal["mini", "node", "paper"]
SCALES: tuple[Scale, ...] = get_args(Scale)
M = TypeVar("M", bound="Spec")
OTHER_TOOLS = {
    "amp": "autocast",
    "backend": "strategy",
    "batch_size": "batch.per_rank",
    "bf16": "bfloat16",
    "dataset": "data.source",
    "ddp": "allreduce",
    "devices": "ranks",
    "fp16": "float16",
    "gpus": "ranks",
    "gradient_accumulation_steps": "batch.accumulate",
    "lr": "optimiser.learning_rate",
    "max_epochs": "train.epochs",
    "mixed_precision": "autocast",
    "nnodes": "nodes",
    "nproc_per_node": "ranks_per_node",
    "num_workers": "loader.workers",
    "precision": "dtype",
    "repeats": "looks",  # of a claim: a study has `repeats` itself
    "world_size": "ranks",
}
"""Words of other tools for keys and names of a run; messages suggest ours."""
SENTENCES = {
    "missing": "key is missing",
    "union_tag_not_found": "key is missing",
    "extra_forbidden": "unknown key",
}


class Spec(BaseModel):
    """Frozen model: strict types, no unknown keys, no NaN."""

    model_config = ConfigDict(
        frozen=True, extra="forbid", strict=True, allow_inf_nan=False, populate_by_name=True, defer_build=True
    )

    def to_dict(self) -> dict[str, Any]:
        """Keys that differ from their defaults, as plain data: hashed, stored and read again."""
        return self.model_dump(mode="json", by_alias=True, exclude_none=True, exclude_defaults=True)

    def to_full_dict(self) -> dict[str, Any]:
        """All keys, defaults included, as plain data."""
        return self.model_dump(mode="json", by_alias=True)


def parse(model: type[M], data: Any) -> tuple[M | None, list[Problem]]:
    """Validate plain YAML or JSON data. Returns the model, or None and the problems."""
    try:
        return model.model_validate_json(json.dumps(data, default=str)), []
    except ValidationError as error:
        places: dict[KeyPath, list[ErrorDetails]] = {}  # the members of a union report theirs at the same one
        for item in error.errors(include_url=False):
            places.setdefault(_path_in(data, item), []).append(item)
        innermost = {
            path: items
            for path, items in places.items()
            if not any(len(other) > len(path) and other[: len(path)] == path for other in places)
        }
        faults = [Problem(path, _sentence(items), _remedy(model, path, items[0])) for path, items in innermost.items()]
        return None, faults


def refused(what: str, remedy: str = "", key: str | None = None) -> PydanticCustomError:
    """Error of a validator: sentence, remedy, and the key below the validated field."""
    return PydanticCustomError("refused", "{what}", {"what": what, "remedy": remedy, "key": key})


def _path_in(data: Any, item: ErrorDetails) -> KeyPath:
    """Location of an error without the tags of union members, which are no keys of the data."""
    path: list[str | int] = []
    context = item.get("ctx", {})
    for part in item["loc"]:
        if part in data if isinstance(data, dict) else isinstance(data, list) and isinstance(part, int):
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
    kind, context = items[0]["type"], items[0].get("ctx", {})
    if kind == "union_tag_invalid":
        return f"unknown name {shown(context['tag'])}"
    if kind == "refused" or kind in SENTENCES:
        return SENTENCES.get(kind, items[0]["msg"])
    messages = dict.fromkeys(each["msg"][0].lower() + each["msg"][1:] for each in items)
    what = " or ".join(messages).replace(" or input should be ", " or ")
    return f"{what.replace('valid array', 'list').replace('an object', 'a map')}, not {shown(items[0]['input'])}"


def _remedy(model: type[BaseModel], path: KeyPath, item: ErrorDetails) -> str:
    """Nearest valid word of an unknown key or value."""
    kind, context = item["type"], item.get("ctx", {})
    if kind == "refused":
        return str(context["remedy"])
    if kind in ("union_tag_invalid", "literal_error"):
        valid = context.get("expected_tags") or context["expected"]
        return suggest(str(context.get("tag", item["input"])), re.findall(r"'(.*?)'", valid))
    if kind in ("int_type", "float_type") and str(item["input"]).isdigit():
        return "leave out its quotes"
    if kind != "extra_forbidden":
        return ""
    model_keys = dotted_keys(model)
    words = {word for key in model_keys for word in key.split(".")}
    above = "".join(f"{part}." for part in path[:-1] if part in words)
    head, dot, rest = str(path[-1]).partition(".")
    if dot and above + head in model_keys:
        return f"write `{head}: {{{printable(rest)}: …}}`"
    level = {key.removeprefix(above) for key in model_keys if key.startswith(above)}
    others = [key for key in model_keys if key != above + head]
    is_choice = len(item["loc"]) > len(path)  # its members have different keys
    return suggest(str(path[-1]), {key for key in level if "." not in key} - {head}, others, 0 if is_choice else 20)


def suggest(word: str, valid: Iterable[str], deeper: Iterable[str] = (), max_listed: int = 20) -> str:
    """Remedy for an unknown word: a synonym, the nearest valid words, or all of them where they are few.

    Words that only contain it are searched in `deeper` too.
    """
    names = sorted(set(valid))
    more = sorted({*names, *deeper})
    last = word.rpartition(".")[2]
    near = [name for name in more if name == OTHER_TOOLS.get(last.lower().replace("-", "_"))]
    near = near or difflib.get_close_matches(word, names, n=1, cutoff=0.6)
    near = near or [name for name in more if name.endswith(f".{last}")] or [name for name in more if last in name]
    if near:
        return f"did you mean {' or '.join(f'`{name}`' for name in near[:3])}?"
    return f"valid: {', '.join(names)}" if 0 < len(names) <= max_listed else "`scalestudy check --keys` lists them"


def shown(value: Any) -> str:
    """A value as messages quote it: on one line, printable, not too long."""
    return f"`{printable(value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str))}`"


def printable(text: str) -> str:
    """`text` with line breaks and control characters escaped, cut at 60 characters."""
    text = text if text.isprintable() else text.encode("unicode_escape").decode()
    return text if len(text) <= 60 else text[:57] + "..."


@functools.cache
def dotted_keys(model: type[BaseModel]) -> tuple[str, ...]:
    """Every key of a model and of the models below it, dotted; of a union, those of all its members."""
    keys: list[str] = []
    for name, field in model.model_fields.items():
        key = field.alias or name
        keys += [key, *(f"{key}.{deeper}" for below in _models_in(field.annotation) for deeper in dotted_keys(below))]
    return tuple(dict.fromkeys(keys))


def _models_in(annotation: Any) -> Iterator[type[BaseModel]]:
    """All models that an annotation mentions."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    elif get_origin(annotation) in (Union, types.UnionType, tuple, dict, list, Annotated):
        for argument in get_args(annotation):
            yield from _models_in(argument)
