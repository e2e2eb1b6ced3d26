"""Which results a study's tables were made from: by content, because a file from a backup has an old time of change.

A digest is kept with what `stat` says of the file, so that of thousands of results only those are read whose size, times
or inode have changed since. What is kept is a cache: where it is lost or damaged, every result is read once.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path
from stat import S_ISREG
from typing import TYPE_CHECKING, Any

from scalestudy.errors import UserError
from scalestudy.files import canonical_json, read_json, sha256_file, sha256_text, write_json
from scalestudy.spec.layout import result_file

if TYPE_CHECKING:
    from scalestudy.spec.study import Study

FOLDER = Path(".scalestudy/digests")

KINDS = [int, int, int, int, str]
Contents = dict[str, list[Any]]
"""By run: size, times of change of content and of inode (ns), inode, and the SHA-256 of the content."""


def contents(machine: str, runs: Iterable[str], known: Contents) -> Contents:
    """The content of the results that these runs have; what `known` has of an unchanged file is taken from there."""
    found: Contents = {}
    for run in runs:
        file = result_file(machine, run)
        try:
            stat = file.stat()
            state, before = _state(stat), known.get(run, [])
            if not S_ISREG(stat.st_mode):
                found[run] = [*state, "not a file"]  # a pipe would be waited for
            else:
                found[run] = before if before[:-1] == state else [*state, sha256_file(file)]
        except OSError:
            continue  # no result, or none that can be read: what reads it says so
    return found


def _state(stat: os.stat_result) -> list[int]:
    return [stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns, stat.st_ino]


def of_study(study: Study, machine: str) -> Contents:
    """The content of a study's results as they are now."""
    return contents(machine, [run.id for run in study.runs], _known(_file(study, machine)))


def digest(found: Contents) -> str:
    """One digest over runs and their results, the same wherever the files lie and whenever they were written."""
    return sha256_text(canonical_json({run: entry[-1] for run, entry in found.items()}))


def keep(study: Study, machine: str, found: Contents) -> None:
    """Keep what is known of a study's results for the next time."""
    write_json(_file(study, machine), found)


def is_current(study: Study, machine: str) -> bool:
    """Whether the results are still those that the study was summarised from, as far as that is known here."""
    known = _known(_file(study, machine))
    return not known or digest(known) == digest(of_study(study, machine))


def _file(study: Study, machine: str) -> Path:
    return FOLDER / machine / study.scale / f"{study.name}.json"


def _known(file: Path) -> Contents:
    try:
        known = read_json(file)
    except (UserError, OSError):
        return {}
    if not isinstance(known, dict):
        return {}
    return {run: entry for run, entry in known.items() if isinstance(entry, list) and [type(x) for x in entry] == KINDS}
