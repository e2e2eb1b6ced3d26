"""Instruments of two sets of runs, and their differences."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from scalestudy.analysis.recorded import Recorded
from scalestudy.errors import UserError, nearest

GROUPS: dict[str, tuple[str, ...]] = {
    "hardware": ("cpu", "cores", "device_name", "governor", "clock", "huge_pages"),
    "code": ("code", "question"),
    "data": ("data",),
}
"""Words that stand for several keys of an instrument; `software` is all others."""
SOFTWARE = "software"
QUESTION = "question"
"""Stands for what a run's id is made of besides its spec: TRAINER_VERSION, and the user's own code."""

Differences = dict[str, tuple[list[str], list[str]]]


def differences(pairs: Iterable[tuple[Recorded, Recorded]]) -> Differences:
    """For each key in which the runs of any pair differ: all values before, all values after."""
    found: dict[str, tuple[set[str], set[str]]] = {}
    for before, after in pairs:
        there, here = _facts(before), _facts(after)
        for key in there.keys() | here.keys():
            if there.get(key) != here.get(key):
                olds, news = found.setdefault(key, (set(), set()))
                olds.add(there.get(key, "not said"))
                news.add(here.get(key, "not said"))
    return {key: (sorted(found[key][0]), sorted(found[key][1])) for key in sorted(found)}


def _facts(run: Recorded) -> dict[str, str]:
    return {**run.instrument(), QUESTION: run.run.rpartition("-")[2]}


def refuse_unasked(found: Differences, across: Sequence[str]) -> None:
    """Raise UserError that names each difference which `across` does not name as the question."""
    known = {*GROUPS, SOFTWARE, *found, *(key for keys in GROUPS.values() for key in keys)}
    for word in across:
        if word not in known:
            raise UserError(f"`{word}` is not a part of an instrument", "--across", nearest(word, known))
    left = {key: values for key, values in found.items() if not {key, group_of(key)} & set(across)}
    if left:
        lines = "".join(f"\n    {line}" for line in told(left))
        groups = ",".join(dict.fromkeys(group_of(key) for key in left))
        raise UserError(
            f"the two were not measured with the same instrument:{lines}",
            remedy=f"measure both with the same, or say that this difference is the question: --across {groups}",
        )


def group_of(key: str) -> str:
    """The word that stands for a key and its like."""
    return next((group for group, keys in GROUPS.items() if key in keys), SOFTWARE)


def told(found: Mapping[str, tuple[list[str], list[str]]]) -> list[str]:
    """`torch: 2.14.1 before, 2.15.0 after`, a line per key."""
    said = []
    for key, (before, after) in found.items():
        if key == QUESTION:
            said.append(
                "code: the ids of the runs differ (TRAINER_VERSION, your code in config/extensions/, or step_times.csv)"
            )
        else:
            said.append(f"{key}: {_some(before)} before, {_some(after)} after")
    return said


def _some(values: Sequence[str], most: int = 3) -> str:
    more = f" and {len(values) - most} more" if len(values) > most else ""
    return " / ".join(values[:most]) + more
