"""Two folders of results, configuration by configuration."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from scalestudy.analysis.comparison import Change, Verdict, judged, log_ratios
from scalestudy.analysis.instruments import Differences, differences, refuse_unasked
from scalestudy.analysis.recorded import Recorded, Records
from scalestudy.errors import UserError
from scalestudy.spec.columns import METRICS

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
        any(bool(run.result.get("emulated")) for run in (*old.values(), *new.values())),
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
