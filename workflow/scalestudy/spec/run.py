"""RunSpec: one measurement, frozen and validated, in the words of design and command line."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Annotated, Any, Literal, get_args

from pydantic import BeforeValidator, Discriminator, Field, Tag

from scalestudy.data.catalogue import Digits, NamedData, OwnData
from scalestudy.models.catalogue import NamedModel, OwnModel, SmallCNN
from scalestudy.spec.base import Spec
from scalestudy.spec.columns import DEVICE_FREE_COLUMNS, is_number
from scalestudy.spec.program import Program
from scalestudy.strategies.catalogue import AnyStrategy, Single

Count = Annotated[int, Field(ge=1, le=1_000_000)]
MAX_REPEATS = 10_000
"""Of a configuration."""
HOST = r"^[A-Za-z0-9][A-Za-z0-9._-]{0,252}$"
THIS_HOST = "localhost"
"""As a run's host: the one where its command is started, whatever its name."""


def one_or_more(value: Any) -> Any:
    """A list of names; one name alone may be written without brackets."""
    return (value,) if isinstance(value, str) else tuple(value) if isinstance(value, list) else value


Hosts = Annotated[tuple[Annotated[str, Field(pattern=HOST)], ...], Field(min_length=1), BeforeValidator(one_or_more)]


def _kind(value: Any) -> str:
    """Tag of a union member: a class of the user's own, or one by name."""
    is_own = "import" in value if isinstance(value, dict) else hasattr(value, "import_")
    return "import" if is_own else "named"


def short(named: Any, whole: Any) -> BeforeValidator:
    """Accept a name in place of a map that holds nothing but the name."""
    names = tuple(name for member in get_args(named) for name in get_args(member.model_fields["name"].annotation))
    return BeforeValidator(
        lambda value: {"name": value} if isinstance(value, str) else value,
        json_schema_input_type=Literal[names] | whole,
    )


Model = Annotated[
    Annotated[NamedModel, Field(discriminator="name"), Tag("named")] | Annotated[OwnModel, Tag("import")],
    Discriminator(_kind),
    short(NamedModel, NamedModel | OwnModel),
]
Strategy = Annotated[AnyStrategy, Field(discriminator="name"), short(AnyStrategy, AnyStrategy)]
Data = Annotated[
    Annotated[NamedData, Field(discriminator="source"), Tag("named")] | Annotated[OwnData, Tag("import")],
    Discriminator(_kind),
]


class Batch(Spec):
    """How many samples a step takes: fixed per rank (weak scaling) or in all (strong scaling)."""

    per_rank: Count | None = None
    """Samples per rank and step."""
    global_: Annotated[Count | None, Field(alias="global")] = None
    """Samples per step over all ranks."""
    accumulate: Annotated[int, Field(ge=1, le=4096)] = 1
    """Micro-batches of a rank, computed one after the other; gradients accumulate, with one exchange and update per step."""


class LearningRateSteps(Spec):
    """The learning rate falls in steps."""

    every_epochs: Annotated[float, Field(gt=0)]
    """Epochs between two steps."""
    factor: Annotated[float, Field(gt=0, lt=1)] = 0.1
    """Factor of each step."""


class Optimiser(Spec):
    """Momentum SGD and its learning rate."""

    name: Literal["sgd"] = "sgd"
    """Stochastic gradient descent."""
    learning_rate: Annotated[float, Field(gt=0, le=1000)] = 0.1
    """Rate after warm-up, before the first step."""
    learning_rate_for_batch: Count | None = None
    """Global batch that `learning_rate` is meant for: the rate is scaled linearly (Goyal et al. 2017). Unset: not scaled."""
    momentum: Annotated[float, Field(ge=0, lt=1)] = 0.9
    """Momentum."""
    weight_decay: Annotated[float, Field(ge=0, le=1)] = 0.0
    """L2 penalty."""
    nesterov: bool = False
    """Nesterov momentum."""
    warmup_epochs: Annotated[float, Field(ge=0)] = 0.0
    """Epochs over which the rate rises linearly, from the unscaled rate or, where none is scaled up, from a tenth."""
    steps: LearningRateSteps | None = None
    """Steps of the rate; none: constant."""


class Train(Spec):
    """The full training."""

    epochs: Annotated[int, Field(ge=1, le=1_000_000)] = 1
    """Passes over the training data."""
    evaluate_every_epochs: Annotated[int, Field(ge=0, le=1_000_000)] = 1
    """Epochs between evaluations on held-out data, which also follow the last epoch; 0: never."""


