"""What a site charges for a job, as a formula over named values: read as arithmetic, never executed as code."""

from __future__ import annotations

import ast
import math
import operator
from collections.abc import Callable, Mapping
from typing import Annotated, Any

from pydantic import AfterValidator

from scalestudy.spec.base import refused

NAMES = ("used_s", "requested_s", "nodes", "gpus", "cores")
"""Seconds used and requested by one job; its nodes, and the GPUs and cores that it has to itself, over all nodes."""
OPERATORS: Mapping[type, Callable[..., Any]] = {
    ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.Div: operator.truediv,
    ast.USub: operator.neg, ast.UAdd: operator.pos,
}  # fmt: skip
FUNCTIONS: Mapping[str, Callable[..., Any]] = {"min": min, "max": max, "ceil": math.ceil, "floor": math.floor}
LONGEST = 500
REMEDY = f"a formula has numbers, + - * /, brackets, {', '.join(FUNCTIONS)}, and {', '.join(NAMES)}"


def charge(text: str, values: Mapping[str, Any], functions: Mapping[str, Callable[..., Any]] = FUNCTIONS) -> Any:
    """The formula's value. ValueError, with a sentence, for anything that is not arithmetic over NAMES."""
    try:
        if len(text) > LONGEST:
            raise ValueError(f"a formula has at most {LONGEST} characters")
        return _value(ast.parse(text.strip(), mode="eval").body, values, functions)
    except (SyntaxError, RecursionError, MemoryError):
        raise ValueError(f"`{text[:80]}` is not a formula") from None


def _value(node: ast.expr, values: Mapping[str, Any], functions: Mapping[str, Callable[..., Any]]) -> Any:
    match node:
        case ast.Constant(value=bool()):
            raise ValueError(f"`{node.value!r}` is not a number")
        case ast.Constant(value=int() | float()):
            return float(node.value)  # type: ignore[arg-type]
        case ast.Name() if node.id in values:
            return values[node.id]
        case ast.Name():
            raise ValueError(f"there is no value `{node.id}`")
        case ast.BinOp() if type(node.op) in OPERATORS:
            one, other = (_value(part, values, functions) for part in (node.left, node.right))
            return OPERATORS[type(node.op)](one, other)
        case ast.UnaryOp() if type(node.op) in OPERATORS:
            return OPERATORS[type(node.op)](_value(node.operand, values, functions))
        case ast.Call(func=ast.Name(id=name), keywords=[]) if name in functions and len(node.args) == _arguments(name):
            return functions[name](*(_value(one, values, functions) for one in node.args))
    raise ValueError(f"`{ast.unparse(node)[:80]}` is not arithmetic")


def _arguments(function: str) -> int:
    return 2 if function in ("min", "max") else 1


def _checked(text: str) -> str:
    try:
        values = dict.fromkeys(NAMES, 1.0) | {"used_s": 1800.0, "requested_s": 3600.0}
        charge(text, values | {"gpus": 0.0})
        found = charge(text, values)
    except (ValueError, ZeroDivisionError, OverflowError) as error:
        raise refused(f"{error}", REMEDY) from None
    if not math.isfinite(found) or found < 0:
        raise refused(f"half an hour of an hour on one node would be charged as {found}", REMEDY)
    return text


Formula = Annotated[str, AfterValidator(_checked)]
"""A formula that was checked when it was read."""
