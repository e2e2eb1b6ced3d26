"""Check a run for settings that are impossible on any machine."""

from __future__ import annotations

import re
from collections.abc import Iterator

from scalestudy.data.modes import FORMAT_OF_SHARD, MODES, TENSOR_SOURCES
from scalestudy.errors import Problem
from scalestudy.spec.base import dotted_keys, shown
from scalestudy.spec.program import program_problems
from scalestudy.spec.run import THIS_HOST, RunSpec, SlowDecode
from scalestudy.spec.sizes import MOST_BYTES, size_in_bytes
from scalestudy.spec.step_times import STEP_TIMES, BatchTooFar, NotTimed, published_step_time
from scalestudy.strategies.catalogue import Horovod, Pipeline

OTHERWISE = "choose another number, or exclude this combination"


def size_problems(spec: RunSpec) -> Iterator[Problem]:
    """Check the size of its data."""
    size = spec.data.scale
    if isinstance(size, str) and not 1 <= size_in_bytes(size, node_memory_bytes=1 << 40) <= MOST_BYTES:
        remedy = "write it as `64 MiB`, `1.5 GB` or `2x node memory`"
        yield Problem(("data", "scale"), f"{shown(size)} is not a size from 1 byte to 1 EB", remedy)


def run_problems(spec: RunSpec) -> Iterator[Problem]:
    """Find settings of a spec that are impossible on any machine."""
    if spec.program is not None:
        yield from program_problems(spec, dotted_keys(RunSpec))
        yield from _end_problems(spec)
        yield from _node_problems(spec)
        return
    yield from size_problems(spec)
    yield from _strategy_problems(spec)
    yield from _accelerator_problems(spec)
    if isinstance(spec.strategy, Pipeline):
        yield from _pipeline_problems(spec, spec.strategy)
    yield from _batch_problems(spec)
    yield from _precision_problems(spec)
    yield from _end_problems(spec)
    if spec.measure.precision is not None and spec.runs_full_training:
        what = "ends the window early, and no window is given"
        yield Problem(("measure", "precision"), what, "set `measure.steps` or `measure.minutes` as its limit")
    yield from _node_problems(spec)
    yield from _loader_problems(spec)
    yield from _stage_problems(spec)
    yield from _secret_problems(spec)
    for index, fault in enumerate(spec.faults):
        if not isinstance(fault, SlowDecode) and fault.rank >= spec.ranks:
            what = f"there is no rank {fault.rank} among {spec.ranks}"
            yield Problem(("faults", index, "rank"), what, "ranks are counted from 0")


def _end_problems(spec: RunSpec) -> Iterator[Problem]:
    if spec.measure.steps is not None and spec.measure.minutes is not None:
        yield Problem(("measure",), "`steps` and `minutes` both end the run", "keep one of them, set the other to null")


def _batch_problems(spec: RunSpec) -> Iterator[Problem]:
    batch = spec.batch
    if (batch.per_rank is None) == (batch.global_ is None):
        remedy = "set one of them" if batch.per_rank is None else "set the other one to null"
        yield Problem(("batch",), "needs exactly one of `per_rank` and `global`", remedy)
    elif batch.global_ is not None and batch.global_ % spec.ranks:
        what = f"{batch.global_} samples cannot be divided equally among {spec.ranks} ranks"
        yield Problem(("batch", "global"), what, OTHERWISE)
    elif spec.rank_batch % batch.accumulate:
        what = f"{spec.rank_batch} samples of a rank cannot be divided into {batch.accumulate} equal micro-batches"
        yield Problem(("batch", "accumulate"), what, OTHERWISE)


def _accelerator_problems(spec: RunSpec) -> Iterator[Problem]:
    """An emulated accelerator of which no step time is published for this model and batch."""
    batch = spec.batch
    if spec.accelerator is None or (batch.per_rank is None) == (batch.global_ is None) or not STEP_TIMES.is_file():
        return  # outside of a project there is no table; the run itself says so
    try:
        published_step_time(spec.model.name, spec.accelerator, spec.rank_batch)
    except BatchTooFar as error:
        yield Problem(("batch", "global" if batch.per_rank is None else "per_rank"), error.what, error.remedy)
    except NotTimed as error:
        yield Problem(("device",), error.what, error.remedy)


