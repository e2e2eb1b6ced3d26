"""Nodes that runs name, compared with each other: which are slower than the rest, which failed, what their memory counts.

Runs are compared that differ in nothing but where they ran. In each round, the speed of a node is divided by the median of
the others' speeds in that round: a few bad nodes do not move what all are compared with. The logarithms of these ratios
over the rounds are judged as `analysis/comparison.py` judges those of two campaigns: Student's t, a margin, and Holm over
all that is judged together. Pairs of nodes are units as nodes are.
"""

from __future__ import annotations

import bisect
import math
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from scalestudy.analysis.compare import direction_of
from scalestudy.analysis.comparison import Change, judged
from scalestudy.errors import UserError
from scalestudy.spec.ids import configuration_id
from scalestudy.spec.study import FleetSpec, Run, Study

Row = Mapping[str, Any]
LEAST_OTHERS = 2
"""Of one other node alone nobody can say which of the two is slow."""
FAILED = "failed: "
"""The reason of a run without a result begins so where it was tried (`summarise._missing`)."""
COUNTED = {
    "memory_errors_uncorrected": "memory errors that could not be corrected",
    "remap_faults": "accelerators with rows of memory that are not remapped",
}
"""Columns of which anything above 0 takes a node out of service."""


@dataclass(frozen=True)
class Unit:
    """A node, or several together, and the runs of one kind that were made on it."""

    hosts: tuple[str, ...]
    kind: int
    """Which of the study's kinds of run."""
    rows: tuple[Row, ...]

    @property
    def name(self) -> str:
        """Its nodes."""
        return " – ".join(self.hosts)

    @property
    def valid(self) -> tuple[Row, ...]:
        """Its valid runs."""
        return tuple(row for row in self.rows if row["status"] == "valid")


@dataclass(frozen=True)
class Standing:
    """A unit against the others of its kind."""

    unit: Unit
    mean: float | None
    """Geometric mean of the column over its valid runs."""
    change: Change
    """Its speed over that of the others; *undecided* has a reason."""
    failed: tuple[str, ...]
    """Why runs of it have no valid result, where others of its kind have one."""
    missing: int
    """Runs that were not made yet."""


@dataclass(frozen=True)
class Fleet:
    """All nodes of a study."""

    study: Study
    spec: FleetSpec
    kinds: tuple[Run, ...]
    """One run of each kind."""
    standings: tuple[Standing, ...]
    counted: dict[str, dict[str, float]]
    """By node, the largest that a run on it alone found of COUNTED, of corrected errors and remapped rows; what is known."""

    @property
    def hosts(self) -> tuple[str, ...]:
        """Every node, in the order of the study."""
        return tuple(dict.fromkeys(host for standing in self.standings for host in standing.unit.hosts))

    def drain(self) -> dict[str, list[str]]:
        """By node, why it should be taken out of service; only nodes of which there is something to say."""
        found: dict[str, list[str]] = {host: [] for host in self.hosts}
        together: dict[tuple[str, int], list[Standing]] = defaultdict(list)
        for standing in self.standings:
            first, *others = standing.unit.hosts
            if others:
                for host in standing.unit.hosts:
                    together[host, standing.unit.kind].append(standing)
                continue
            found[first] += standing.failed
            if standing.change.verdict == "slower":
                found[first].append(f"slower than the others: {speed_text(standing.change)}")
        for (host, _), shared in together.items():
            found[host] += _in_company(shared)
        for host, counted in self.counted.items():
            found[host] += [f"{what}: {counted[name]:.0f}" for name, what in COUNTED.items() if counted.get(name)]
        return {host: list(dict.fromkeys(reasons)) for host, reasons in found.items() if reasons}

    def suspects(self) -> list[Standing]:
        """Pairs that are slow or failed of which no node is to be drained: what lies between the two may be at fault."""
        drained = self.drain()
        return [
            standing
            for standing in self.standings
            if len(standing.unit.hosts) > 1
            and (standing.failed or standing.change.verdict == "slower")
            and not any(host in drained for host in standing.unit.hosts)
        ]

    def incomplete(self) -> dict[str, int]:
        """By node, or by pair, how many runs are still to be made; only those that lack one."""
        found: dict[str, int] = defaultdict(int)
        for standing in self.standings:
            found[standing.unit.name] += standing.missing
        return {name: count for name, count in found.items() if count}

    @property
    def missing(self) -> int:
        """Runs that were not made yet."""
        return sum(standing.missing for standing in self.standings)

    @property
    def undecided(self) -> list[Standing]:
        """Of which it is open whether they are slower, though they ran."""
        return [each for each in self.standings if each.change.verdict == "undecided" and each.unit.valid]


def fleet_of(study: Study, rows: Sequence[Row]) -> Fleet:
    """The nodes of a study, from its rows (`study_rows`). Raises UserError where it names no nodes, or no margin."""
    place = f"config/studies/{study.name}.yaml"
    if study.fleet is None:
        remedy = "add `fleet: {margin: 0.05, margin_reason: …}`: how much slower than the others a node may be, and why"
        raise UserError("the study does not say when a node counts as slow", place, remedy)
    by_id = {row["run"]: row for row in rows}
    kinds: dict[str, Run] = {}
    units: dict[tuple[int, tuple[str, ...]], list[Row]] = defaultdict(list)
    for run in study.runs:
        if run.spec.hosts is not None:
            kind = configuration_id(run.spec.model_copy(update={"hosts": None}))
            kinds.setdefault(kind, run)
            units[list(kinds).index(kind), run.spec.hosts].append(by_id[run.id])
    if not units:
        raise UserError("no run of the study names its nodes", place, "write `vary: {nodes: each}`")
    found = [Unit(hosts, kind, tuple(made)) for (kind, hosts), made in units.items()]
    standings = _standings(found, study.fleet)
    return Fleet(study, study.fleet, tuple(kinds.values()), tuple(standings), _counted(found))


