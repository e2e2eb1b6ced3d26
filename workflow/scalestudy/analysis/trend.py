"""A machine's campaigns side by side: each configuration's speed over them, and where it changed."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from scipy.special import stdtrit

from scalestudy.analysis.change_points import FEWEST, LEVEL, Shift, changes, strongest
from scalestudy.analysis.compare import SPEED, speeds
from scalestudy.analysis.comparison import FEWEST_PAIRS
from scalestudy.analysis.instruments import Differences, differences
from scalestudy.analysis.recorded import Recorded, Records, read_records
from scalestudy.claims.inference import holm
from scalestudy.errors import UserError
from scalestudy.spec.emulated import is_emulated
from scalestudy.spec.layout import BETWEEN, RESULTS, machine_and_campaign

ORDERS = ("time", "name")


@dataclass(frozen=True)
class Campaign:
    """All results of one campaign. The runs that no campaign names have the machine's name."""

    name: str
    records: Records
    started: str
    """When its first run began, ISO 8601; empty where no result says."""


@dataclass(frozen=True)
class Place:
    """One configuration in one campaign: geometric mean of the speed over valid repeats, and its 95 % interval (t on
    logarithms), None below three repeats."""

    campaign: int
    mean: float
    low: float | None
    high: float | None
    values: tuple[float, ...]


@dataclass(frozen=True)
class Series:
    """One configuration over the campaigns that have it."""

    configuration: str
    run: Recorded
    places: tuple[Place, ...]
    p: float | None
    """Of its strongest change; None for fewer than four campaigns."""
    p_holm: float | None
    """The same, adjusted by Holm for all configurations: at most 0.05 makes it a change."""
    changes: tuple[Shift, ...]
    """`start` is an index into `places`, `shift` a difference of logarithms."""
    emulated: bool


@dataclass(frozen=True)
class Trend:
    """Everything that figures and tables over campaigns show."""

    machine: str
    column: str
    campaigns: tuple[Campaign, ...]
    series: tuple[Series, ...]
    instruments: tuple[Differences, ...]
    """For each campaign but the first, in what its instrument differs from that of the campaign before."""


def campaigns_of(machine: str, order: str = "time") -> list[Campaign]:
    """A machine's campaigns, those without a result left out. Raises UserError for fewer than two."""
    folders = [machine, *sorted(path.name for path in RESULTS.glob(f"{machine}{BETWEEN}*"))]
    there = [name for name in folders if any((RESULTS / name).glob("runs/*/result.json"))]
    if len(there) < 2:
        what = f"machine `{machine}` has {len(there)} campaign{'' if len(there) == 1 else 's'} with results"
        remedy = "measure again: snakemake --profile profiles/local --config campaign=NAME"
        raise UserError(f"{what}, and a trend needs two", str(RESULTS), remedy)
    found = []
    for name in there:
        records = read_records(name)
        started = min((str(run.result.get("started") or "") for run in records.runs), default="")
        found.append(Campaign(machine_and_campaign(name)[1] or machine, records, started))
    return sorted(found, key=lambda campaign: campaign.started if order == "time" else campaign.name)


def trend_of(
    machine: str, campaigns: Sequence[Campaign], column: str = SPEED, only: Mapping[str, object] | None = None
) -> Trend:
    """The series of all configurations (or of those in `only`) that at least two campaigns have valid runs of."""
    runs = [campaign.records.by_configuration() for campaign in campaigns]
    keys = dict.fromkeys(key for found in runs for key in found if only is None or key in only)
    series = [_series(key, [found.get(key, {}) for found in runs], column) for key in keys]
    series = [each for each in series if len(each.places) > 1]
    if not series:
        raise UserError("no configuration has valid runs in two campaigns", str(RESULTS), "measure the same studies")
    return Trend(machine, column, tuple(campaigns), tuple(_with_changes(series)), tuple(_instruments(runs, keys)))


def _series(configuration: str, runs: Sequence[Mapping[int, Recorded]], column: str) -> Series:
    places = []
    for campaign, found in enumerate(runs):
        values = tuple(speeds(found, column).values())
        if values:
            places.append(_place(campaign, values))
    every = [run for found in runs for run in found.values()]
    emulated = any(is_emulated(run.spec) for run in every)
    return Series(configuration, every[-1], tuple(places), None, None, (), emulated)


def _place(campaign: int, values: tuple[float, ...]) -> Place:
    logs = [math.log(value) for value in values]
    n, mean = len(logs), math.fsum(logs) / len(logs)
    if n < FEWEST_PAIRS:
        return Place(campaign, math.exp(mean), None, None, values)
    deviation = math.sqrt(math.fsum((value - mean) ** 2 for value in logs) / (n - 1))
    half = float(stdtrit(n - 1, 0.975)) * deviation / math.sqrt(n)
    return Place(campaign, math.exp(mean), math.exp(mean - half), math.exp(mean + half), values)


def _with_changes(series: Sequence[Series]) -> list[Series]:
    """Holm over the strongest change of each configuration; what is significant is divided further."""
    logs = [[math.log(place.mean) for place in each.places] for each in series]
    firsts = [strongest(values) for values in logs]
    adjusted = holm([first.p for first in firsts if first is not None])
    found = []
    for each, values, first in zip(series, logs, firsts, strict=True):
        if first is None:
            found.append(each)
            continue
        p_holm = adjusted.pop(0)
        made = changes(values, first) if p_holm <= LEVEL else []
        found.append(replace(each, p=first.p, p_holm=p_holm, changes=tuple(made)))
    return found


def _instruments(runs: Sequence[Mapping[str, Mapping[int, Recorded]]], keys: Mapping[str, None]) -> list[Differences]:
    """What changed from each campaign to the next, over the runs that both have."""
    found = []
    for before, after in pairwise(runs):
        pairs = [
            (before[key][repeat], after[key][repeat])
            for key in keys
            if key in before and key in after
            for repeat in before[key].keys() & after[key].keys()
            if before[key][repeat].is_valid and after[key][repeat].is_valid
        ]
        found.append(differences(pairs))
    return found


def too_few(trend: Trend) -> str:
    """Said where no series is long enough for a change to be found; else empty."""
    longest = max(len(each.places) for each in trend.series)
    return f"{longest} campaigns; a change point needs {FEWEST}" if longest < FEWEST else ""
