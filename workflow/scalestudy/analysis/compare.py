"""Two sets of runs, configuration by configuration: two folders of results, or each node of one and the others."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import median

from scalestudy.analysis.comparison import Change, Verdict, judged, log_ratios
from scalestudy.analysis.instruments import Differences, differences, refuse_unasked
from scalestudy.analysis.recorded import Recorded, Records
from scalestudy.errors import UserError
from scalestudy.spec.columns import METRICS
from scalestudy.spec.emulated import is_emulated
from scalestudy.spec.ids import configuration_id

SPEED = "throughput_samples_per_s"
SPEEDS, TIMES = ("samples/s",), ("s",)
"""Units of columns where more is faster, and of those where less is."""


@dataclass(frozen=True)
class Compared:
    """One configuration in both folders. `change.reason` says why it is undecided."""

    configuration: str
    run: Recorded
    """One of its runs."""
    change: Change
    before: float | None
    after: float | None
    """Means of the column over the valid repeats that both have."""
    emulated: bool
    disturbed: int
    """Runs among those compared during which others used the machine."""


@dataclass(frozen=True)
class MachineComparison:
    """Everything that a page says of two folders of results."""

    before: Records
    after: Records
    column: str
    margin: float
    across: tuple[str, ...]
    differences: Differences
    """In what the instruments differ; each was named as the question."""
    compared: tuple[Compared, ...]
    only_before: tuple[Recorded, ...]
    only_after: tuple[Recorded, ...]
    """One run of each configuration that only one of them has."""

    @property
    def verdicts(self) -> list[Verdict]:
        """Of each configuration."""
        return [row.change.verdict for row in self.compared]


def compare(
    before: Records,
    after: Records,
    margin: float,
    across: Sequence[str] = (),
    column: str = SPEED,
    only: Mapping[str, object] | None = None,
) -> MachineComparison:
    """Compare `after` with `before`; `only` has the configurations to look at, None means all.

    Raises UserError where they have nothing in common, or were not measured alike and `across` does not say so.
    """
    if before.folder.resolve() == after.folder.resolve():
        raise UserError("both are the same folder", str(before.folder), "give two folders")
    direction_of(column)
    old, new = (
        {key: runs for key, runs in records.by_configuration().items() if only is None or key in only}
        for records in (before, after)
    )
    common = [key for key in old if key in new]
    if not common:
        what = f"`{before.name}` and `{after.name}` have no configuration in common"
        raise UserError(what, remedy="measure the same studies at the same scale in both")
    found = differences(_pairs(old, new, common))
    refuse_unasked(found, across)
    ratios = [log_ratios(speeds(old[key], column), speeds(new[key], column)) for key in common]
    rows = [
        _compared(key, old[key], new[key], change, column)
        for key, change in zip(common, judged(ratios, margin), strict=True)
    ]
    return MachineComparison(
        before, after, column, margin, tuple(across), found, tuple(rows),
        tuple(next(iter(old[key].values())) for key in old if key not in new),
        tuple(next(iter(new[key].values())) for key in new if key not in old),
    )  # fmt: skip


MIN_NODES = 3
"""Of two nodes alone, it is open which of them is slow."""


def compare_nodes(
    records: Records, margin: float, column: str = SPEED, only: Mapping[str, object] | None = None
) -> MachineComparison:
    """Compare each node, or pair of nodes, with the others that did the same; `only` as in `compare`.

    In each repeat, the speed of a node is paired with the median of the others' speeds: a few slow nodes do not move
    it. Raises UserError where fewer than MIN_NODES nodes did the same.
    """
    direction = direction_of(column)
    kinds: dict[str, dict[str, Mapping[int, Recorded]]] = {}
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
    changes = judged([log_ratios(others[key], own[key]) for key in units], margin)
    rows = [
        Compared(
            key,
            next(iter(runs.values())),
            change if own[key] else _without_pairs(change, {}, runs),
            _mean([value**direction for value in others[key].values()]),
            _mean([value**direction for value in own[key].values()]),
            any(is_emulated(run.spec) for run in runs.values()),
            sum(bool(run.result.get("disturbed")) for run in runs.values()),
        )
        for (key, runs), change in zip(units.items(), changes, strict=True)
    ]
    before, after = (replace(records, name=name) for name in ("the other nodes", f"nodes of {records.name}"))
    return MachineComparison(replace(before, unreadable=()), after, column, margin, (), {}, tuple(rows), (), ())


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


def _pairs(
    old: Mapping[str, Mapping[int, Recorded]], new: Mapping[str, Mapping[int, Recorded]], common: Sequence[str]
) -> Iterator[tuple[Recorded, Recorded]]:
    """Runs of the same configuration and repeat that are valid in both."""
    for key in common:
        for repeat in sorted(old[key].keys() & new[key].keys()):
            if old[key][repeat].is_valid and new[key][repeat].is_valid:
                yield old[key][repeat], new[key][repeat]


def speeds(runs: Mapping[int, Recorded], column: str) -> dict[int, float]:
    """By repeat, of valid runs: the column, or of times their inverse."""
    values = {repeat: run.metric(column) for repeat, run in runs.items() if run.is_valid}
    direction = direction_of(column)
    return {repeat: value**direction for repeat, value in values.items() if value is not None and value > 0}


def _compared(
    configuration: str, old: Mapping[int, Recorded], new: Mapping[int, Recorded], change: Change, column: str
) -> Compared:
    pairs = list(_pairs({configuration: old}, {configuration: new}, [configuration]))
    if not pairs:
        change = _without_pairs(change, old, new)
    runs = [run for pair in pairs for run in pair]
    return Compared(
        configuration,
        next(iter(new.values())),
        change,
        _mean([before.metric(column) for before, _ in pairs]),
        _mean([after.metric(column) for _, after in pairs]),
        any(is_emulated(run.spec) for run in (*old.values(), *new.values())),
        sum(bool(run.result.get("disturbed")) for run in runs),
    )


def _without_pairs(change: Change, old: Mapping[int, Recorded], new: Mapping[int, Recorded]) -> Change:
    """Say why: what is not valid where, with its reason."""
    for word, runs in (("after", new), ("before", old)):
        wrong = [run for run in runs.values() if not run.is_valid]
        if len(wrong) == len(runs):
            first = wrong[0].result
            return replace(change, reason=f"{first['status']} {word}: {first.get('reason') or 'no reason given'}")
    return replace(change, reason="no repeat is valid in both")


def _mean(values: Sequence[float | None]) -> float | None:
    found = [value for value in values if value is not None]
    return sum(found) / len(found) if found else None
