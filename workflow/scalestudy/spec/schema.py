"""JSON Schemas for editors and the reference of all keys, both generated from the spec models."""

from __future__ import annotations

import ast
import functools
import inspect
import itertools
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pydantic import BaseModel
from pydantic.json_schema import GenerateJsonSchema, JsonSchemaValue
from pydantic_core import CoreSchema
from pydantic_core.core_schema import ModelSchema

from scalestudy.files import write_text
from scalestudy.spec.base import PATTERNS, Spec, dotted_keys
from scalestudy.spec.columns import MEASURED
from scalestudy.spec.config import Config, Site
from scalestudy.spec.machine import Machine
from scalestudy.spec.run import RunSpec
from scalestudy.spec.study import StudySpec

Schema = dict[str, Any]

DIALECT = "https://json-schema.org/draft/2020-12/schema"
SCHEMAS = Path("workflow/schemas")
MODELS: dict[str, type[Spec]] = {
    "study": StudySpec,
    "run": RunSpec,
    "machine": Machine,
    "config": Config,
    "site": Site,
}


def schemas() -> dict[str, Schema]:
    """The schema of each kind of file, by name; each stands alone."""
    made = {name: {"$schema": DIALECT, **_generated(model)} for name, model in MODELS.items()}
    made["study"] = _study(made["study"], made["run"])
    return made


def write_schemas(folder: Path) -> None:
    """Write `<name>.schema.json` for each kind of file."""
    for name, schema in schemas().items():
        write_text(folder / f"{name}.schema.json", json.dumps(schema, indent=1, ensure_ascii=False) + "\n")


class _Described(GenerateJsonSchema):
    """Fields are described by the text below them in their class, not by a title.

    Pydantic can read these texts itself, but does so in every process that imports a model: an eighth of the time of a
    short command.
    """

    def field_title_should_be_set(self, schema: Any) -> bool:
        return False

    def model_schema(self, schema: ModelSchema) -> JsonSchemaValue:
        made: Schema = super().model_schema(schema)
        texts = field_texts(schema["cls"])
        for name, field in schema["cls"].model_fields.items():
            made["properties"][field.alias or name] |= {"description": texts[name]} if name in texts else {}
        return made

    def generate(self, schema: CoreSchema, mode: Any = "validation") -> JsonSchemaValue:
        made: Schema = _for_editors(super().generate(schema, mode))
        return made


def field_texts(model: type) -> dict[str, str]:
    """By field, the text below it in the source of its class or of the nearest base that has it."""
    texts: dict[str, str] = {}
    for owner in (one for one in reversed(model.__mro__) if issubclass(one, BaseModel) and one is not BaseModel):
        for field, text in itertools.pairwise(_classes(owner.__module__)[owner.__name__].body):
            match field, text:
                case ast.AnnAssign(target=ast.Name(id=name)), ast.Expr(value=ast.Constant(value=str(said))):
                    texts[name] = inspect.cleandoc(said)
    return texts


@functools.cache
def _classes(module: str) -> dict[str, ast.ClassDef]:
    """The classes of a module by name, as they are written."""
    written = ast.parse(inspect.getsource(sys.modules[module]))
    return {node.name: node for node in written.body if isinstance(node, ast.ClassDef)}


def _for_editors(schema: Any) -> Any:
    """`schema` without the parts that only OpenAPI knows."""
    if isinstance(schema, dict):
        return {key: _for_editors(value) for key, value in schema.items() if key != "discriminator"}
    return [_for_editors(value) for value in schema] if isinstance(schema, list) else schema


def _generated(model: type[Spec]) -> Schema:
    schema: Schema = model.model_json_schema(by_alias=True, schema_generator=_Described)
    return schema


def _study(study: Schema, run: Schema) -> Schema:
    """The schema of a study, whose `base` is part of a run and whose dotted keys are those of a run."""
    parts = {f"{name}Part": _part(schema) for name, schema in run["$defs"].items()}
    whole_run = {key: value for key, value in run.items() if key not in ("$schema", "$defs")}
    parts["RunPart"] = {**_part(whole_run), "description": "Keys of a run; null removes what is set below."}
    del parts["RunPart"]["properties"]["repeat"]
    defs = {**study["$defs"], **run["$defs"], **parts, "RunKey": _run_keys()}
    defs["IncludeKey"] = {"anyOf": [{"$ref": "#/$defs/RunKey"}, {"const": "repeats"}]}
    for owner in (study, defs["ScaleSpec"]):
        properties = owner["properties"]
        properties["base"] = {"$ref": "#/$defs/RunPart", "description": properties["base"]["description"]}
        for key in ("vary", "zip", "exclude"):
            properties[key] = _held_to(properties[key], "RunKey")
        properties["include"] = _held_to(properties["include"], "IncludeKey")
    scales = study["properties"]["scales"]
    scale = next(iter(scales.pop("patternProperties").values()))
    scales |= {"properties": {"mini": scale, "node": scale}, "additionalProperties": False}
    return {**study, "$defs": _reachable({**study, "$defs": {}}, defs)}


