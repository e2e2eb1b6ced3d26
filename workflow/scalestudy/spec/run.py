"""RunSpec: one measurement, frozen and validated, in the words of design and command line."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any, Literal

from pydantic import Field

from scalestudy.data.catalogue import AnyData, Digits
from scalestudy.data.modes import FORMAT_OF_SHARD, MODES, TENSOR_SOURCES
from scalestudy.errors import Problem
from scalestudy.models.catalogue import AnyModel, SmallCNN
from scalestudy.spec.base import Spec, shown
from scalestudy.spec.choice import Choice
from scalestudy.spec.renamed import with_new_names, with_stored_names
from scalestudy.spec.sizes import MOST_BYTES, size_in_bytes
from scalestudy.strategies.catalogue import AnyStrategy, Horovod, Pipeline, Single

Count = Annotated[int, Field(ge=1, le=1_000_000)]


Model = Annotated[
    AnyModel, Choice("model", "name", short=True, many="a classification network of torchvision such as resnet50")
]
Strategy = Annotated[AnyStrategy, Choice("strategy", "name", short=True)]
Data = Annotated[AnyData, Choice("data source", "source")]


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
    """What each step multiplies the rate by."""


class Optimiser(Spec):
    """Momentum SGD and its learning rate."""

    name: Literal["sgd"] = "sgd"
    """Stochastic gradient descent."""
    learning_rate: Annotated[float, Field(gt=0, le=1000)] = 0.1
    """Rate after warm-up, before the first step."""
    learning_rate_for_batch: Count | None = None
    """Global batch that `learning_rate` is meant for: the run's rate is scaled linearly with its own (Goyal et al. 2017).
    Unset: not scaled."""
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
    """Evaluate on held-out data every so many epochs and at the end; 0: never."""
    weighted_loss: bool = False
    """Multi-label: a label's positives are weighted by its share of negatives, its negatives by its share of positives (CheXNet)."""


class Measure(Spec):
    """Where a run is measured, and where it ends before its full training."""

    warmup_steps: Annotated[int, Field(ge=0, le=10_000_000)] = 5
    """Steps before the measured window."""
    steps: Annotated[int, Field(ge=1, le=100_000_000)] | None = None
    """Length of the window in steps; the run ends after it. None: the full training."""
    minutes: Annotated[float, Field(gt=0, le=1_000_000)] | None = None
    """Length of the window in minutes; the run ends after it. None: the full training."""
    loader_batches: Annotated[int, Field(ge=0, le=10_000_000)] = 0
    """Batches that are first loaded without any training, to learn what the loader alone can deliver."""


class Storage(Spec):
    """A slower storage than the one that is there, emulated for all ranks of a node together."""

    mib_per_s: Annotated[float, Field(gt=0, le=1e9)] | None = None
    """What it delivers at most, MiB/s per node; unset: as much as there is."""
    latency_ms: Annotated[float, Field(ge=0, le=10_000)] = 0.0
    """Wait before each request, milliseconds; requests under way at the same time wait together."""


class Checkpoint(Spec):
    """When a run writes checkpoints, in addition to when it stops. Two are kept until the result is written."""

    every_steps: Annotated[int, Field(ge=1, le=100_000_000)] | None = None
    """Steps from one to the next; none: not by steps."""
    every_minutes: Annotated[float, Field(gt=0, le=1_000_000)] | None = None
    """Minutes from one to the next; none: not by time."""


