"""Resource requests as templates: `-l select={nodes}:ncpus={cpus_per_node}[:ngpus={gpus_per_node}] [-l walltime={walltime}]`.

A name in braces stands for its value. A part in square brackets is left out where a value in it is unknown or 0.
The text is split into words before values are put in, so that a value is never more than a part of one word.
"""

from __future__ import annotations

import difflib
import re
import shlex
from collections.abc import Mapping
from typing import Any

OPTIONAL = re.compile(r"\[([^\[\]]*)\]")
NAME = re.compile(r"\{([^{}]*)\}")


def filled(template: str, values: Mapping[str, Any]) -> list[str]:
    """The words of a request. ValueError, with a sentence, for a name that does not exist or has no value."""
    for name in NAME.findall(template):
        if name not in values:
            near = difflib.get_close_matches(name, values, n=1)
            hint = f"did you mean {{{near[0]}}}?" if near else "valid: " + ", ".join(values)
            raise ValueError(f"the request {template!r} names {{{name}}}, which does not exist; {hint}")

    def keep(part: re.Match[str]) -> str:
        known = all(_value(values, name, template) for name in NAME.findall(part[1]))
        return part[1] if known else ""

    text = OPTIONAL.sub(keep, template)
    if any(bracket in text for bracket in "[]"):
        raise ValueError(f"the request {template!r} has square brackets that do not match")
    try:
        words = shlex.split(text)
    except ValueError as error:
        raise ValueError(f"the request {template!r} is not closed: {error}") from None
    return [_filled_word(word, values, template) for word in words]


def _filled_word(word: str, values: Mapping[str, Any], template: str) -> str:
    def put(name: re.Match[str]) -> str:
        value = _value(values, name[1], template)
        if value is None:
            raise ValueError(
                f"the request {template!r} needs {{{name[1]}}}, which this job does not have; "
                "set it, or put that part in square brackets"
            )
        return str(value)

    return NAME.sub(put, word)


def _value(values: Mapping[str, Any], name: str, template: str) -> Any:
    value = values[name]
    if isinstance(value, ValueError):
        raise ValueError(f"the request {template!r}: {value}")
    return value