MIN_WINDOW_STEPS = 5
"""Fewer measured steps mean nothing: a run with a shorter window is invalid."""


class Measure(Spec):
    """Where a run is measured, and where it ends before its full training."""

    warmup_steps: Annotated[int, Field(ge=0, le=10_000_000)] = 5
    """Steps before the measured window."""
    steps: Annotated[int, Field(ge=1, le=100_000_000)] | None = None
    """Length of the window in steps; the run ends after it. None: the full training."""
    minutes: Annotated[float, Field(gt=0, le=1_000_000)] | None = None
    """Length of the window in minutes; the run ends after it. None: the full training."""
    loader_batches: Annotated[int, Field(ge=0, le=10_000_000)] = 0
    """Batches per worker that are loaded first, without training, to measure the loader alone: workers finish in rounds, and
    part of a round says little. `workers * prefetch` batches before them fill the queue and are not timed. Where the full
    training has fewer batches in all, the loader is not timed, and a warning of the run says so."""
    trace_steps: Annotated[int, Field(ge=0, le=100)] = 0
    """Steps after the window that torch.profiler traces: `trace.json.gz` beside the result, which Perfetto opens, and what
    hides what as columns. They train on the next batches at a learning rate of 0, and count nowhere else."""
    trace_ranks: Annotated[tuple[Annotated[int, Field(ge=0)], ...], Field(min_length=1)] | None = None
    """Ranks that are traced; unset: all."""
    whole_program: bool = False
    """The program is timed, not its steps: `wall_s`, `setup_s` and the sums of phases count; there is no throughput."""


class Storage(Spec):
    """A slower storage than the real one, emulated for all ranks of a node together."""

    mib_per_s: Annotated[float, Field(gt=0, le=1e9)] | None = None
    """Most that it delivers, MiB/s per node; unset: no limit."""
    latency_ms: Annotated[float, Field(ge=0, le=10_000)] = 0.0
    """Delay of each request, milliseconds; concurrent requests wait concurrently."""


class Checkpoint(Spec):
    """When a run writes checkpoints, in addition to when it stops. Two are kept until the result is written."""

    every_steps: Annotated[int, Field(ge=1, le=100_000_000)] | None = None
    """Steps from one to the next."""


NGINX = "nginx"
"""An origin that the run starts."""


class Loader(Spec):
    """How a rank gets its batches."""

    mode: Literal["file", "shards", "stream", "database", "memory", "synthetic"] | None = None
    """`file`, `shards`, `database`: each sample by itself, in random order; `stream`: in sequence, through a shuffle
    buffer, never onto a disk; `memory`: read once, then from memory; `synthetic`: nothing is read or decoded. Unset: as
    the data's format is read sample by sample."""
    kind: Literal["threads", "processes"] = "threads"
    """Whether workers are threads or processes, which pass batches through shared memory."""
    origin: str | None = None
    """Another folder, or an http(s) address with range requests, that holds the same files and is read instead. `nginx`: a
    server that the run starts, on a node of its own of the emulated `network`."""
    shuffle_buffer: Annotated[int, Field(ge=1, le=10_000_000)] = 1000
    """Samples per rank from which a stream draws the next one."""
    pin_memory: bool = True
    """Page-locked batches where there is a GPU, copied to it ahead of their use on a separate stream."""
    storage: Storage | None = None
    """An emulated storage with a given rate and latency; unset: the real one."""
    workers: Annotated[int, Field(ge=0, le=4096)] = 1
    """Workers per rank, each making complete batches; 0: the training thread makes them."""
    prefetch: Annotated[int, Field(ge=1, le=1024)] = 2
    """Batches made ahead per worker."""
    size: Annotated[int, Field(ge=1, le=16384)] | None = None
    """Height and width of a training image; unset: as the source has them, 224 for JPEG."""
    augment: Literal["none", "flip", "crop_flip"] = "none"
    """Random horizontal flip; or random resized crop and flip. Drawn from (seed, epoch, sample)."""
    memory_limit_mib: Annotated[float, Field(gt=0)] | None = None
    """Page cache that the files of the data may fill, per node: the least recently read beyond it are dropped."""
    cache: Literal["as_found", "warm", "cold"] = "as_found"
    """Before the run: leave the page cache, read all data once, or drop all data from it."""


