"""Ended runs of a machine, and the time of another run by those that are like it: a set-up time, and a time per sample."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from scalestudy.cluster.plan.counts import Work, data_of, work_of
from scalestudy.files import canonical_json, json_lines
from scalestudy.spec.base import parse
from scalestudy.spec.ids import configuration_id
from scalestudy.spec.run import RunSpec

Span = tuple[float, float]

MIN_FACTOR, MAX_FACTOR = 0.8, 1.5
"""How far a run may lie from its nearest neighbours, at no distance."""
GEOMETRY_FACTOR = 4.0
SIZE_FACTOR = 100.0
"""The ends move outwards once more per so large a factor in ranks or batch per rank, and in samples beyond those seen:
assumptions."""
GEOMETRY = (
    "seed", "repeat", "ranks", "nodes", "hosts", "ranks_per_node", "strategy", "batch", "measure", "train", "optimiser",
)  # fmt: skip


@dataclass(frozen=True)
class EndedRun:
    """One run that ended on this machine: ranks, samples per step of a rank, samples of a rank in all, seconds."""

    ranks: int
    rank_batch: int
    rank_samples: float | None
    seconds: float
    set_up_s: float | None = None
    """Seconds that do not grow with the samples; None where no throughput was measured."""
    configuration: str = ""
    like: str = ""
    strategy: str = ""


Groups = dict[tuple[int, int], list[EndedRun]]
"""By ranks and batch per rank: a large study has many runs of few geometries."""


def read_history(file: Path) -> Iterator[EndedRun]:
    """The completed runs in history.jsonl; damaged lines and lines of other versions are ignored."""
    for entry in json_lines(file):
        try:
            if entry["status"] not in ("valid", "invalid"):
                continue
            spec, _ = parse(RunSpec, entry["spec"])
            seconds = float(entry["wall_s"])  # null where nothing was measured
        except (ValueError, KeyError, TypeError, AttributeError):
            continue
        if spec is None or seconds <= 0:
            continue
        data, throughput = data_of(spec), entry.get("throughput_samples_per_s")
        samples = None if data is None else rank_samples(spec, work_of(spec, data))
        set_up_s = None
        if samples is not None and throughput:
            set_up_s = max(0.0, seconds - samples * spec.ranks / throughput)  # evaluations: a third of training
        yield EndedRun(
            spec.ranks, spec.rank_batch, samples, seconds, set_up_s, configuration_id(spec),
            like_key(entry["spec"]), spec.strategy.name,
        )  # fmt: skip


def like_key(plain: Mapping[str, Any]) -> str:
    """The same for runs that do the same to each sample: model, data apart from its size, loading, device; a program."""
    kept = {key: value for key, value in plain.items() if key not in GEOMETRY}
    if "program" in plain:
        kept["program"] = {key: value for key, value in plain["program"].items() if key != "keys"}
    data = {key: value for key, value in plain.get("data", {}).items() if key not in ("scale", "samples")}
    return canonical_json({**kept, "data": data})


def rank_samples(spec: RunSpec, work: Work) -> float | None:
    """Samples that one rank trains on, evaluates and loads; None where the clock ends the run."""
    if work.minutes:
        return None
    return work.steps * spec.rank_batch + work.evaluated_samples / (3 * spec.ranks) + work.loaded_samples


def by_geometry(ended: Iterable[EndedRun]) -> Groups:
    """Runs with known samples by their ranks and batch per rank."""
    groups: Groups = {}
    for one in ended:
        groups.setdefault((one.ranks, one.rank_batch), []).append(one)
    return groups


def seconds_of(ranks: int, rank_batch: int, samples: float, groups: Groups) -> Span:
    """5th and 95th percentile of the seconds of a run with this geometry and so many samples per rank.

    Each near run with a known set-up time gives a line of its own; one without leaves open which part of its time is
    set-up, from none to all.
    """
    distance = {key: abs(math.log(ranks / key[0])) + abs(math.log(rank_batch / key[1])) for key in groups}
    nearest = min(distance.values())
    near = [one for key, members in groups.items() if distance[key] <= nearest + 1e-9 for one in members]
    durations = [
        set_up_s + (one.seconds - set_up_s) * samples / (one.rank_samples or 1.0)
        for one in near
        for set_up_s in ((0.0, one.seconds) if one.set_up_s is None else (one.set_up_s,))
    ]
    beyond = min(abs(math.log(samples / (one.rank_samples or 1.0))) for one in near)
    power = 1 + nearest / math.log(GEOMETRY_FACTOR) + beyond / math.log(SIZE_FACTOR)
    return min(durations) * MIN_FACTOR**power, max(durations) * MAX_FACTOR**power
