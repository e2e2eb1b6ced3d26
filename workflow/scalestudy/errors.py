"""Errors that a user can cause, and can remedy."""

from __future__ import annotations

import difflib
import errno
import os
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass

UNSEEN = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069\ud800-\udfff]")
"""What a terminal acts on or shows elsewhere than where it is: control characters, marks of writing direction, halves of
characters. Names of files can hold them."""


def visible(text: str) -> str:
    """`text` with escapes in place of characters that a terminal does not show; line breaks and tabs stay."""
    return UNSEEN.sub(lambda match: match[0].encode("unicode_escape").decode(), text)


class UserError(Exception):
    """An error of the user's: cause, place, remedy. Shown without a traceback; exit status 2.

    The cause is a sentence, `where` a place a person can open (`file:line: key`), `remedy` the next step.
    """

    def __init__(self, what: str, where: str = "", remedy: str = "") -> None:
        self.what, self.remedy = visible(what), visible(remedy)
        self.where = visible(where).replace("\n", "\\n")
        super().__init__(str(self))

    def __str__(self) -> str:
        text = f"{self.where}: {self.what}" if self.where else self.what
        return f"{text}\n    {self.remedy}" if self.remedy else text


class Skipped(Exception):
    """A run that cannot be made here and will come out the same next time; the message has the reason and the remedy."""


@dataclass(frozen=True)
class Problem:
    """One thing wrong inside a document, before its line is known: a path of keys and a sentence."""

    path: tuple[str | int, ...]
    what: str
    remedy: str = ""


def raise_all(errors: list[UserError]) -> None:
    """Raise nothing, the one error, or one that lists all of them; duplicates are listed once."""
    unique = dict.fromkeys(map(str, errors))
    if len(unique) == 1:
        raise errors[0]
    if unique:
        raise UserError("\n".join(unique))


def raise_problems(problems: Iterable[Problem], where: Callable[[tuple[str | int, ...]], str]) -> None:
    """Raise UserError with each problem at its place, which follows from its path; nothing where there is none."""
    raise_all([UserError(each.what, where(each.path), each.remedy) for each in problems])


def nearest(word: str, valid: Iterable[str]) -> str:
    """A remedy: the nearest valid word, or the valid ones where none is near."""
    names = sorted(set(valid))
    if near := difflib.get_close_matches(str(word), names, n=1, cutoff=0.6):
        return f"did you mean `{near[0]}`?"
    return "valid: " + ", ".join(names) if names else ""


def duration(seconds: float) -> str:
    """`40 s`, `12 min`, `3.5 h`, `42 days`."""
    if seconds < 7200:
        return f"{seconds:.0f} s" if seconds < 120 else f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.1f} h" if seconds < 172_800 else f"{seconds / 86_400:.0f} days"


# What the system refuses

AGAIN = "then run the same command again"
SPACE = "free some space there, or have the quota raised"
MEMORY = "close other programs, or raise the limit (ulimit -v)"
REMEDIES = {
    errno.ENOSPC: SPACE,
    errno.EDQUOT: SPACE,
    errno.EROFS: "the disk is mounted read-only: have it made writable",
    errno.EIO: "the disk, or the connection to it, reports an error (see dmesg): have it repaired",
    errno.EFBIG: "raise the limit of the size of a file (ulimit -f)",
    errno.EMFILE: "raise the limit of open files (ulimit -n 4096)",
    errno.ENFILE: "this machine has too many files open: end what opened them",
    errno.ENOMEM: MEMORY,
    errno.EAGAIN: "no process or thread can be started: close other programs, or raise the limit (ulimit -u)",
}
WORDS = {
    "can't start new thread": REMEDIES[errno.EAGAIN],
    "could not determine home directory": "set HOME, or write the path without ~",
    "unable to find interface": "no network interface is up: start the loopback (ip link set lo up)",
    **dict.fromkeys(("std::bad_alloc", "failed to map segment", "cannot allocate memory"), MEMORY),
    **{os.strerror(number).lower(): remedy for number, remedy in REMEDIES.items()},
}
"""Of errors of Python, torch, gloo and the loader of libraries, which have no number."""


def of_system(error: BaseException) -> UserError | None:
    """Return the refusal of the operating system behind an error, with its remedy; None for another error."""
    if isinstance(error, MemoryError):
        return UserError(f"out of memory: {str(error) or 'no more could be allocated'}", remedy=f"{MEMORY}, {AGAIN}")
    if isinstance(error, OSError):
        remedy = REMEDIES.get(error.errno or 0, "fix this")
        return UserError(error.strerror or str(error), str(error.filename or ""), f"{remedy}, {AGAIN}")
    text = str(error)
    advice = next((remedy for words, remedy in WORDS.items() if words in text.lower()), None)
    return None if advice is None else UserError(text, remedy=f"{advice}, {AGAIN}")