class Loader(Spec):
    """How batches come to a rank."""

    mode: Literal["file", "shards", "stream", "database", "memory", "synthetic"] | None = None
    """`file`, `shards`, `database`: each sample by itself, in random order; `stream`: in sequence, through a shuffle
    buffer, never onto a disk; `memory`: read once, then from memory; `synthetic`: nothing is read or decoded. Unset: as
    the data's format is read sample by sample."""
    kind: Literal["threads", "processes"] = "threads"
    """What workers are. Processes hand batches over through shared memory."""
    last_batch: Literal["drop", "pad"] = "drop"
    """The last batch of an epoch where it is incomplete: left out, or filled with samples of the epoch's start."""
    origin: str | None = None
    """Where the data is read from instead of its own folder: another folder, or an http(s) address with range requests,
    that holds the same files."""
    shuffle_buffer: Annotated[int, Field(ge=1, le=10_000_000)] = 1000
    """Samples per rank from which a stream draws the next one."""
    pin_memory: bool = True
    """Page-locked batches where there is a GPU, copied to it ahead of their use on a separate stream."""
    storage: Storage | None = None
    """A storage of a stated rate and latency, emulated; unset: the one that is there."""
    workers: Annotated[int, Field(ge=0, le=4096)] = 1
    """Workers per rank, each making whole batches; 0: the training thread makes them itself."""
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

    `loader.storage` then limits the copying, not what is read from the copies.
    """

    to: Literal["scratch"] | None = None
    """`scratch`: the folder that the site names for it (site.yaml); unset: no copies, the data is read where it lies."""
    from_: Annotated[str | None, Field(alias="from")] = None
    """A folder, or an http(s), s3, gs or az address, that holds the same files as the data; unset: `loader.origin`, or
    where the data lies."""
    share: Literal["all", "by_shard"] = "all"
    """`all`: every node has everything; `by_shard`: node k of N has training shards (or files) k, k + N, k + 2 N, ..., and
    its ranks see no others (ShardedByS3Key of Amazon SageMaker)."""
    streams: Annotated[int, Field(ge=1, le=1024)] = 4
    """Threads of a node that copy, each with a separate connection."""
    mib_per_s: Annotated[float, Field(gt=0, le=1e9)] | None = None
    """What a node copies at most, MiB/s; unset: no limit."""
    reuse: bool = True
    """Use whole copies that an earlier run left on the node, and leave them there. `false`: as on a new node."""


LauncherName = Literal["auto", "local", "srun", "pbsdsh", "qrsh", "mpiexec", "ssh", "mpirun"]


class Launch(Spec):
    """How the processes of a run are started, and which cores each may use."""

    launcher: LauncherName | None = None
    """How other nodes are reached; unset: as the site says. `mpirun` starts every rank itself, on one node too."""
    binding: Literal["none", "core", "socket"] = "none"
    """`core`: each process has `threads_per_rank` cores to itself; `socket`: all cores of one socket, its device's or in turn."""


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
    """One rank dies by SIGKILL."""

    kind: Literal["killed_rank"]
    rank: Annotated[int, Field(ge=0)]
    """Which rank."""
    at_step: Annotated[int, Field(ge=0)]
    """Before which step."""


Fault = Annotated[SlowRank | SlowDecode | KilledRank, Field(discriminator="kind")]


class Network(Spec):
    """An emulated network: each node a network namespace on one switch, its link limited by a token bucket."""

    mib_per_s: Annotated[float, Field(gt=0, le=100_000)]
    """What a node's link carries in each direction, MiB/s of Ethernet frames."""


class RunSpec(Spec):
    """One measurement. What the machine fills in (`nodes`, `threads_per_rank`) is None here."""

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
    threads_per_rank: Annotated[int, Field(ge=1, le=4096)] | None = None
    """CPU threads of a rank; unset: the machine's share, the same for all rank counts of a study."""
    dtype: Literal["float32", "float64", "bfloat16"] = "float32"
    """Number type of weights and activations."""
    autocast: Literal["bfloat16", "float16"] | None = None
    """Mixed precision: forward and loss in this type where torch.autocast holds it safe; weights stay in `dtype`."""
    memory_format: Literal["contiguous", "channels_last"] = "contiguous"
    """How images and convolution weights lie in memory."""
    compile: bool = False
    """Whether the model is compiled by torch.compile."""
    seed: Annotated[int, Field(ge=0, lt=2**31)] = 0
    """Seed of weights, order and augmentation; repeat k adds k."""
    repeat: Annotated[int, Field(ge=0, lt=10_000)] = 0
    """Which repeat this is; set by the study's `repeats`."""
    device: Annotated[str, Field(pattern=r"^(cpu|cuda|emulated:[a-z0-9_]+)$")] | None = None
    """`cpu`, `cuda`, or `emulated:<accelerator>` (config/reference/step_times.csv); unset: the machine's."""
    network: Network | None = None
    """An emulated network between the nodes, which are logical ones on one host; unset: the network that is there."""
    data: Data = Digits(source="digits")
    """The dataset."""
    loader: Loader = Loader()
    """How batches come to a rank."""
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
    """Seconds after which a process that sends no heartbeat ends the run. A slow step does not stop its heartbeat."""
    keep: Literal["weights"] | None = None
    """`weights`: keep the final weights as safetensors next to the result."""
    faults: tuple[Fault, ...] = ()
    """Faults to inject, each counted when it fires."""

    @classmethod
    def as_written_now(cls, data: Any) -> Any:
        """Data with keys under their new names."""
        return with_new_names(data)

    def plain(self) -> dict[str, Any]:
        """The keys that differ from their defaults; a key that was renamed has the name that ids are made from."""
        return with_stored_names(super().plain())

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


