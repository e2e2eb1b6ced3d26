"""Bytes that a run read from storage against its claim: too few, too many, or unknown."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from scalestudy.data.io_accounting import IN_MEMORY
from scalestudy.data.manifest import Manifest
from scalestudy.results.metrics import Values, total
from scalestudy.spec.labels import quantity
from scalestudy.spec.run import RunSpec
from scalestudy.training.report import Report

MIN_READ = 0.9
"""Of the bytes that storage must deliver, at least so much has to have been read."""
MAX_WARM = 0.1
"""Of the training data, at most so much may have been read from storage where all of it was in the page cache."""
MAX_WARM_BYTES = 16 * 2**20
"""Always allowed: a process also reads code and held-out samples."""


@dataclass(frozen=True)
class Reads:
    """The verdict on a run's reads; all None where nothing is wrong, or nothing was claimed."""

    invalid: str | None = None
    unchecked: str | None = None


def judge_reads(spec: RunSpec, manifest: Manifest, reports: Sequence[Report], values: Values) -> Reads:
    """Compare the bytes read with the claim of `loader.cache` and `loader.memory_limit_mib`."""
    loader, read, expected = spec.loader, values["read_bytes"], values["expected_read_bytes"] or 0.0
    is_warm = loader.cache == "warm" and loader.memory_limit_mib is None and loader.mode != "synthetic"
    if manifest.format == "tensors" or (not expected and not is_warm):
        return Reads()
    uncounted = list(dict.fromkeys(report.uncounted_reads for report in reports if report.uncounted_reads))
    if any(name in IN_MEMORY for name in uncounted):
        return Reads() if is_warm else Reads(f"the data lies in memory ({uncounted[0]}), so its cache cannot be cold")
    if uncounted or read is None:
        claim = "the data was in the page cache" if is_warm else "storage delivered the data"
        on = f"reads on {' and '.join(uncounted)} are not counted by the kernel"
        why = on if uncounted else "this kernel counts no reads of processes"
        return Reads(unchecked=f"whether {claim} cannot be checked: {why}")
    if is_warm and any("cuda" in report.computed_on for report in reports):  # whose libraries the first steps load
        read = total(report.window_read_bytes or 0 for report in reports) or 0.0
    finding = f"{quantity(read, 'B')} were read from storage"
    if is_warm and read > max(MAX_WARM_BYTES, MAX_WARM * manifest.train.bytes):
        return Reads(f"{finding} though the page cache was filled before: the data did not stay in it")
    if not is_warm and read < MIN_READ * expected:
        return Reads(f"{finding}, at least {quantity(expected, 'B')} were expected: the data was cached")
    return Reads()
