"""JSON Schemas for editors and the reference of all keys, both from the configuration models.

python -m scalestudy.spec.schema FOLDER
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from pydantic import BaseModel
from pydantic._internal._docs_extraction import extract_docstrings_from_cls
from pydantic.json_schema import GenerateJsonSchema, JsonSchemaValue
from pydantic_core.core_schema import ModelSchema, TaggedUnionSchema

from scalestudy.claims.model import ClaimsOfDocument
from scalestudy.files import write_text
from scalestudy.spec.base import Spec
from scalestudy.spec.config import Config, Site
from scalestudy.spec.machine import Machine
from scalestudy.spec.run import RunSpec
from scalestudy.spec.study_file import StudySpec

Schema = dict[str, Any]

MODELS: dict[str, type[Spec]] = {
    "study": StudySpec,
    "claims": ClaimsOfDocument,
    "run": RunSpec,
    "machine": Machine,
    "config": Config,
    "site": Site,
}


def schemas() -> dict[str, Schema]:
    """Schema of each kind of file, by name."""
    dialect = "https://json-schema.org/draft/2020-12/schema"
    made = {name: {"$schema": dialect, **_generated(model)} for name, model in MODELS.items()}
    _add_run(made["study"])
    return made


def write_schemas(folder: Path) -> None:
    """Write `<name>.schema.json` for each kind of file."""
    for name, schema in schemas().items():
        write_text(folder / f"{name}.schema.json", json.dumps(schema, indent=1, ensure_ascii=False) + "\n")


@cache
def _attribute_docstrings(owner: type[BaseModel]) -> dict[str, str]:
    return extract_docstrings_from_cls(owner, use_inspect=True)


class _Described(GenerateJsonSchema):
    """Describe keys by the docstrings below them.

    `use_attribute_docstrings` in the models would read them in every process: an eighth of the time of a short command.
    """

    def field_title_should_be_set(self, schema: Any) -> bool:
        return False

    def tagged_union_schema(self, schema: TaggedUnionSchema) -> JsonSchemaValue:
        return {"anyOf": super().tagged_union_schema(schema)["oneOf"]}  # a labelled value is also any value

    def model_schema(self, schema: ModelSchema) -> JsonSchemaValue:
        made: Schema = super().model_schema(schema)
        texts: dict[str, str] = {}
        for owner in reversed(schema["cls"].__mro__):
            texts |= _attribute_docstrings(owner) if issubclass(owner, BaseModel) else {}
        for name, of in schema["cls"].model_fields.items():
            made["properties"][of.alias or name] |= {"description": texts[name]} if name in texts else {}
        return made


class _Partial(_Described):
    """The same with nothing required, and null for each key."""

    def model_schema(self, schema: ModelSchema) -> JsonSchemaValue:
        made: Schema = super().model_schema(schema)
        made.pop("required", None)
        for key, value in made["properties"].items():
            notes = {note: value[note] for note in ("description", "default") if note in value}
            made["properties"][key] = {**notes, "anyOf": [value, {"type": "null"}]}
        return made


def _generated(model: type[Spec], generator: type[GenerateJsonSchema] = _Described) -> Schema:
    return model.model_json_schema(by_alias=True, schema_generator=generator)


def _add_run(study: Schema) -> None:
    """Let `base` hold any part of a run, with null for removed keys."""
    part = _generated(RunSpec, _Partial)
    study["$defs"] |= part.pop("$defs")
    study["$defs"]["Part"] = {**part, "description": "Keys of a run; null removes what is set below."}
    del part["properties"]["repeat"]
    for owner in (study, study["$defs"]["ScaleSpec"]):
        properties = owner["properties"]
        properties["base"] = {"$ref": "#/$defs/Part", "description": properties["base"]["description"]}


@dataclass(frozen=True)
class Key:
    """A key of some kind of file, as Markdown: its name, values, default (`needed` where it has none) and meaning."""

    name: str
    takes: str
    default: str
    meaning: str


@dataclass
class Section:
    """A kind of file, or one choice such as a strategy."""

    title: str
    text: str
    keys: list[Key] = field(default_factory=list)
    choice: tuple[str, str] | None = None
    """`("strategy", "`ring`")` for one of several choices of a key."""


def key_reference() -> list[Section]:
    """Every key of every kind of file."""
    made = {name: _generated(model) for name, model in MODELS.items()}
    run, study = made["run"], made["study"]

    def section(title: str, whole: Schema, part: str = "") -> Section:
        schema = whole["$defs"][part] if part else whole
        return Section(title, schema["description"], list(_rows(schema, whole, "")))

    return [
        section("`config/config.yaml`", made["config"]),
        section("A study: `config/studies/<name>.yaml`", study),
        section("A study's `figures`", study, "FigureSpec"),
        section("A study's `tables`", study, "TableSpec"),
        *_choices("claims", study),
        section("A run: `base`, and dotted in `vary`, `zip`, `exclude`, `include`, `scalestudy try`", run),
        *(choice for key in ("model", "strategy", "data", "faults") for choice in _choices(key, run)),
        section("A machine: `config/machines/<name>.yaml`", made["machine"]),
        section("A site: `profiles/<profile>/site.yaml`", made["site"]),
    ]


OWN_TABLES = ("FigureSpec", "TableSpec", "Check")
"""Items of lists that have a section of their own, or stand in the line of the list."""


def _rows(schema: Schema, whole: Schema, prefix: str) -> Iterator[Key]:
    """The keys of a map; those of a plain map in it, or of a list of such maps, follow it."""
    for key, value in schema["properties"].items():
        members = [each for each in _members(value) if each != {"type": "null"}]
        below = _resolved(members[0], whole) if len(members) == 1 and "$ref" in members[0] else None
        default = "" if below else _default(key, value, schema)
        meaning = value.get("description") or (below["description"] if below else "")
        yield Key(prefix + key, "map" if below else _type(value), default, " ".join(meaning.split()))
        items = members[0].get("items", {}) if len(members) == 1 else {}
        if "$ref" in items and items["$ref"].rpartition("/")[2] not in OWN_TABLES:
            below = _resolved(items, whole)
        if below:
            yield from _rows(below, whole, f"{prefix}{key}.")


def _members(schema: Schema) -> list[Schema]:
    """Members of a union and of the unions in it; a schema that is none itself."""
    return [member for each in schema.get("anyOf", []) for member in _members(each)] or [schema]


def _resolved(schema: Schema, whole: Schema) -> Schema:
    return dict(whole["$defs"][schema["$ref"].rpartition("/")[2]]) if "$ref" in schema else schema


def _choices(key: str, whole: Schema) -> Iterator[Section]:
    """A section for each model, strategy, source, fault or kind of claim."""
    value = whole["properties"][key]
    for member in (_resolved(member, whole) for member in _members(value.get("items", value))):
        if "properties" not in member:
            continue
        properties = dict(member["properties"])
        by = next((name for name in ("kind", "name", "source") if name in properties), "")
        names = _names(properties.pop(by, {}))
        title = f"`{names[0]}`" if len(names) == 1 else "by its name in torchvision" if names else "your own"
        text = f"{member['description']}\n\n`{'`, `'.join(names)}`" if len(names) > 1 else member["description"]
        keys = _rows({**member, "properties": properties}, whole, "" if "items" in value else f"{key}.")
        yield Section(f"`{key}`: {title}", text, list(keys), (key, title))


def _names(schema: Schema) -> list[str]:
    return list(schema.get("enum", [schema["const"]] if "const" in schema else []))


def _default(key: str, value: Schema, schema: Schema) -> str:
    if key in schema.get("required", ()):
        return "needed"
    default = value.get("default")
    if isinstance(default, dict):  # of a choice: only what it chooses
        default = default.get("name", default.get("source"))
    if default is None or default in ("", [], {}):
        return ""
    return f"`{default}`" if isinstance(default, str) else f"`{json.dumps(default, ensure_ascii=False)}`"


def _type(schema: Schema) -> str:
    """Allowed values in words."""
    members = _members(schema)
    if members != [schema]:
        return " or ".join(dict.fromkeys(_type(each) for each in members if each != {"type": "null"}))
    if names := _names(schema):
        return ", ".join(f"`{name}`" for name in names) if len(names) <= 12 else "name"
    kind = schema.get("type", "map" if "$ref" in schema else "any value")
    if kind == "array":
        return f"list of {_type(schema['items'])}" if schema.get("items") else "list"
    signs = {"minimum": "≥", "exclusiveMinimum": ">", "maximum": "≤", "exclusiveMaximum": "<"}
    limits = ", ".join(f"{sign} {schema[limit]:,.10g}" for limit, sign in signs.items() if limit in schema)
    words = {"integer": "whole number", "number": "number", "string": "text", "boolean": "`true`, `false`"}
    return f"{words.get(kind, kind if kind == 'any value' else 'map')} {limits}".strip()


if __name__ == "__main__":
    write_schemas(Path(sys.argv[1]))
