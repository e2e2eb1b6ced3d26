"""The `scheduler:` section of a site file, checked with sentences."""

from __future__ import annotations

import difflib
import re
import shlex
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Settings:
    """How jobs are submitted at one site."""

    kind: str
    """`slurm`, `sge` or `pbs`."""
    account: str | None = None
    """What is charged: Slurm `-A`, PBS and Grid Engine `-A` (a project goes into `options`: `-P name`)."""
    queue: str | None = None
    """The queue or partition of jobs that name none with their resource `queue`."""
    request: str | None = None
    """Template of the resource request, in place of the system's own; README.md has the notation."""
    options: tuple[str, ...] = ()
    """Further words of the submit line."""
    setup: tuple[str, ...] = ()
    """Shell lines that run first in every job: modules, conda, a virtual environment."""
    wrapper: tuple[str, ...] = ()
    """Words before the command of every job, such as `apptainer exec image.sif`."""
    environments: Mapping[int | None, str] = field(default_factory=dict)
    """Grid Engine: by ranks on a node, the parallel environment that deals so many slots to a host; None: any number."""


KEYS = ("kind", "account", "queue", "request", "options", "setup", "wrapper", "environments")
ANY = "any"
"""Key of `environments` for numbers of ranks on a node that it does not have."""


def read_settings(given: Mapping[str, Any], kinds: tuple[str, ...]) -> Settings:
    """Plain YAML data as settings. ValueError says what is wrong, the value, and what is valid."""
    if not isinstance(given, Mapping):
        raise ValueError(f"`scheduler` must be a map of keys to values, not {given!r}")
    for key in given:
        if key not in KEYS:
            raise ValueError(f"`scheduler` has no key `{key}`; {_nearest(str(key), KEYS)}")
    kind = given.get("kind")
    if kind not in kinds:
        raise ValueError(
            f"`scheduler.kind` must be one of {', '.join(kinds)}"
            + (f", not {kind!r}; {_nearest(str(kind), kinds)}" if kind is not None else "; it is missing")
        )
    return Settings(
        kind=kind,
        account=_name(given, "account"),
        queue=_name(given, "queue"),
        request=_text(given, "request"),
        options=_words(given, "options"),
        setup=_lines(given, "setup"),
        wrapper=_words(given, "wrapper"),
        environments=_environments(given),
    )


def checked_word(value: str, what: str) -> str:
    """A name that is one word of a submit line and cannot be taken for an option."""
    if not value or value.startswith("-") or any(c.isspace() or ord(c) < 32 or ord(c) == 127 for c in value):
        raise ValueError(f"{what} {value!r} must be one word that does not begin with a dash")
    return value


def _text(given: Mapping[str, Any], key: str) -> str | None:
    value = given.get(key)
    if value is None:
        return None
    if not isinstance(value, str) or not value.strip():
        raise ValueError(f"`scheduler.{key}` must be text, not {value!r}")
    return value


def _name(given: Mapping[str, Any], key: str) -> str | None:
    value = given.get(key)
    value = str(value) if isinstance(value, int) and not isinstance(value, bool) else _text(given, key)
    return None if value is None else checked_word(value, f"`scheduler.{key}`")


def _words(given: Mapping[str, Any], key: str) -> tuple[str, ...]:
    value = given.get(key)
    if value is None:
        return ()
    if isinstance(value, str):
        try:
            return tuple(shlex.split(value))
        except ValueError as error:
            raise ValueError(f"`scheduler.{key}` is not closed: {error}: {value!r}") from None
    if isinstance(value, list) and all(isinstance(word, str | int | float) for word in value):
        return tuple(str(word) for word in value)
    raise ValueError(f"`scheduler.{key}` must be text or a list of words, not {value!r}")


def _environments(given: Mapping[str, Any]) -> dict[int | None, str]:
    value = given.get("environments")
    if value is None:
        return {}
    if not isinstance(value, Mapping) or not all(isinstance(name, str) for name in value.values()):
        raise ValueError(f"`scheduler.environments` must be a map of ranks on a node to names, not {value!r}")
    found: dict[int | None, str] = {}
    for key, name in value.items():
        number = None if key == ANY else re.fullmatch("[1-9][0-9]{0,5}", str(key))
        if key != ANY and number is None:
            raise ValueError(
                f"`scheduler.environments` has the key {key!r}; valid: whole numbers from 1 on, and `{ANY}`"
            )
        found[int(number[0]) if number else None] = checked_word(name, f"`scheduler.environments.{key}`")
    return found


def _lines(given: Mapping[str, Any], key: str) -> tuple[str, ...]:
    value = given.get(key)
    if value is None:
        return ()
    if isinstance(value, str):
        return tuple(value.splitlines())
    if isinstance(value, list) and all(isinstance(line, str) for line in value):
        return tuple(value)
    raise ValueError(f"`scheduler.{key}` must be text or a list of lines, not {value!r}")


def _nearest(word: str, valid: Iterable[str]) -> str:
    near = difflib.get_close_matches(word, list(valid), n=1)
    return f"did you mean `{near[0]}`?" if near else "valid: " + ", ".join(valid)