OTHERWISE = "choose another number, or exclude this combination"


def geometry_problems(spec: RunSpec) -> Iterator[Problem]:
    """What is impossible in a spec on any machine."""
    size, most = spec.data.scale, spec.strategy.most_ranks
    if isinstance(size, str) and not 1 <= size_in_bytes(size, node_memory_bytes=1 << 40) <= MOST_BYTES:
        remedy = "write it as `64 MiB`, `1.5 GB` or `2x node memory`"
        yield Problem(("data", "scale"), f"{shown(size)} is not a size from 1 byte to 1 EB", remedy)
    if most is not None and spec.ranks > most:
        what = (
            f"strategy `{spec.strategy.name}` has at most {most} {'rank' if most == 1 else 'ranks'}, not {spec.ranks}"
        )
        yield Problem(("ranks",), what, "choose another strategy, or exclude this combination")
    yield from _strategy_problems(spec)
    if isinstance(spec.strategy, Pipeline):
        yield from _pipeline_problems(spec, spec.strategy)
    if (spec.batch.per_rank is None) == (spec.batch.global_ is None):
        remedy = "set one of them" if spec.batch.per_rank is None else "set the other one to null"
        yield Problem(("batch",), "needs exactly one of `per_rank` and `global`", remedy)
    elif spec.batch.global_ is not None and spec.batch.global_ % spec.ranks:
        what = f"{spec.batch.global_} samples cannot be divided equally among {spec.ranks} ranks"
        yield Problem(("batch", "global"), what, OTHERWISE)
    elif spec.rank_batch % spec.batch.accumulate:
        what = f"{spec.rank_batch} samples of a rank cannot be divided into {spec.batch.accumulate} equal micro-batches"
        yield Problem(("batch", "accumulate"), what, OTHERWISE)
    if spec.autocast and spec.dtype != "float32":
        what = f"`autocast` keeps weights in float32, and `dtype` is {spec.dtype}"
        yield Problem(("autocast",), what, "leave one of them out")
    if spec.autocast == "float16" and not spec.strategy.scales_loss:
        what = f"float16 scales the loss, and the update of `{spec.strategy.name}` does not know the scale"
        yield Problem(("autocast",), what, "use bfloat16, or another strategy")
    if spec.measure.steps is not None and spec.measure.minutes is not None:
        yield Problem(("measure",), "`steps` and `minutes` both end the run", "keep one of them, set the other to null")
    yield from _node_problems(spec)
    yield from _loader_problems(spec)
    yield from _stage_problems(spec)
    for index, fault in enumerate(spec.faults):
        if not isinstance(fault, SlowDecode) and fault.rank >= spec.ranks:
            what = f"there is no rank {fault.rank} among {spec.ranks}"
            yield Problem(("faults", index, "rank"), what, "ranks are counted from 0")


def _loader_problems(spec: RunSpec) -> Iterator[Problem]:
    """Ways of reading that the data, or another option, does not allow."""
    loader, shard = spec.loader, getattr(spec.data, "shard", None)
    tensors = spec.data.source in TENSOR_SOURCES
    format = "tensors" if tensors else FORMAT_OF_SHARD[shard.format] if shard is not None else None
    if format == "files" and spec.data.preprocess == "raw":
        format = "raw"
    # Pictures that are used where they lie may be ranges of containers: only opening them tells.
    unknown = format is None or (format == "files" and loader.mode == "shards")
    if not unknown and format is not None and loader.mode is not None and loader.mode not in MODES[format]:
        what = f"`{loader.mode}` cannot read `{spec.data.source}` in this form"
        yield Problem(
            ("loader", "mode"), what, f"it has {', '.join(MODES[format])}; `data.shard.format` chooses the form"
        )
    if loader.mode == "stream" and loader.kind == "processes" and loader.workers:
        what = "threads of the rank read a stream; each process would have to read all of it"
        yield Problem(("loader", "kind"), what, "use `threads` with `mode: stream`")
    if loader.storage is not None and loader.storage.mib_per_s is None and not loader.storage.latency_ms:
        yield Problem(("loader", "storage"), "neither a rate nor a latency is given", "set `mib_per_s` or `latency_ms`")
    if tensors and (loader.storage is not None or loader.origin is not None):
        key = "storage" if loader.storage is not None else "origin"
        what = f"`{spec.data.source}` comes from memory, not from a storage"
        yield Problem(("loader", key), what, "leave it out, or use pictures")
    if loader.memory_limit_mib is not None and format == "database":
        what = "the pages of a database are mapped and cannot be dropped"
        yield Problem(("loader", "memory_limit_mib"), what, "use shards, or limit `loader.storage`")


