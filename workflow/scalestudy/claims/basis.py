"""What a verdict rests on, what stands for something else in its runs, and how many verdicts rest on what."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass

from scalestudy.claims.model import Claim, OfRuns, Published, Sampled
from scalestudy.errors import UserError
from scalestudy.spec.run import Fault, RunSpec
from scalestudy.spec.step_times import INFINITE, emulated_step_time

DOCUMENT, OURS = "document", "ours"
MEASURED, WITH_STAND_INS, INSTRUMENT_CHECK = "measured", "with stand-ins", "instrument check"
PUBLISHED, ELSEWHERE = "published arithmetic", "elsewhere"
BASES = {
    MEASURED: "runs on this machine, nothing in them stands for anything else",
    WITH_STAND_INS: "runs in which something stands for the real thing; each stand-in is named with its value",
    INSTRUMENT_CHECK: "the number follows from a setting of the study file, so the check is of scalestudy itself",
    PUBLISHED: "arithmetic on published numbers; nothing was measured",
    ELSEWHERE: "this machine or this scale lacks what the claim is about",
}
"""Each basis with its meaning, in the order in which verdicts are counted."""
MARKS = {
    "reproduced": "✓",
    "not reproduced": "✗",
    "inconclusive": "?",
    "passed": "+",
    "failed": "!",
    "consistent": "=",
    "inconsistent": "≠",
    "not testable here": "–",
}
"""Each verdict with its mark, in the order in which verdicts are listed."""
LEARNED = ("accuracy", "auroc", "loss", "parameters", "stages")
"""Columns that do not depend on how fast a device is."""


def basis_of(claim: Claim, stand_ins: Sequence[str]) -> str:
    """The basis of a claim that its scale can judge."""
    if isinstance(claim, Published):
        return PUBLISHED
    if getattr(claim, "follows_from", None):
        return INSTRUMENT_CHECK
    return WITH_STAND_INS if stand_ins else MEASURED


def label(verdict: str, basis: str) -> str:
    """A verdict with its stand-ins: `reproduced with stand-ins`."""
    return f"{verdict} {basis}" if basis == WITH_STAND_INS else verdict


def stand_ins_of(claim: OfRuns, specs: Sequence[RunSpec], devices: Collection[object]) -> list[str]:
    """A sentence for each thing that stands for another in a claim's runs; `devices` names what they trained on."""
    sentences = [sentence for spec in specs for sentence in _of_run(spec)]
    columns = {claim.column} if isinstance(claim, Sampled) else {check.column for check in claim.checks or ()}
    ranks = {spec.ranks for spec in specs if spec.accelerator is None}
    if claim.origin == DOCUMENT and ranks and "cpu" in devices and not columns <= {*LEARNED, "status"}:
        sentences.append(f"{'CPU cores stand' if max(ranks) > 1 else 'A CPU core stands'} for GPUs")
    return list(dict.fromkeys([*sentences, *claim.stand_ins]))


def _of_run(spec: RunSpec) -> Iterator[str]:
    """What a run's settings put in place of the real thing, with their values."""
    if spec.accelerator == INFINITE:
        yield "Computing takes no time"
    elif spec.accelerator:
        yield f"The step of a {spec.accelerator} is emulated{_step_time(spec)}"
    if (storage := spec.loader.storage) is not None:
        rate = "" if storage.mib_per_s is None else f" of {storage.mib_per_s:g} MiB/s"
        yield f"A storage{rate} with {storage.latency_ms:g} ms per request is emulated"
    if spec.network is not None:
        yield f"A network of {spec.network.mib_per_s:g} MiB/s per node is emulated"
    if spec.loader.memory_limit_mib is not None:
        yield f"A page cache of {spec.loader.memory_limit_mib:g} MiB is emulated"
    if (limit := getattr(spec.strategy, "memory_limit_mib", None)) is not None:
        yield f"A device memory of {limit:g} MiB is emulated"
    if latency_s := getattr(spec.data, "latency_s", 0):
        yield f"Each item takes {latency_s:g} s because its reader sleeps"
    for fault in spec.faults:
        yield f"A fault is injected: {_fault_text(fault)}"


def _step_time(spec: RunSpec) -> str:
    try:
        seconds = emulated_step_time(spec.model.name, str(spec.accelerator), spec.rank_batch)
    except (UserError, AttributeError):
        return ""
    return f": {1000 * seconds:.3g} ms for {spec.model.name} with a batch of {spec.rank_batch}"


def _fault_text(fault: Fault) -> str:
    values = {key: value for key, value in fault.plain().items() if key != "kind"}
    return " ".join([fault.kind.replace("_", " "), *(f"{key} {value}" for key, value in values.items())])


@dataclass(frozen=True)
class Tally:
    """How many verdicts rest on one basis, those on documents' claims and those on ours."""

    basis: str
    documents: tuple[tuple[str, int], ...]
    ours: tuple[tuple[str, int], ...]

    @property
    def count(self) -> int:
        """All verdicts on this basis."""
        return sum(count for _, count in self.documents + self.ours)

    def __str__(self) -> str:
        """`measured: 5 (3 reproduced, 1 inconclusive; ours: 1 reproduced)`."""
        groups = [("", self.documents), ("ours: ", self.ours)]
        said = [head + ", ".join(f"{count} {verdict}" for verdict, count in group) for head, group in groups if group]
        return f"{self.basis}: {self.count} ({'; '.join(said)})"


def tallies(verdicts: Iterable[tuple[str, str, str]]) -> list[Tally]:
    """A tally of each basis that there is, from basis, origin and verdict of each claim."""
    counts = Counter(verdicts)

    def group(basis: str, origin: str) -> tuple[tuple[str, int], ...]:
        return tuple((verdict, counts[basis, origin, verdict]) for verdict in MARKS if counts[basis, origin, verdict])

    found = [Tally(basis, group(basis, DOCUMENT), group(basis, OURS)) for basis in BASES]
    return [tally for tally in found if tally.count]
