"""Bytes that a run read from storage against its need: too little, too much, or unknown."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from scalestudy.data.io_accounting import IN_MEMORY
from scalestudy.data.manifest import Manifest
from scalestudy.results.metrics import Values, largest
from scalestudy.spec.run import RunSpec
from scalestudy.training.report import Report

LEAST = 0.9
"""Of the bytes that storage must deliver, at least so much has to have been read."""
MOST_WARM = 0.1
"""Of the training data, at most so much may have been read from storage where all of it was in the page cache."""
MOST_WARM_BYTES = 16 * 2**20
"""Always allowed: a process also reads code and held-out samples."""
MUCH, MUCH_BYTES = 2.0, 64 * 2**20
"""Beyond so many times what had to be read, and so many bytes more, something was read in vain. Whole pages, blocks of
inodes and read-ahead stay below that where files are not tiny."""


@dataclass(frozen=True)
class Reads:
    """The verdict on a run's reads; all None where nothing is wrong, or nothing was claimed."""

    invalid: str | None = None
    unchecked: str | None = None
    warning: str | None = None


def judge_reads(spec: RunSpec, manifest: Manifest, reports: Sequence[Report], values: Values) -> Reads:
    """Compare the bytes read with the claim of `loader.cache` and `loader.memory_limit_mib`."""
    expected = values["expected_read_bytes"]
    warm = _claims_warm(spec)
    if manifest.format == "tensors" or (not expected and not warm):
        return Reads()
    uncounted = list(dict.fromkeys(report.uncounted_reads for report in reports if report.uncounted_reads))
    if any(name in IN_MEMORY for name in uncounted):
        return Reads() if warm else Reads(f"the data lies in memory ({uncounted[0]}), so its cache cannot be cold")
    if uncounted or values["read_bytes"] is None:
        return _without_count(uncounted, reports, expected or 0.0, warm)
    read = values["read_bytes"]
    return _warm(read, manifest) if warm else _cold(read, expected or 0.0)


def _claims_warm(spec: RunSpec) -> bool:
    """Whether the run says that storage has nothing to deliver because all data is in the page cache."""
    loader = spec.loader
    return loader.cache == "warm" and loader.memory_limit_mib is None and loader.mode != "synthetic"


def _warm(read: float, manifest: Manifest) -> Reads:
    if read <= max(MOST_WARM_BYTES, MOST_WARM * manifest.train.bytes):
        return Reads()
    return Reads(
        f"{_mib(read)} were read from storage though the page cache was filled before: the data did not stay in it"
    )


def _cold(read: float, expected: float) -> Reads:
    if read < LEAST * expected:
        what = f"{_mib(read)} were read from storage, at least {_mib(expected)} were expected: the data was cached"
        return Reads(what)
    if read > MUCH * expected + MUCH_BYTES:
        return Reads(
            warning=f"{_mib(read)} were read from storage, {read / expected:.1f} times what had to be: pages were dropped "
            "and read again, or read ahead in vain"
        )
    return Reads()


def _without_count(uncounted: Sequence[str], reports: Sequence[Report], expected: float, warm: bool) -> Reads:
    """The kernel counted nothing: a Lustre client's count for its whole host is an upper bound."""
    hosts = _hosts(reports)
    from_servers = all(report.client_counts_servers for report in reports)
    if hosts is not None and from_servers and hosts < LEAST * expected:
        return Reads(
            f"all processes of the run's hosts together received {_mib(hosts)} from Lustre's servers, at least "
            f"{_mib(expected)} were expected: the data was cached"
        )
    why = f"reads on {' and '.join(uncounted)} are not counted by the kernel" if uncounted else ""
    claim = "the data was in the page cache" if warm else "storage delivered the data"
    sentence = f"whether {claim} cannot be checked: {why or 'this kernel counts no reads of processes'}"
    return Reads(unchecked="".join([sentence, *_client(hosts, from_servers, expected)]))


def _client(hosts: float | None, from_servers: bool, expected: float) -> Iterator[str]:
    if hosts is None:
        return
    yield (
        f"; Lustre's servers sent {_mib(hosts)} to the run's hosts, to other processes too"
        if from_servers
        else f"; programs of the run's hosts read {_mib(hosts)} from Lustre or its cache"
    )
    if expected:
        yield f", where at least {_mib(expected)} were expected"


def _hosts(reports: Sequence[Report]) -> float | None:
    """Sum over hosts of their clients' counts; each rank saw all of its host's. None where one host is not known."""
    names = dict.fromkeys(report.placement.get("host") for report in reports)
    found = [
        largest(report.client_read_bytes for report in reports if report.placement.get("host") == name)
        for name in names
    ]
    return None if None in found else float(sum(value for value in found if value is not None))


def _mib(value: float) -> str:
    """Bytes in the unit in which they are not 0."""
    if value >= 2**20:
        return f"{value / 2**20:,.0f} MiB"
    return f"{value / 2**10:,.0f} KiB" if value >= 2**10 else f"{value:.0f} bytes"