class Stage(Spec):
    """Copies of the data on each node's own disk, made by the run before it trains.

    `loader.storage` then limits the copying, not reads from the copies.
    """

    to: Literal["scratch"] | None = None
    """`scratch`: the folder that the site names for it (site.yaml); unset: no copies, the data is read in place."""
    from_: Annotated[str | None, Field(alias="from")] = None
    """Folder or http(s), s3, gs or az address of the same files; unset: `loader.origin`, or the data's own folder."""
    share: Literal["all", "by_shard"] = "all"
    """`all`: every node has everything; `by_shard`: node k of N has training shards (or files) k, k + N, k + 2 N, ..., and
    its ranks see no others (ShardedByS3Key of Amazon SageMaker)."""
    streams: Annotated[int, Field(ge=1, le=1024)] = 4
    """Threads of a node that copy, each with a separate connection."""
    mib_per_s: Annotated[float, Field(gt=0, le=1e9)] | None = None
    """Most that a node copies, MiB/s; unset: no limit."""
    reuse: bool = True
    """Use whole copies that an earlier run left on the node, and leave them there. `false`: as on a new node."""


LauncherName = Literal["auto", "local", "srun", "pbsdsh", "qrsh", "mpiexec", "ssh", "mpirun"]


class Launch(Spec):
    """How the processes of a run are started, and which cores each may use."""

    launcher: LauncherName | None = None
    """How other nodes are reached; unset: as the site says. `mpirun` starts every rank itself, on one node too."""
    binding: Literal["none", "core", "socket"] = "none"
    """`core`: each process has `threads_per_rank` cores to itself; `socket`: all cores of one socket, its device's or in turn."""
    oversubscribe: bool = False
    """Whether several ranks may share a device, over gloo: NCCL refuses that. Such a run is marked oversubscribed."""


class SlowRank(Spec):
    """One rank waits in every step."""

    kind: Literal["slow_rank"]
    rank: Annotated[int, Field(ge=0)]
    """Which rank."""
    seconds: Annotated[float, Field(gt=0, le=3600)]
    """How long, in each step."""
    from_step: Annotated[int, Field(ge=0)] = 0
    """First step that is slow."""


class SlowDecode(Spec):
    """Making a batch takes longer, on every rank."""

    kind: Literal["slow_decode"]
    seconds: Annotated[float, Field(gt=0, le=3600)]
    """How much longer, per batch."""


class KilledRank(Spec):
    """One rank is killed by SIGKILL."""

    kind: Literal["killed_rank"]
    rank: Annotated[int, Field(ge=0)]
    """Which rank."""
    at_step: Annotated[int, Field(ge=0)]
    """Before which step."""


Fault = Annotated[SlowRank | SlowDecode | KilledRank, Field(discriminator="kind")]


class Network(Spec):
    """An emulated network: each node a network namespace, its link to one switch limited by a token bucket."""

    mib_per_s: Annotated[float, Field(gt=0, le=100_000)]
    """Rate of a node's link in each direction, MiB/s of Ethernet frames."""
    latency_ms: Annotated[float, Field(ge=0, le=1_000)] = 0.0
    """What a message between nodes takes more than its way through this host's kernel, ms in each direction."""


