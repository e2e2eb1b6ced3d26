"""Snakemake 9.27 quotes its command lines with Python's `repr`, which is no shell quoting: repaired, or refused.

`repr` of a value with an apostrophe has double quotes, between which a shell still expands `$` and backticks; one with
both quotes, a backslash or a line break comes out as other text.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterable

ACTIVE = "$`\\"


def requoted(command: str, values: Iterable[str]) -> str:
    """The command with these values quoted for a shell.

    ValueError where something active is left: a value that is not among them, which the shell would change.
    """
    rest = command
    for value in sorted(set(values), key=len, reverse=True):
        # A value with quotes of its own at both ends is taken by Snakemake for one that is quoted already.
        command = command.replace(repr(value), shlex.quote(value))
        rest = rest.replace(repr(value), "")
    if any(character in rest for character in ACTIVE):
        at = min(rest.find(character) for character in ACTIVE if character in rest)
        raise ValueError(
            f"a name, path or option of this job cannot be handed on safely, near {rest[max(0, at - 30) : at + 30]!r}: "
            "it has a dollar sign, backtick or backslash"
        )
    return command
