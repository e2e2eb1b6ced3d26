"""A part of a run that is one of many by name: a strategy, a model, a data source."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, get_args, get_origin

from pydantic import GetCoreSchemaHandler, GetJsonSchemaHandler
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema, PydanticCustomError, core_schema

from scalestudy.errors import nearest
from scalestudy.spec.base import Spec, refused, shown
from scalestudy.spec.synonyms import meant_values

OWN = "{import: file:Class} from config/extensions/"
FEW = 12
SHORT, REFUSED = "<short>", "<refused>"


@dataclass(frozen=True)
class Choice:
    """In `Annotated` with a union of models: the value of `key` says which member it is, `import` the user's own.

    With `short`, `allreduce` stands for `{name: allreduce}`. `many` stands for the names of a member that has
    too many to list.
    """

    what: str
    key: str
    short: bool = False
    many: str = ""

    def __get_pydantic_core_schema__(self, union: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        members: tuple[type[Spec], ...] = get_args(union)
        by_name = {name: member for member in members for name in self._names(member)}
        own = next((member for member in members if "import_" in member.model_fields), None)

        def tag(value: Any) -> str:
            if isinstance(value, Spec):
                return type(value).__name__
            if isinstance(value, str) and self.short and value in by_name:
                return SHORT
            if isinstance(value, dict) and "import" in value and own:
                return own.__name__
            name = value.get(self.key) if isinstance(value, dict) else None
            return by_name[name].__name__ if isinstance(name, str) and name in by_name else REFUSED

        def from_short(name: str) -> Spec:
            return by_name[name].model_validate({self.key: name})

        def refuse(value: Any) -> Any:
            listed = [
                ", ".join(names) if len(names) <= FEW else self.many for names in map(self._names, members) if names
            ]
            raise self._refusal(value, list(by_name), ", ".join(listed) + (f", or {OWN}" if own else ""))

        return core_schema.tagged_union_schema(
            {
                **{member.__name__: handler.generate_schema(member) for member in members},
                SHORT: core_schema.no_info_plain_validator_function(from_short),
                REFUSED: core_schema.no_info_plain_validator_function(refuse),
            },
            discriminator=tag,
        )

    def __get_pydantic_json_schema__(self, schema: Any, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        members = [handler(choice) for tag, choice in schema["choices"].items() if tag not in (SHORT, REFUSED)]
        keys = [handler.resolve_ref_schema(member)["properties"].get(self.key, {}) for member in members]
        names = [name for key in keys for name in key.get("enum", [key["const"]] if "const" in key else [])]
        return {"anyOf": [{"enum": names}, *members] if self.short else members}

    def _names(self, member: type[Spec]) -> tuple[str, ...]:
        field = member.model_fields.get(self.key)
        return get_args(field.annotation) if field and get_origin(field.annotation) is Literal else ()

    def _refusal(self, value: Any, names: list[str], listed: str) -> PydanticCustomError:
        """Why `value` is none of the members, and what is."""
        valid = f"valid: {listed}"
        if not isinstance(value, (dict, str) if self.short else dict):
            like = f"write `{{{self.key}: {value}}}`" if value in names else valid
            kinds = "a name or a map of keys to values" if self.short else "a map of keys to values"
            return refused(f"must be {kinds}, not {shown(value)}", like)
        name = value.get(self.key) if isinstance(value, dict) else value
        if name is None:
            return refused(f"the {self.what} has no `{self.key}`", valid)
        near = meant_values(str(name), names) or nearest(str(name), names)
        key = self.key if isinstance(value, dict) else None
        return refused(f"there is no {self.what} {shown(name)}", valid if near.startswith("valid: ") else near, key)
