"""Report of one rank on its part of a run: plain data, written by the rank, read by `results/`."""

from __future__ import annotations

import math
import resource
from collections.abc import Mapping
from dataclasses import asdict, astuple, dataclass, field
from typing import Annotated, Any, Self

from pydantic import BeforeValidator, TypeAdapter

Measured = Annotated[float, BeforeValidator(lambda value: math.nan if value is None else value)]
"""A number; JSON has None for one that is not known."""


class _Plain:
    """A dataclass that is read from the JSON it was written to."""

    @classmethod
    def from_plain(cls, plain: Mapping[str, Any]) -> Self:
        """The instance; keys of another version of the code are left out."""
        return TypeAdapter(cls).validate_python(plain)

    def to_dict(self) -> dict[str, Any]:
        """As JSON holds it."""
        return asdict(self)  # type: ignore[call-overload, no-any-return]


@dataclass(frozen=True)
class Evaluation(_Plain):
    """The scores of all held-out samples after a step; None where there is no such score."""

    epoch: float
    step: int
    time_s: float
    """When it began, in seconds of the training loop."""
    evaluation_s: float
    accuracy: float | None = None
    auroc: float | None = None
    """Mean over labels."""
    loss: float | None = None
    chance: float | None = None
    """The same score of answers that ignore the sample: the share of the most frequent class, or 0.5 of AUROC."""
    auroc_per_label: list[float | None] | None = None
    """None for a label of which all samples have one class."""
    invalid_reason: str | None = None
    """Why there are no scores."""


@dataclass(frozen=True)
class KernelUsage(_Plain):
    """The kernel's counters of one process between two moments (getrusage(2)), its worker processes left out."""

    user_s: float
    system_s: float
    minor_faults: float
    major_faults: float
    involuntary_switches: float

    @staticmethod
    def now() -> KernelUsage:
        """Since the process began."""
        used = resource.getrusage(resource.RUSAGE_SELF)
        return KernelUsage(used.ru_utime, used.ru_stime, used.ru_minflt, used.ru_majflt, used.ru_nivcsw)

    def since(self, earlier: KernelUsage) -> KernelUsage:
        """The difference to an earlier moment."""
        return KernelUsage(*(now - then for now, then in zip(astuple(self), astuple(earlier), strict=True)))


@dataclass(frozen=True)
class CheckpointCost(_Plain):
    """Cost of one checkpoint."""

    step: int
    seconds: float
    bytes: int
    """0 on all ranks but rank 0."""
    stop: bool
    """The run stopped with it."""
    cause: str


@dataclass(frozen=True)
class Staging(_Plain):
    """Staging of a node, as one rank sees it."""

    node: int
    seconds: float
    """From the first byte until all nodes had their copies; of several attempts at a run, all together."""
    copied_bytes: int
    """What this rank copied: one of each node does."""
    bytes: int
    """All copies of its node."""


@dataclass
class Report(_Plain):
    """Report of one rank, at its end and in each checkpoint."""

    rank: int
    steps_done: int = 0
    samples_seen: int = 0
    seen: int | None = None
    """Which samples they were, as one number (data/load/sampler.py); None: a version before it began the run."""
    window: tuple[int, int] = (0, 0)
    """First step of the measurement window, and the step after its last."""
    left_out: list[tuple[int, int]] = field(default_factory=list)
    """Stretches of steps, the last one excluded, that warm up again after a stop and are not in the window."""
    pauses: list[int] = field(default_factory=list)
    """Numbers of steps done after which something else was done: an evaluation, a checkpoint."""
    window_left_s: float | None = None
    """At a checkpoint: what is left of `measure.minutes`, None before the window."""
    window_clock: tuple[float, float] | None = None
    """When the window began and ended, on this host's clock (`perf_counter`); of the last attempt at the run."""
    host_rows: list[dict[str, Measured]] = field(default_factory=list)
    """By the first rank of each host, before the window and after its last step: `rows_of_rank` (measure/system.py)."""
    window_usage: KernelUsage | None = None
    """In the window of the last attempt, evaluations and checkpoints included."""
    window_usage_steps: int = 0
    """Steps of that window."""
    loop_s: float = 0.0
    """Time of the steps and what is between them, without the time from a stop to the resumption."""
    epochs_done: float = 0.0
    checkpoints: list[CheckpointCost] = field(default_factory=list)
    evaluations: list[Evaluation] = field(default_factory=list)
    training_accuracy: float | None = None
    """After a whole training, of as many training samples as are held out."""
    loader_samples_per_s: float | None = None
    read_bytes: int | None = None
    window_read_bytes: int | None = None
    """Of these, bytes read since the window began: before it, the first steps load a GPU's libraries from storage."""
    uncounted_reads: str | None = None
    """The file system of the data where the kernel does not count what is read from it (data/io_accounting.py)."""
    resident_share: float | None = None
    """Of the node's training files, in the page cache after it was warmed or emptied; the node's first rank knows."""
    stage: Staging | None = None
    """Copies on this node's own disk, None where the data is read in place."""
    node_steps: int | None = None
    """Steps of an epoch, where each node has samples of its own and no others; else they follow from the data."""
    decoders: list[str] = field(default_factory=list)
    """How images are decoded, in each attempt at the run; each way once."""
    parameters: int = 0
    parameter_digest: str | None = None
    own_code: dict[str, str] = field(default_factory=dict)
    """SHA-256 of the user's own files that this process trained with, by their `import`."""
    imported: dict[str, str] = field(default_factory=dict)
    """SHA-256 of further files of the user's own that those import, by name."""
    computed_on: list[str] = field(default_factory=list)
    """Kinds of device that hold the parameters and the last loss."""
    finite: bool = True
    """Every loss and every parameter."""
    backend: str = "none"
    overlapped: bool = False
    """The exchange happens inside backward and has no time of its own."""
    forward_apart: bool = True
    """Forward and backward have times of their own."""
    device_name: str = ""
    tf32: list[str] | None = None
    """Which products of float32 may be computed in TF32; None on a CPU."""
    host: dict[str, Any] = field(default_factory=dict)
    """Processor, memory and kernel of its machine, and the version of torch (measure/instrument.py)."""
    affinity: list[int] = field(default_factory=list)
    placement: dict[str, Any] = field(default_factory=dict)
    """Host, cores, device (measure/placement.py)."""
    interface: str | None = None
    """Network interface of gloo, where several machines take part."""
    faults: dict[str, int] = field(default_factory=dict)
    """How often each injected fault fired."""
    setup_s: float | None = None
    strategy: dict[str, Measured] = field(default_factory=dict)
    """Further columns that the strategy knows."""
    sample_at_peak_s: float | None = None
    """Seconds to train on one sample at the peaks that the machine states, by rank 0's count (models/count.py)."""
    exchange_pairs: list[tuple[float, float]] = field(default_factory=list)
    """Seconds of steps with an overlapped exchange and without it (exposed.py)."""
    threads: int | None = None
    """Of torch, after the last step."""
    warnings: list[str] = field(default_factory=list)
    """What this rank found unusual in its model and its data."""
    invalid_reason: str | None = None
    """Why the run is invalid as far as this rank's strategy knows."""
