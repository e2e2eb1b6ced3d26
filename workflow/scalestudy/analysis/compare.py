"""Sets of runs, configuration by configuration: campaigns before and one after, or each node of one and the others."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import median

import numpy as np

from scalestudy.analysis.comparison import Change, Verdict, of_campaigns, of_repeats
from scalestudy.analysis.instruments import Differences, differences, refuse_unasked
from scalestudy.analysis.recorded import Recorded, Records
from scalestudy.errors import UserError
from scalestudy.spec.columns import METRICS
from scalestudy.spec.emulated import is_emulated
from scalestudy.spec.ids import configuration_id

SPEED = "throughput_samples_per_s"
SPEEDS, TIMES = ("samples/s",), ("s",)
"""Units of columns where more is faster, and of those where less is."""
MIN_NODES = 3
"""Of two nodes alone, it is open which of them is slow."""

Runs = Mapping[int, Recorded]
"""Runs of one configuration, by repeat."""


@dataclass(frozen=True)
class Compared:
    """One configuration on both sides. `change.reason` says why it is undecided."""

    configuration: str
    run: Recorded
    """One of its runs."""
    change: Change
    before: float | None
    after: float | None
    """Means of the column over the valid repeats that all have."""
    emulated: bool
    disturbed: int
    """Runs among those compared during which others used the machine."""


@dataclass(frozen=True)
class MachineComparison:
    """Everything that a page says of a comparison."""

    before: tuple[Records, ...]
    after: Records
    names: tuple[str, str]
    """Of the side before and of that after."""
    column: str
    margin: float
    differences: Differences
    """In what the instruments differ; each was named as the question."""
    compared: tuple[Compared, ...]
    only_before: tuple[Recorded, ...] = ()
    only_after: tuple[Recorded, ...] = ()
    """One run of each configuration that is not compared because the other side lacks it."""

    @property
    def verdicts(self) -> list[Verdict]:
        """Of each configuration."""
        return [row.change.verdict for row in self.compared]


def compare(
    before: Sequence[Records],
    after: Records,
    margin: float,
    across: Sequence[str] = (),
    column: str = SPEED,
    only: Mapping[str, object] | None = None,
) -> MachineComparison:
    """Compare `after` with the campaigns `before`; `only` has the configurations to look at, None means all.

    Each campaign has a level of its own, of which its repeats say nothing. So the question is whether `after` is one more
    campaign like those before: Student's prediction interval for the next of k normal numbers. With fewer campaigns than
    MIN_CAMPAIGNS nothing is decided, and the interval is that of repeats. Raises UserError where they have nothing in
    common, or were not measured alike and `across` does not say so.
    """
    if len({records.folder.resolve() for records in (*before, after)}) <= len(before):
        raise UserError("two of them are the same folder", str(after.folder), "give each folder once")
    direction_of(column)
    sides = [
        {key: runs for key, runs in records.by_configuration().items() if only is None or key in only}
        for records in (*before, after)
    ]
    common = [key for key in sides[0] if all(key in side for side in sides)]
    if not common:
        what = f"{' and '.join(f'`{records.name}`' for records in (*before, after))} have no configuration in common"
        raise UserError(what, remedy="measure the same studies at the same scale in all of them")
    found = differences(pair for key in common for side in sides[:-1] for pair in _pairs(side[key], sides[-1][key]))
    refuse_unasked(found, across)
    of_key = {key: _shared([side[key] for side in sides], column) for key in common}
    logs = {key: np.log([list(speeds(runs, column).values()) for runs in known]) for key, known in of_key.items()}
    changes = of_campaigns(logs, margin)
    rows = [
        Compared(
            key,
            next(iter(sides[-1][key].values())),
            changes[key] if changes[key].n else replace(changes[key], reason=_why_not([side[key] for side in sides])),
            _mean([run.metric(column) for side in of_key[key][:-1] for run in side.values()]),
            _mean([run.metric(column) for run in of_key[key][-1].values()]),
            any(is_emulated(run.spec) for run in sides[-1][key].values()),
            sum(bool(run.result.get("disturbed")) for side in of_key[key] for run in side.values()),
        )
        for key in common
    ]
    old = {key: runs for side in sides[:-1] for key, runs in side.items()}
    names = ", ".join(records.name for records in before), after.name
    return MachineComparison(
        tuple(before), after, names, column, margin, found, tuple(rows),
        tuple(next(iter(runs.values())) for key, runs in old.items() if key not in common),
        tuple(next(iter(runs.values())) for key, runs in sides[-1].items() if key not in common and key not in old),
    )  # fmt: skip


def _shared(sides: Sequence[Runs], column: str) -> list[dict[int, Recorded]]:
    """Of each side the repeats that have a speed in all of them."""
    repeats = sorted(set.intersection(*(set(speeds(runs, column)) for runs in sides)))
    return [{repeat: runs[repeat] for repeat in repeats} for runs in sides]


def compare_nodes(
    records: Records, margin: float, column: str = SPEED, only: Mapping[str, object] | None = None
) -> MachineComparison:
    """Compare each node, or pair of nodes, with the others that did the same; `only` as in `compare`.

    In each repeat, the speed of a node is paired with the median of the others' speeds: a few slow nodes do not move
    it. All were measured in one campaign, so that repeats vary. Raises UserError where fewer than MIN_NODES
    nodes did the same.
    """
    direction = direction_of(column)
    kinds: dict[str, dict[str, Runs]] = {}
    for key, runs in records.by_configuration().items():
        spec = next(iter(runs.values())).spec
        if spec.hosts is not None and (only is None or key in only):
            kind = configuration_id(spec.model_copy(update={"hosts": None}))
            kinds.setdefault(kind, {})[key] = runs
    kinds = {kind: units for kind, units in kinds.items() if len(units) >= MIN_NODES}
    if not kinds:
        what = f"`{records.name}` has no runs that {MIN_NODES} nodes made by name"
        raise UserError(what, str(records.folder), "measure a study with `vary: {nodes: each}`")
    units = {key: runs for members in kinds.values() for key, runs in members.items()}
    own = {key: speeds(runs, column) for key, runs in units.items()}
    others = {
        key: _medians([own[other] for other in members if other != key])
        for members in kinds.values()
        for key in members
    }
    ratios = {
        key: [
            math.log(own[key][repeat] / others[key][repeat]) for repeat in sorted(own[key].keys() & others[key].keys())
        ]
        for key in units
    }
    rows = [
        Compared(
            key,
            next(iter(units[key].values())),
            change if own[key] else replace(change, reason=_why_not([units[key]])),
            _mean([value**direction for value in others[key].values()]),
            _mean([value**direction for value in own[key].values()]),
            any(is_emulated(run.spec) for run in units[key].values()),
            sum(bool(run.result.get("disturbed")) for run in units[key].values()),
        )
        for key, change in of_repeats(ratios, margin).items()
    ]
    names = "the other nodes", f"nodes of {records.name}"
    return MachineComparison((), records, names, column, margin, {}, tuple(rows))


def _medians(speeds_of_others: Sequence[Mapping[int, float]]) -> dict[int, float]:
    """By repeat, the median speed, where at least two nodes have one."""
    repeats = sorted({repeat for found in speeds_of_others for repeat in found})
    values = {repeat: [found[repeat] for found in speeds_of_others if repeat in found] for repeat in repeats}
    return {repeat: median(found) for repeat, found in values.items() if len(found) > 1}


def direction_of(column: str) -> int:
    """1 where more of a column is faster, -1 where less is."""
    unit = METRICS[column].unit if column in METRICS else None
    if unit in SPEEDS:
        return 1
    if unit in TIMES:
        return -1
    valid = [name for name, known in METRICS.items() if known.unit in (*SPEEDS, *TIMES)]
    raise UserError(f"`{column}` is not a column of rates or times", "--column", "valid: " + ", ".join(valid))


def _pairs(old: Runs, new: Runs) -> Iterator[tuple[Recorded, Recorded]]:
    """Runs of the same repeat that are valid in both."""
    for repeat in sorted(old.keys() & new.keys()):
        if old[repeat].is_valid and new[repeat].is_valid:
            yield old[repeat], new[repeat]


def speeds(runs: Runs, column: str) -> dict[int, float]:
    """By repeat, of valid runs: the column, or of times their inverse."""
    values = {repeat: runs[repeat].metric(column) for repeat in sorted(runs) if runs[repeat].is_valid}
    direction = direction_of(column)
    return {repeat: value**direction for repeat, value in values.items() if value is not None and value > 0}


def _why_not(sides: Sequence[Runs]) -> str:
    """Why no repeat is compared: the invalid side with its reason; the side after comes first."""
    for word, runs in zip(("after", *["before"] * len(sides)), reversed(sides), strict=False):
        wrong = [run for run in runs.values() if not run.is_valid]
        if len(wrong) == len(runs):
            return f"{wrong[0].result['status']} {word}: {wrong[0].result.get('reason') or 'no reason given'}"
    return "no repeat is valid in all of them"


def _mean(values: Sequence[float | None]) -> float | None:
    found = [value for value in values if value is not None]
    return sum(found) / len(found) if found else None