def _part(schema: Any) -> Any:
    """`schema` with nothing required and null allowed everywhere: what one layer of several may say.

    Lists are replaced as wholes, so that their items stay as they are.
    """
    if isinstance(schema, list):
        return [_part(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    part = {key: _part(value) for key, value in schema.items() if key not in ("required", "items", "properties")}
    if "items" in schema:
        part["items"] = schema["items"]
    if "$ref" in part:
        part["$ref"] += "Part"
    if "oneOf" in part:
        part["anyOf"] = part.pop("oneOf")
    if "properties" in schema:
        part["properties"] = {key: _or_null(_part(value)) for key, value in schema["properties"].items()}
    return part


def _or_null(schema: Schema) -> Schema:
    notes: Schema = {key: value for key, value in schema.items() if key in ("description", "default")}
    bare = {key: value for key, value in schema.items() if key not in notes}
    choices = bare["anyOf"] if list(bare) == ["anyOf"] else [bare]
    return {**notes, "anyOf": choices if {"type": "null"} in choices else [*choices, {"type": "null"}]}


def _run_keys() -> Schema:
    """A dotted key of a run; below `kwargs` any."""
    keys = list(dict.fromkeys(key for key in dotted_keys(RunSpec) if key != "repeat"))
    return {"anyOf": [{"enum": keys}, {"pattern": r"^(model|data)\.kwargs\."}]}


def _held_to(schema: Any, keys: str) -> Any:
    """`schema` with the keys of each map of free keys held to a definition."""
    if isinstance(schema, list):
        return [_held_to(item, keys) for item in schema]
    if not isinstance(schema, dict):
        return schema
    changed = {key: _held_to(value, keys) for key, value in schema.items()}
    return {**changed, "propertyNames": {"$ref": f"#/$defs/{keys}"}} if "additionalProperties" in changed else changed


def _reachable(schema: Schema, defs: dict[str, Schema]) -> dict[str, Schema]:
    """The definitions that `schema` needs, directly or through another."""
    needed: dict[str, Schema] = {}
    names = list(_references(schema))
    while names:
        name = names.pop()
        if name not in needed:
            needed[name] = defs[name]
            names += _references(defs[name])
    return dict(sorted(needed.items()))


def _references(schema: Any) -> Iterator[str]:
    if isinstance(schema, list):
        for item in schema:
            yield from _references(item)
    elif isinstance(schema, dict):
        for key, value in schema.items():
            if key == "$ref":
                yield value.removeprefix("#/$defs/")
            else:
                yield from _references(value)


def key_reference() -> str:
    """Every key of every kind of file as Markdown tables: key, type, default, meaning."""
    made = {name: _generated(model) for name, model in MODELS.items()}
    run, study = made["run"], made["study"]
    sections = [
        _section("`config/config.yaml`", made["config"], made["config"]),
        _section("A study: `config/studies/<name>.yaml`", study, study),
        _section("A study's `scales.mini` and `scales.node`", study["$defs"]["ScaleSpec"], study),
        _section("A study's `figures`", study["$defs"]["FigureSpec"], study),
        _section("A study's `tables`", study["$defs"]["TableSpec"], study),
        _claims(study),
        _section("A run: `base`, and dotted in `vary`, `zip`, `exclude`, `include`, `scalestudy try`", run, run),
        *_choices("model", "name", run),
        *_choices("strategy", "name", run),
        *_choices("data", "source", run),
        *_choices("faults", "kind", run),
        _section("A machine: `config/machines/<name>.yaml`", made["machine"], made["machine"]),
        _section("A site: `profiles/<profile>/site.yaml`", made["site"], made["site"]),
        _columns(),
    ]
    return "\n".join(sections)


OWN_TABLES = ("FigureSpec", "TableSpec", "Check")
"""Items of lists whose keys stand in a table of their own, or in the line of the list; those of others follow their list."""
HEAD = "| key | type | default | meaning |\n|---|---|---|---|\n"


def _section(title: str, schema: Schema, whole: Schema) -> str:
    return f"### {title}\n{schema['description']}\n\n{HEAD}{''.join(_rows(schema, whole, ''))}"


def _rows(schema: Schema, whole: Schema, prefix: str) -> Iterator[str]:
    """A row per key; maps with keys, and lists of such maps, are written out; choices have separate sections."""
    for key, value in schema["properties"].items():
        below = _map_below(value, whole)
        default = "" if below else _default(key, value, schema)
        meaning = value.get("description") or (below["description"] if below else "")
        yield _row(f"`{prefix}{key}`", "map" if below else _type(value), default, meaning)
        items = value.get("items", {}).get("$ref", "").removeprefix("#/$defs/")
        if items and items not in OWN_TABLES:
            below = whole["$defs"][items]
        if below:
            yield from _rows(below, whole, f"{prefix}{key}.")


def _map_below(value: Schema, whole: Schema) -> Schema | None:
    """The definition that a key refers to where it is one plain map, None where it is a value, a list or a choice."""
    choices = [choice for choice in value.get("anyOf", [value]) if choice != {"type": "null"}]
    if len(choices) != 1 or "$ref" not in choices[0]:
        return None
    below: Schema = whole["$defs"][choices[0]["$ref"].removeprefix("#/$defs/")]
    return below


def _choices(key: str, by: str, run: Schema) -> Iterator[str]:
    """A table for each model, strategy, source or fault."""
    value = run["properties"][key]
    for member in value["items"]["oneOf"] if "items" in value else value["anyOf"]:
        definition = run["$defs"][member["$ref"].removeprefix("#/$defs/")] if "$ref" in member else member
        if "properties" not in definition:
            continue  # the short form: names alone
        properties = dict(definition["properties"])
        choice = properties.pop(by, {})
        names = choice.get("enum", [choice["const"]] if "const" in choice else [])
        title = "your own" if not names else f"`{names[0]}`" if len(names) == 1 else "by its name in torchvision"
        yield f"#### `{key}`: {title}\n{definition['description']}\n"
        if len(names) > 1:
            yield f"`{'`, `'.join(names)}`\n"
        if properties:
            prefix = "" if "items" in value else f"{key}."
            yield HEAD + "".join(_rows({**definition, "properties": properties}, run, prefix))


def _claims(study: Schema) -> str:
    """One table for all kinds of claim: of a key that some kinds have, the meaning begins with their names."""
    members = [study["$defs"][member["$ref"].removeprefix("#/$defs/")] for member in study_claims(study)]
    names = [member["properties"]["kind"]["const"] for member in members]
    kinds = {"enum": names, "description": "How it is judged."}
    keys: dict[str, Schema] = {}
    for member in members:
        for key, value in member["properties"].items():
            keys.setdefault(key, kinds if key == "kind" else value)
    rows = []
    for key, value in keys.items():
        having = [name for name, member in zip(names, members, strict=True) if key in member["properties"]]
        owner = members[names.index(having[0])]
        without = [name for name in names if name not in having]
        prefix = "" if not without else f"Not for {without[0]}. " if len(without) == 1 else f"For {', '.join(having)}. "
        rows.append(_row(f"`{key}`", _type(value), _default(key, value, owner), prefix + value["description"]))
    said = "".join(
        f"- **{name}**: {_cell(member['description'])}\n" for name, member in zip(names, members, strict=True)
    )
    return f"### A study's `claims`\nEach is of one of these kinds.\n\n{said}\n{HEAD}{''.join(rows)}"


def study_claims(study: Schema) -> list[Schema]:
    """References to the kinds of claim."""
    members: list[Schema] = study["properties"]["claims"]["items"]["oneOf"]
    return members


def _columns() -> str:
    rows = "".join(f"| `{name}` | {c.label} | {c.unit} | {_cell(c.meaning)} |\n" for name, c in MEASURED.items())
    return (
        "### Measured columns\nFor `x`, `y`, `series`, `panel` and `values`, in addition to every dotted key of a run.\n\n"
        f"| column | as figures write it | unit | meaning |\n|---|---|---|---|\n{rows}"
    )


def _row(*cells: str) -> str:
    return f"| {' | '.join(_cell(cell) for cell in cells)} |\n"


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")


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
    """What may stand there, in words."""
    if "anyOf" in schema:
        kinds = [_type(choice) for choice in schema["anyOf"] if choice != {"type": "null"}]
        return " or ".join(dict.fromkeys(kinds))
    if "$ref" in schema or "oneOf" in schema:
        return "map"
    if "const" in schema:
        return f"`{schema['const']}`"
    if "enum" in schema:
        return ", ".join(f"`{name}`" for name in schema["enum"]) if len(schema["enum"]) <= 12 else "name"
    return _plain_type(schema)


def _plain_type(schema: Schema) -> str:
    kind = schema.get("type", "any value")
    if kind == "array":
        return f"list of {_type(schema['items'])}" if schema.get("items") else "list"
    if kind == "string" and "pattern" in schema:
        return PATTERNS[schema["pattern"]]
    signs = {"minimum": "≥", "exclusiveMinimum": ">", "maximum": "≤", "exclusiveMaximum": "<"}
    limits = ", ".join(f"{sign} {schema[limit]:,.10g}" for limit, sign in signs.items() if limit in schema)
    words = {"integer": "whole number", "number": "number", "string": "text", "boolean": "`true`, `false`"}
    return f"{words.get(kind, 'map')} {limits}".strip()