class RunSpec(Spec):
    """One measurement. Values that the machine resolves (`nodes`, `threads_per_rank`) are None here."""

    program: Program | None = None
    """A training script of your own in place of the project's trainer."""
    model: Model = SmallCNN(name="small_cnn")
    """What is trained: a name, a name with options, or `{import: file:Class, kwargs: {...}}`."""
    strategy: Strategy = Single(name="single")
    """How ranks exchange: a name, or a name with options."""
    ranks: Count = 1
    """Processes with a device."""
    nodes: Count | None = None
    """Nodes; unset: what the machine needs for the ranks."""
    ranks_per_node: Count | None = None
    """Ranks on each node; unset: as many as the node has devices."""
    hosts: Hosts | None = None
    """Names of the nodes that it runs on; `localhost`: where the command is started. Unset: whichever nodes its job gets."""
    threads_per_rank: Annotated[int, Field(ge=1, le=4096)] | None = None
    """CPU threads of a rank; unset: the machine's share, the same for all rank counts of a study."""
    dtype: Literal["float32", "float64", "bfloat16"] = "float32"
    """Number type of weights and activations."""
    autocast: Literal["bfloat16", "float16"] | None = None
    """Mixed precision: forward and loss in this type where torch.autocast holds it safe; weights stay in `dtype`."""
    tf32: bool | None = None
    """Whether a GPU may compute float32 products in TF32, with 10 bits of mantissa. Unset: in convolutions alone, as torch."""
    memory_format: Literal["contiguous", "channels_last"] = "contiguous"
    """Layout of images and convolution weights in memory."""
    compile: bool = False
    """Whether the model is compiled by torch.compile, before the first step; evaluations run it uncompiled."""
    seed: Annotated[int, Field(ge=0, lt=2**31)] = 0
    """Seed of weights, order and augmentation; repeat k adds k."""
    repeat: Annotated[int, Field(ge=0, lt=MAX_REPEATS)] = 0
    """Which repeat this is; set by the study's `repeats`."""
    device: Annotated[str, Field(pattern=r"^(cpu|cuda|emulated:[a-z0-9_]+)$")] | None = None
    """`cpu`, `cuda`, or `emulated:<accelerator>` (config/reference/step_times.csv); unset: the machine's."""
    memory_limit_mib: Annotated[float, Field(gt=0)] | None = None
    """Limit of a rank's memory while it trains on a batch, MiB above its use before the model is built. More is refused, on a
    CPU by the kernel, on a GPU by torch. `pipeline` plans its stages with it. Unset: no limit."""
    network: Network | None = None
    """An emulated network between the nodes, which are logical ones on one host; unset: the real network."""
    data: Data = Digits(source="digits")
    """The dataset."""
    loader: Loader = Loader()
    """How a rank gets its batches."""
    stage: Stage = Stage()
    """Copies on the nodes' own disks."""
    batch: Batch = Batch(per_rank=32)
    """Samples per step."""
    optimiser: Optimiser = Optimiser()
    """Momentum SGD."""
    train: Train = Train()
    """The full training."""
    measure: Measure = Measure()
    """Where a run is measured and ends."""
    checkpoint: Checkpoint = Checkpoint()
    """When checkpoints are written; by default only when the run stops before its end."""
    launch: Launch = Launch()
    """How its processes are started."""
    heartbeat_timeout_s: Annotated[float, Field(ge=2, le=86400)] = 30.0
    """Seconds after which a process without a heartbeat ends the run. A slow step has one."""
    keep: Literal["weights"] | None = None
    """`weights`: keep the final weights as safetensors next to the result."""
    faults: tuple[Fault, ...] = ()
    """Faults to inject, each counted when it fires."""

    @property
    def nodes_named(self) -> int | None:
        """Nodes, where the run says how many, or which."""
        return len(self.hosts) if self.hosts is not None else self.nodes

    @property
    def accelerator(self) -> str | None:
        """The emulated accelerator's name, None where compute is real."""
        return self.device.removeprefix("emulated:") if self.device and self.device.startswith("emulated:") else None

    @property
    def global_batch(self) -> int:
        """Samples per step over all ranks."""
        return self.batch.global_ if self.batch.global_ is not None else (self.batch.per_rank or 0) * self.ranks

    @property
    def rank_batch(self) -> int:
        """Samples per step of one rank."""
        return self.global_batch // self.ranks

    @property
    def runs_full_training(self) -> bool:
        """Whether nothing ends the run before its last epoch."""
        return self.measure.steps is None and self.measure.minutes is None


INFINITE = "infinite"
"""The emulated accelerator that takes no time."""


def is_compute_emulated(row: Mapping[str, Any]) -> bool:
    """Whether the ranks of a run, of which this is the row, wait in place of computing, use no core, and learn nothing."""
    return str(row.get("device") or "").startswith("emulated:")


EMULATED = {
    "network": ("network.mib_per_s",),
    "storage": ("loader.storage.mib_per_s", "loader.storage.latency_ms"),
    "page cache": ("loader.memory_limit_mib",),
}
"""Emulated parts beside compute, each with the numbers of which its runs have one."""


def emulated_parts(rows: Iterable[Mapping[str, Any]], column: str = "") -> tuple[str, ...]:
    """Parts of the system that are emulated in any of these runs, where the column depends on them."""
    rows = list(rows)
    compute = ("compute",) if column not in DEVICE_FREE_COLUMNS and any(map(is_compute_emulated, rows)) else ()
    emulated = (part for part, keys in EMULATED.items() if any(is_number(row.get(key)) for row in rows for key in keys))
    return (*compute, *emulated)