def _in_company(shared: Sequence[Standing]) -> Iterator[str]:
    """A node is at fault where all that it did together with others, twice or more, was slow or failed."""
    if len(shared) < 2 or not all(each.failed or each.change.verdict == "slower" for each in shared):
        return
    failed = next((each.failed[0] for each in shared if each.failed), "")
    yield f"all {len(shared)} pairs with it are slower than the others or failed{f': {failed}' if failed else ''}"


def _standings(units: Sequence[Unit], spec: FleetSpec) -> list[Standing]:
    speeds = [_speeds(unit, spec.column) for unit in units]
    changes = judged(_log_ratios(units, speeds), spec.margin)
    works = {unit.kind for unit in units if unit.valid}
    return [
        Standing(
            unit,
            _mean(own, spec.column),
            change if change.n else _alone(unit, units),
            tuple(_failures(unit)) if unit.kind in works else (),
            sum(row["status"] == "missing" and not _has_failed(row) for row in unit.rows),
        )
        for unit, own, change in zip(units, speeds, changes, strict=True)
    ]


def _speeds(unit: Unit, column: str) -> dict[int, float]:
    """By round, ln of the speed of valid runs."""
    direction = direction_of(column)
    return {
        int(row["round"]): direction * math.log(row[column])
        for row in unit.valid
        if _known(row[column]) and row[column] > 0
    }


def _log_ratios(units: Sequence[Unit], speeds: Sequence[Mapping[int, float]]) -> list[list[float]]:
    """For each unit, ln of its speed over the median of the others' in each round in which enough of them have one."""
    rounds: dict[tuple[int, int], list[float]] = defaultdict(list)
    for unit, own in zip(units, speeds, strict=True):
        for number, value in own.items():
            rounds[unit.kind, number].append(value)
    for values in rounds.values():
        values.sort()
    return [
        [
            value - median_without(rounds[unit.kind, number], value)
            for number, value in sorted(own.items())
            if len(rounds[unit.kind, number]) > LEAST_OTHERS
        ]
        for unit, own in zip(units, speeds, strict=True)
    ]


def median_without(ordered: Sequence[float], value: float) -> float:
    """The median of ascending values without one of them."""
    at, middle = bisect.bisect_left(ordered, value), (len(ordered) - 1) // 2
    rest = [ordered[index if index < at else index + 1] for index in range(middle - 1, middle + 1)]
    return rest[1] if len(ordered) % 2 == 0 else (rest[0] + rest[1]) / 2


def _alone(unit: Unit, units: Sequence[Unit]) -> Change:
    count = sum(other.kind == unit.kind for other in units)
    why = (
        "no valid run" if not unit.valid
        else f"{LEAST_OTHERS + 1} are needed for a comparison, and there {'is one' if count == 1 else f'are {count}'}"
        if count <= LEAST_OTHERS else "the others have no valid run in its rounds"
    )  # fmt: skip
    return Change("undecided", None, None, None, 0, None, None, None, why)


def _failures(unit: Unit) -> Iterator[str]:
    """Why runs have no valid result, each reason once; what was not made yet is no failure."""
    reasons = [
        f"a run {'was skipped' if row['status'] == 'skipped' else 'failed' if row['status'] == 'missing' else 'is invalid'}: "
        f"{str(row['reason']).removeprefix(FAILED)}"
        for row in unit.rows
        if row["status"] in ("invalid", "skipped") or _has_failed(row)
    ]
    yield from dict.fromkeys(reasons)


def _has_failed(row: Row) -> bool:
    """Whether a run without a result has been tried."""
    return bool(row["status"] == "missing" and str(row["reason"]).startswith(FAILED))


def _mean(speeds: Mapping[int, float], column: str) -> float | None:
    return math.exp(direction_of(column) * math.fsum(speeds.values()) / len(speeds)) if speeds else None


def _counted(units: Sequence[Unit]) -> dict[str, dict[str, float]]:
    names = (*COUNTED, "memory_errors_corrected", "remapped_rows")
    found: dict[str, dict[str, float]] = defaultdict(dict)
    for unit in (unit for unit in units if len(unit.hosts) == 1):
        for name in names:
            known = [float(row[name]) for row in unit.rows if _known(row.get(name))]
            if known:
                found[unit.hosts[0]][name] = max(known)
    return dict(found)


def _known(value: Any) -> bool:
    return isinstance(value, (int, float)) and math.isfinite(value)


def speed_text(change: Change) -> str:
    """`speed -12.1 % [-13.0, -11.2]`, with its 95 % interval; empty where nothing is known."""
    percent = [100 * (value - 1) for value in (change.ratio, change.low, change.high) if value is not None]
    if not percent:
        return ""
    interval = f" [{percent[1]:+.1f}, {percent[2]:+.1f}]" if len(percent) == 3 else ""
    return f"speed {percent[0]:+.1f} %{interval}"
