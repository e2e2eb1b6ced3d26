"""Sets of runs, configuration by configuration: campaigns before and one after, or each node of one and the others.

The ratio of a configuration is the speed after over the speed before, below 1 where it became slower. The unit of variation, and so
the coverage of an interval, is rounds of one campaign, or campaigns (Kalibera and Jones, Rigorous Benchmarking in Reasonable Time,
ISMM '13: repeat at the level that varies).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import median
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from scalestudy.analysis.recorded import Recorded, Records
from scalestudy.claims.inference import ERROR, MIN_CAMPAIGNS, Estimate, Region, holm, rounds_needed
from scalestudy.claims.model import MIN_REPEATS
from scalestudy.errors import UserError, nearest
from scalestudy.spec.columns import METRICS, RATE_UNITS, columns_of
from scalestudy.spec.ids import configuration_id
from scalestudy.spec.labels import counted
from scalestudy.spec.run import emulated_parts

SPEED = "throughput_samples_per_s"
DIRECTIONS = {**dict.fromkeys(RATE_UNITS, 1), "s": -1}
"""By unit of a column, 1 where more is faster, -1 where less is."""
MIN_NODES = 3
"""Of two nodes alone, it is open which of them is slow."""
MARGIN = 0.03
"""A change of speed up to this is *same*. Equal runs of one rank on two quiet cores spread by 2.9 % (one standard
deviation over the repeats of a `make run`): a smaller change is within what that machine does by itself."""

Verdict = Literal["slower", "undecided", "faster", "same"]
"""In the order in which a reader wants to see them."""
Runs = Mapping[int, Recorded]
"""Runs of one configuration, by repeat."""
Speeds = NDArray[np.float64]


@dataclass(frozen=True)
class Change:
    """Change of one configuration. `ratio`, `low` and `high` (95 %) are speed after over speed before."""

    verdict: Verdict = "undecided"
    ratio: float | None = None
    low: float | None = None
    high: float | None = None
    n: int = 0
    p: float | None = None
    """Probability of so large a change if the true one lies within the margin; two-sided."""
    p_holm: float | None = None
    """The same, adjusted by Holm for all configurations compared together: at most 0.05 decides slower and faster."""
    repeats_needed: int | None = None
    """Where undecided: repeats that would decide it in 80 % of cases, were mean and spread the true ones; None where over
    1,000, and where campaigns are what varies."""
    reason: str = ""


@dataclass(frozen=True)
class Compared:
    """One configuration on both sides. `change.reason` says why it is undecided."""

    run: Recorded
    """One of its runs."""
    change: Change
    before: float | None
    after: float | None
    """Means of the column over the repeats that are compared."""
    emulated: bool
    disturbed: int
    """Runs among those compared during which others used the machine."""
    reported: bool = False
    """Whether programs reported the column themselves, in any of them."""


@dataclass(frozen=True)
class MachineComparison:
    """Everything that is said of a comparison."""

    before: tuple[Records, ...]
    """None of them where nodes of `after` are compared."""
    after: Records
    column: str
    margin: float
    differences: Differences
    """In what the instruments differ; each was named as the question."""
    compared: tuple[Compared, ...]
    left_out: int = 0
    """Configurations that not all folders have."""


def compare(
    before: Sequence[Records],
    after: Records,
    margin: float,
    across: Sequence[str] = (),
    column: str = SPEED,
    only: Mapping[str, object] | None = None,
) -> MachineComparison:
    """Compare `after` with the campaigns `before`; `only` has the configurations to look at, None means all.

    Raises UserError where they have nothing in common, or were not measured alike and `across` does not say so.
    """
    every = (*before, after)
    if len({records.folder.resolve() for records in every}) < len(every):
        raise UserError("two of them are the same folder", str(after.folder), "give each folder once")
    direction_of(column)
    sides = [
        {key: runs for key, runs in records.by_configuration().items() if _is_compared(key, runs, column, only)}
        for records in every
    ]
    common = [key for key in sides[0] if all(key in side for side in sides)]
    if not common:
        what = f"{' and '.join(f'`{records.name}`' for records in every)} have no configuration in common"
        raise UserError(what, remedy="measure the same studies at the same scale in all of them")
    mismatch = differences(pair for key in common for side in sides[:-1] for pair in _pairs(side[key], sides[-1][key]))
    keys = {word for key in common for side in sides for run in side[key].values() for word in run.instrument()}
    refuse_unasked(mismatch, across, keys)
    rates = {key: [speeds(side[key], column) for side in sides] for key in common}
    shared = {key: sorted(set(side_rates[0]).intersection(*side_rates[1:])) for key, side_rates in rates.items()}
    logs = {key: np.log([[side[repeat] for repeat in shared[key]] for side in rates[key]]) for key in common}
    rows = []
    for key, change in of_campaigns(logs, margin).items():
        used = [side[key][repeat] for side in sides for repeat in shared[key]]
        olds, news = np.exp(logs[key][:-1]).ravel(), np.exp(logs[key][-1])
        rows.append(_compared(column, change, [side[key] for side in sides], olds, news, used))
    left_out = len(set().union(*sides)) - len(common)
    return MachineComparison(tuple(before), after, column, margin, mismatch, tuple(rows), left_out)


def compare_nodes(
    records: Records, margin: float, column: str = SPEED, only: Mapping[str, object] | None = None
) -> MachineComparison:
    """Compare each node, or pair of nodes, with the others that did the same; `only` as in `compare`.

    In each repeat, the speed of a node is paired with the median of the others' speeds: a few slow nodes do not move
    it. All were measured in one campaign, so that repeats vary. Raises UserError where fewer than MIN_NODES
    nodes did the same.
    """
    kinds: dict[str, dict[str, Runs]] = {}
    for key, runs in records.by_configuration().items():
        spec = _one(runs).spec
        if spec.hosts is not None and _is_compared(key, runs, column, only):
            kinds.setdefault(configuration_id(spec.model_copy(update={"hosts": None})), {})[key] = runs
    compared = [units for units in kinds.values() if len(units) >= MIN_NODES]
    if not compared:
        what = f"`{records.name}` has no runs that {MIN_NODES} nodes made by name"
        raise UserError(what, str(records.folder), "measure a study with `vary: {nodes: each}`")
    units: dict[str, Runs] = {}
    pairs: dict[str, list[tuple[float, float]]] = {}
    for members in compared:
        units |= members
        own = {key: speeds(runs, column) for key, runs in members.items()}
        for key in members:
            middle = _medians([own[other] for other in members if other != key])
            pairs[key] = [(middle[repeat], own[key][repeat]) for repeat in sorted(own[key].keys() & middle.keys())]
    ratios = {key: [math.log(node / others) for others, node in speed_pairs] for key, speed_pairs in pairs.items()}
    rows = []
    for key, change in of_repeats(ratios, margin).items():
        of_others, of_node = np.array(pairs[key]).reshape(-1, 2).T
        rows.append(_compared(column, change, [units[key]], of_others, of_node, list(units[key].values())))
    return MachineComparison((), records, column, margin, {}, tuple(rows))


def _compared(
    column: str, change: Change, sides: Sequence[Runs], before: Speeds, after: Speeds, used: Sequence[Recorded]
) -> Compared:
    """One configuration, of which the last of `sides` is after; `before` and `after` are speeds of the runs `used`."""
    change = change if change.n else replace(change, reason=_why_not(sides))
    direction, runs = direction_of(column), sides[-1]
    old, new = (float(np.mean(side**direction)) if len(side) else None for side in (before, after))
    emulated = bool(emulated_parts(columns_of(run.spec) for run in runs.values()))
    disturbed = sum(bool(run.result.get("disturbed")) for run in used)
    reported = any(run.result["kinds"].get(column) == "reported" for run in used)
    return Compared(_one(runs), change, old, new, emulated, disturbed, reported)


def _is_compared(key: str, runs: Runs, column: str, only: Mapping[str, object] | None) -> bool:
    """Whether a configuration is chosen, and measures the column as far as its valid runs tell."""
    valid = [run for run in runs.values() if run.is_valid]
    measures = not valid or any(run.metric(column) is not None for run in valid)
    return measures and (only is None or key in only)


def _one(runs: Runs) -> Recorded:
    return next(iter(runs.values()))


def _pairs(old: Runs, new: Runs) -> Iterator[tuple[Recorded, Recorded]]:
    """Runs of the same repeat that are valid in both."""
    for repeat in sorted(old.keys() & new.keys()):
        if old[repeat].is_valid and new[repeat].is_valid:
            yield old[repeat], new[repeat]


def _medians(speeds_of_others: Sequence[Mapping[int, float]]) -> dict[int, float]:
    """By repeat, the median speed, where at least two nodes have one."""
    repeats = dict.fromkeys(repeat for rates in speeds_of_others for repeat in rates)
    values = {repeat: [rates[repeat] for rates in speeds_of_others if repeat in rates] for repeat in repeats}
    return {repeat: median(repeat_rates) for repeat, repeat_rates in values.items() if len(repeat_rates) > 1}


def direction_of(column: str) -> int:
    """1 where more of a column is faster, -1 where less is."""
    valid = {name: DIRECTIONS[metric.unit] for name, metric in METRICS.items() if metric.unit in DIRECTIONS}
    if column not in valid:
        raise UserError(f"`{column}` is not a column of rates or times", "--column", "valid: " + ", ".join(valid))
    return valid[column]


def speeds(runs: Runs, column: str) -> dict[int, float]:
    """By repeat, of valid runs: the column, or of times their inverse."""
    direction = direction_of(column)
    values = {repeat: runs[repeat].metric(column) for repeat in sorted(runs) if runs[repeat].is_valid}
    return {repeat: value**direction for repeat, value in values.items() if value is not None and value > 0}


def _why_not(sides: Sequence[Runs]) -> str:
    """Why no repeat is compared: the invalid side with its reason; the side after comes first."""
    for word, runs in zip(("after", *["before"] * len(sides)), reversed(sides), strict=False):
        wrong = [run for run in runs.values() if not run.is_valid]
        if len(wrong) == len(runs):
            return f"{wrong[0].result['status']} {word}: {wrong[0].result.get('reason') or 'no reason given'}"
    return "no repeat is valid in all of them"


# Verdicts


def of_campaigns(logs: Mapping[str, np.ndarray], margin: float) -> dict[str, Change]:
    """Change of each configuration, from the logarithms of its speeds [campaigns, repeats]; the last campaign is after.

    Each campaign has a level of its own, of which its repeats say nothing. So the question is whether the last is one more
    campaign like those before: Student's prediction interval for the next of k normal numbers. With fewer before than
    MIN_CAMPAIGNS nothing is decided, and the interval is that of repeats.
    """
    before = min((len(each) - 1 for each in logs.values()), default=0)
    if before >= MIN_CAMPAIGNS:
        levels = {key: each.mean(axis=1) if each.size else each[:, 0:0].ravel() for key, each in logs.items()}
        return of_repeats({key: list(each[-1:] - each[:-1]) for key, each in levels.items()}, margin, of_next=True)
    changes = of_repeats({key: list(each[-1] - each[:-1].mean(axis=0)) for key, each in logs.items()}, margin)
    reason = f"no gate: {before} of {MIN_CAMPAIGNS} campaigns before, and the interval is that of repeats"
    undecided: Verdict = "undecided"
    return {key: replace(each, verdict=undecided, reason=reason, repeats_needed=None) for key, each in changes.items()}


def of_repeats(ratios: Mapping[str, Sequence[float]], margin: float, of_next: bool = False) -> dict[str, Change]:
    """Change of each configuration, from its log-ratios: of repeats, or where the next is meant, of campaigns; `margin` is
    relative, 0.03 for 3 %.

    *slower* and *faster*: beyond the margin, at 5 % over all configurations together (Holm, Scand. J. Statist. 6 (1979)
    65). Holm and not a false discovery rate: one false alarm stops a release, and its bound holds for configurations that
    share rounds and therefore noise. *same*: the 90 % interval lies inside the margin (two one-sided tests at 5 %;
    Schuirmann, J. Pharmacokinet. Biopharm. 15 (1987) 657); that all are the same is claimed only if each is, which needs no
    adjustment. Anything else is *undecided*.
    """
    margins = Region(1 / (1 + margin), 1 + margin)
    within = replace(margins, one_sided=True)
    enough = {key: tuple(values) for key, values in ratios.items() if len(values) >= MIN_REPEATS}
    estimates = {key: Estimate(values, log=True, of_next=of_next) for key, values in enough.items()}
    beyond = {key: margins.p_outside(one) for key, one in estimates.items()}
    adjusted = dict(zip(beyond, holm(beyond.values()), strict=True))
    changes = {}
    for key, values in ratios.items():
        if key not in estimates:
            ratio = math.exp(math.fsum(values) / len(values)) if values else None
            reason = f"{counted(len(values), 'pair')} of {MIN_REPEATS} that an interval needs"
            changes[key] = Change(ratio=ratio, n=len(values), reason=reason)
            continue
        one, p, p_holm = estimates[key], beyond[key], adjusted[key]
        verdict: Verdict = "undecided"
        reason, needed = "", None
        if p_holm <= ERROR:
            verdict = "slower" if one.median < 0 else "faster"
        elif within.p_inside(one) <= ERROR:
            verdict = "same"
        else:
            by_itself = "beyond the margin by itself, not among so many configurations"
            reason = by_itself if p <= ERROR else "the interval is too wide"
            if not of_next:
                is_inside = margins.low < one.value < margins.high
                region, error = (within, ERROR) if is_inside else (margins, ERROR / len(estimates))
                needed = rounds_needed(region, one, error)
        changes[key] = Change(verdict, one.value, *one.interval(1 - ERROR), one.n, p, p_holm, needed, reason)
    return changes


def exit_status(comparison: MachineComparison) -> int:
    """Of a gate: 1 where any is slower, else 3 where any is undecided, else 0."""
    verdicts = [row.change.verdict for row in comparison.compared]
    return 1 if "slower" in verdicts else 3 if "undecided" in verdicts else 0


# Instruments

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
    values_by_key: dict[str, tuple[set[str], set[str]]] = {}
    for pair in pairs:
        old_instrument, new_instrument = ({**run.instrument(), QUESTION: run.run.rpartition("-")[2]} for run in pair)
        for key in old_instrument.keys() | new_instrument.keys():
            if old_instrument.get(key) != new_instrument.get(key):
                olds, news = values_by_key.setdefault(key, (set(), set()))
                olds.add(old_instrument.get(key, "not said"))
                news.add(new_instrument.get(key, "not said"))
    return {key: (sorted(values_by_key[key][0]), sorted(values_by_key[key][1])) for key in sorted(values_by_key)}


def refuse_unasked(found: Differences, across: Sequence[str], instrument: Iterable[str]) -> None:
    """Raise UserError that names each difference which `across` does not name as the question, or a word that is no key."""
    valid_words = {*GROUPS, SOFTWARE, *instrument, *(key for keys in GROUPS.values() for key in keys)}
    for word in across:
        if word not in valid_words:
            raise UserError(f"`{word}` is not a part of an instrument", "--across", nearest(word, valid_words))
    left = {key: values for key, values in found.items() if not {key, _group_of(key)} & set(across)}
    if left:
        lines = "".join(f"\n    {line}" for line in told(left))
        groups = ",".join(dict.fromkeys(map(_group_of, left)))
        raise UserError(
            f"the two were not measured with the same instrument:{lines}",
            remedy=f"measure both with the same, or say that this difference is the question: --across {groups}",
        )


def _group_of(key: str) -> str:
    return next((group for group, keys in GROUPS.items() if key in keys), SOFTWARE)


def told(found: Differences) -> list[str]:
    """`torch: 2.14.1 before, 2.15.0 after`, a line per key."""
    lines = {
        QUESTION: "code: the ids of the runs differ (TRAINER_VERSION, your code in config/extensions/, or step_times.csv)"
    }
    for key, values in found.items():
        old, new = (" / ".join(each[:3]) + (f" and {len(each) - 3} more" if len(each) > 3 else "") for each in values)
        lines.setdefault(key, f"{key}: {old} before, {new} after")
    return [lines[key] for key in found]