def _stage_problems(spec: RunSpec) -> Iterator[Problem]:
    """Data that cannot be copied to nodes, or not in parts."""
    if spec.stage.to is None:
        return
    form = getattr(getattr(spec.data, "shard", None), "format", None)
    if spec.data.source == "synthetic":
        yield Problem(("stage",), "`synthetic` is made while it is read", "leave `stage.to` out, or use other data")
    elif spec.stage.share == "by_shard" and (
        spec.data.source in TENSOR_SOURCES or form == "lmdb" or (form == "files" and spec.data.preprocess == "raw")
    ):
        what = "the data is one file, and nodes cannot have shards of it"
        yield Problem(("stage", "share"), what, "use `all`, or `data.shard.format: tar` or `raw`")


def _strategy_problems(spec: RunSpec) -> Iterator[Problem]:
    strategy, least = spec.strategy, spec.strategy.least_ranks
    if spec.ranks < least:
        what = f"{least} servers among the ranks need {least} ranks, not {spec.ranks}"
        yield Problem(("ranks",), what, "use fewer servers, or exclude this combination")
    if spec.accelerator and not strategy.emulatable:
        what = f"`{strategy.name}` exchanges inside the layers, of which an emulated accelerator has none"
        yield Problem(("device",), what, "use a real device, or exclude this combination")
    if spec.network and strategy.needs_mpi:
        what = "ranks that mpirun starts cannot be put into an emulated network"
        yield Problem(("network",), what, "choose another strategy, or exclude this combination")
    if isinstance(strategy, Horovod) and strategy.operation == "adasum" and strategy.transport != "mpi":
        what = "Horovod has Adasum on CPUs over MPI only"
        yield Problem(("strategy", "operation"), what, "add `transport: mpi` to the strategy")
    if spec.dtype == "bfloat16" and isinstance(strategy, Horovod):
        yield Problem(("dtype",), "Horovod cannot sum bfloat16", "choose float32, or exclude this combination")


def _pipeline_problems(spec: RunSpec, strategy: Pipeline) -> Iterator[Problem]:
    """What a model that is cut into stages cannot be: it has its own micro-batches and operators."""
    if spec.batch.accumulate > 1:
        what = "strategy `pipeline` accumulates gradients over its own micro-batches"
        yield Problem(("batch", "accumulate"), what, "leave it out, and set `strategy.micro_batches`")
    if spec.compile:
        yield Problem(("compile",), "strategy `pipeline` runs the operators as it traced them", "leave it out")
    if spec.autocast == "float16":
        what = "float16 scales the loss, and the stages of a pipeline cannot agree on the scale"
        yield Problem(("autocast",), what, "use bfloat16, or another strategy")
    stages, parts = strategy.stages, strategy.micro_batches or 1
    if stages is not None and spec.ranks % stages:
        what = f"{spec.ranks} ranks cannot be divided equally among {stages} stages"
        yield Problem(("strategy", "stages"), what, OTHERWISE)
        return
    replica_batch = spec.global_batch // (spec.ranks // stages if stages is not None else 1)
    if replica_batch % parts:
        what = f"{replica_batch} samples cannot be divided into {parts} equal micro-batches"
        yield Problem(("strategy", "micro_batches"), what, OTHERWISE)


def _node_problems(spec: RunSpec) -> Iterator[Problem]:
    ranks, nodes, per_node = spec.ranks, spec.nodes, spec.ranks_per_node
    if nodes is not None and ranks % nodes:
        yield Problem(("nodes",), f"{ranks} ranks cannot be divided equally among {nodes} nodes", OTHERWISE)
    elif nodes is not None and per_node is not None and nodes * per_node != ranks:
        what = f"{nodes} nodes of {per_node} ranks are not {ranks} ranks"
        yield Problem(("ranks_per_node",), what, "leave out `nodes` or `ranks_per_node`")
    elif per_node is not None and ranks > per_node and ranks % per_node:
        yield Problem(("ranks_per_node",), f"{ranks} ranks do not fill nodes of {per_node}", OTHERWISE)
