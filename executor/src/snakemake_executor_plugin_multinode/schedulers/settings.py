"""The `scheduler:` section of a site file, checked with sentences."""

from __future__ import annotations

import difflib
import shlex
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
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


KEYS = ("kind", "account", "queue", "request", "options", "setup", "wrapper")


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
