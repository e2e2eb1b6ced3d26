"""Rates of preparation, samples per second: those of this folder's jobs, else between two known rates."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from scalestudy.cluster.ledger.used import LedgerAttempt
from scalestudy.cluster.plan.costs import data_of, used_in_place
from scalestudy.cluster.plan.expected import UNKNOWN, TimeEstimate
from scalestudy.cluster.plan.neighbours import Span
from scalestudy.data.catalogue import Synthetic
from scalestudy.data.manifest import read_manifest
from scalestudy.errors import UserError
from scalestudy.spec.layout import manifest_file
from scalestudy.spec.run import RunSpec

INDEXED_PER_S: Span = (200.0, 106_000.0)
MADE_PER_S: Span = (50.0, 7_100.0)
"""Samples per second of one node, to find files and look at their sizes, and to write them as well. The slower is an
assumption, by which jobs request their walltime; the faster was measured with files of 1 kB
(docs/measured/data_preparation.txt): larger ones, and images that are decoded, take longer."""
LEARNED: Span = (0.5, 2.0)
"""Factor by which a rate that jobs of this folder have reached may be missed."""


def expected(spec: RunSpec, start_up_s: Span, attempts: Iterable[LedgerAttempt]) -> TimeEstimate:
    """Seconds of the job that prepares the data of a run, its start-up included; `attempts` are this folder's jobs."""
    data = data_of(spec)
    if data is None:
        return UNKNOWN
    # Data that is made while it is read needs no preparation.
    samples = 0 if isinstance(spec.data, Synthetic) else data.train_samples + data.test_samples
    learned = list(_learned(spec, attempts))
    if learned:
        slow, fast = LEARNED[0] * min(learned), LEARNED[1] * max(learned)
        note = f"{len(learned)} datasets of this form that jobs of this folder prepared"
    else:
        slow, fast = INDEXED_PER_S if used_in_place(spec) else MADE_PER_S
        note = f"{slow:,.0f} to {fast:,.0f} samples per second"
    low, high = start_up_s
    return TimeEstimate(samples / fast + low, samples / slow + high, "neighbours" if learned else "rates", note)


def _learned(spec: RunSpec, attempts: Iterable[LedgerAttempt]) -> Iterator[float]:
    """Samples per second of the datasets that have the same source and form."""
    for dataset in dict.fromkeys(one.run for one in attempts if one.rule == "dataset" and one.used_s):
        file = manifest_file(dataset)
        try:
            manifest = read_manifest(file) if file.is_file() else None
        except UserError:
            continue
        if manifest is None or manifest.status != "ready" or not manifest.seconds:
            continue
        if _form(manifest.spec) == _form(spec.data.plain()):
            yield (manifest.train.samples + manifest.test.samples) / manifest.seconds


def _form(data: Mapping[str, Any]) -> tuple[Any, ...]:
    """Factors of a sample's time: its source and its written form."""
    return data.get("source"), data.get("preprocess"), data.get("resize"), (data.get("shard") or {}).get("format")