def _precision_problems(spec: RunSpec) -> Iterator[Problem]:
    if spec.autocast and spec.dtype != "float32":
        what = f"`autocast` keeps weights in float32, and `dtype` is {spec.dtype}"
        yield Problem(("autocast",), what, "leave one of them out")
    if spec.tf32 is not None and spec.dtype != "float32":
        what = f"`tf32` is about products of float32, and `dtype` is {spec.dtype}"
        yield Problem(("tf32",), what, "leave one of them out")
    if spec.tf32 and spec.device not in (None, "cuda"):
        yield Problem(("tf32",), f"TF32 is of GPUs, and `device` is {spec.device}", "leave one of them out")
    if spec.autocast == "float16" and not spec.strategy.scales_loss:
        what = f"float16 scales the loss, and the update of `{spec.strategy.name}` does not know the scale"
        yield Problem(("autocast",), what, "use bfloat16, or another strategy")


def _loader_problems(spec: RunSpec) -> Iterator[Problem]:
    """Ways of reading that the data, or another option, does not allow."""
    loader, shard = spec.loader, getattr(spec.data, "shard", None)
    tensors = spec.data.source in TENSOR_SOURCES
    format = "tensors" if tensors else FORMAT_OF_SHARD[shard.format] if shard is not None else None
    if format == "files" and spec.data.preprocess == "raw":
        format = "raw"
    # Images that are used where they lie may be ranges of containers: only opening them tells.
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
        yield Problem(("loader", key), what, "leave it out, or use images")
    if loader.memory_limit_mib is not None and format == "database":
        what = "the pages of a database are mapped and cannot be dropped"
        yield Problem(("loader", "memory_limit_mib"), what, "use shards, or limit `loader.storage`")


def _secret_problems(spec: RunSpec) -> Iterator[Problem]:
    """Addresses with a password or a key in them: they would stand in specs, results, exports and messages."""
    for path, address in ((("loader", "origin"), spec.loader.origin), (("stage", "from"), spec.stage.from_)):
        if address is None or "://" not in address:
            continue
        scheme, _, rest = address.partition("://")
        user, at, _ = rest.partition("/")[0].rpartition("@")
        # An address of Azure names a container before the @.
        login = at and (":" in user or not scheme.startswith("abfs"))
        if login or SECRET.search(address.partition("?")[2]):
            what = "the address holds a login or a key, which would stand in specs, results and exports"
            remedy = "leave it out of the address: stores read theirs from the environment (AWS_…, GOOGLE_…, AZURE_…)"
            yield Problem(path, what, remedy)


SECRET = re.compile(r"(?i)(?:^|[&;])[a-z_-]*(?:sig|signature|token|secret|password|key|credential)[a-z_-]*=")
"""Parts of an address that give access: signed addresses of S3, Azure and Google have them."""


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
    strategy, least, most = spec.strategy, spec.strategy.min_ranks, spec.strategy.max_ranks
    if most is not None and spec.ranks > most:
        what = f"strategy `{strategy.name}` has at most {most} {'rank' if most == 1 else 'ranks'}, not {spec.ranks}"
        yield Problem(("ranks",), what, "choose another strategy, or exclude this combination")
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
    """Check a model that is cut into stages: it has its own micro-batches and operators."""
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


def _host_problems(spec: RunSpec) -> Iterator[Problem]:
    hosts = spec.hosts or ()
    if twice := next((host for host in hosts if hosts.count(host) > 1), None):
        yield Problem(("hosts",), f"names {shown(twice)} twice", "name each host once")
    if THIS_HOST in hosts and len(hosts) > 1:
        what = f"`{THIS_HOST}` is the host where the command is started, and cannot be combined with other nodes"
        yield Problem(("hosts",), what, "name the nodes as their scheduler does")
    if hosts and spec.nodes is not None and spec.nodes != len(hosts):
        what = f"{len(hosts)} {'host is' if len(hosts) == 1 else 'hosts are'} named, and `nodes` is {spec.nodes}"
        yield Problem(("nodes",), what, "leave `nodes` out")
    if hosts and spec.network is not None:
        yield Problem(("network",), "an emulated network has no hosts to be named", "leave one of the two out")


def _node_problems(spec: RunSpec) -> Iterator[Problem]:
    ranks, nodes, per_node = spec.ranks, spec.nodes_named, spec.ranks_per_node
    key = "nodes" if spec.hosts is None else "hosts"
    if wrong := list(_host_problems(spec)):
        yield from wrong
    elif nodes is not None and ranks % nodes:
        yield Problem((key,), f"{ranks} ranks cannot be divided equally among {nodes} nodes", OTHERWISE)
    elif nodes is not None and per_node is not None and nodes * per_node != ranks:
        what = f"{nodes} nodes of {per_node} ranks are not {ranks} ranks"
        yield Problem(("ranks_per_node",), what, f"leave out `{key}` or `ranks_per_node`")
    elif per_node is not None and ranks > per_node and ranks % per_node:
        yield Problem(("ranks_per_node",), f"{ranks} ranks do not fill nodes of {per_node}", OTHERWISE)
