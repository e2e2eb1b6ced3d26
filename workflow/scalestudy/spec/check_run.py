"""Settings of a run that are impossible on any machine: rows of (whether it is wrong, key, what, remedy)."""

from __future__ import annotations

import re
from collections.abc import Iterator

from scalestudy.data.catalogue import FORMAT_OF_SHARD, MODES, TENSOR_SOURCES, OwnData
from scalestudy.errors import Problem, UserError
from scalestudy.spec.base import dotted_keys, shown
from scalestudy.spec.machine import Machine, geometry
from scalestudy.spec.program import program_problems
from scalestudy.spec.run import MAX_REPEATS, NGINX, THIS_HOST, RunSpec, SlowDecode
from scalestudy.spec.sizes import MAX_BYTES, size_in_bytes
from scalestudy.spec.step_times import STEP_TIMES, published_rows
from scalestudy.strategies.catalogue import Horovod, Pipeline

Row = tuple[object, str, str, str]

NUMBER = "choose another number, or exclude this combination"
ONE_OUT = "leave one of the two out"
STRATEGY = "choose another strategy, or exclude this combination"
HOLDS_SECRET = "the address holds a login or a key, which would stand in specs, results and exports"
FROM_ENVIRONMENT = "leave it out of the address: stores read theirs from the environment (AWS_…, GOOGLE_…, AZURE_…)"
SECRET = re.compile(r"(?i)(?:^|[&;])[a-z_-]*(?:sig|signature|token|secret|password|key|credential)[a-z_-]*=")
"""Parts of an address that give access: signed addresses of S3, Azure and Google have them."""


def run_problems(spec: RunSpec, machine: Machine) -> Iterator[Problem]:
    """Find settings of a spec that are impossible on any machine, or that this one leaves open."""
    rows = _of_every_run(spec)
    if spec.program is not None:
        yield from program_problems(spec, dotted_keys(RunSpec))
    else:
        rows += _of_training(spec, machine)
        yield from _accelerator_problems(spec)
        for index, fault in enumerate(spec.faults):
            if not isinstance(fault, SlowDecode) and fault.rank >= spec.ranks:
                what = f"there is no rank {fault.rank} among {spec.ranks}"
                yield Problem(("faults", index, "rank"), what, "ranks are counted from 0")
    yield from (Problem(tuple(key.split(".")), what, remedy) for is_wrong, key, what, remedy in rows if is_wrong)


def _accelerator_problems(spec: RunSpec) -> Iterator[Problem]:
    """An emulated accelerator of which no step time is published for this model and batch."""
    batch = spec.batch
    if spec.accelerator is None or (batch.per_rank is None) == (batch.global_ is None) or not STEP_TIMES.is_file():
        return  # outside of a project there is no table; the run itself reports it
    try:
        published_rows(spec.model.name, spec.accelerator, spec.rank_batch)
    except UserError as error:
        yield Problem(("device",), error.what, error.remedy)


def _has_secret(address: str | None) -> bool:
    """Whether an address holds a password or a key."""
    if address is None or "://" not in address:
        return False
    scheme, _, rest = address.partition("://")
    user, at, _ = rest.partition("/")[0].rpartition("@")
    # An address of Azure names a container before the @.
    is_login = bool(at) and (":" in user or not scheme.startswith("abfs"))
    return is_login or SECRET.search(address.partition("?")[2]) is not None


def _of_every_run(spec: RunSpec) -> list[Row]:
    """Window and nodes, which a program has too."""
    hosts, ranks, nodes, per_node = spec.hosts or (), spec.ranks, spec.nodes_named, spec.ranks_per_node
    key = "nodes" if spec.hosts is None else "hosts"
    twice = next((host for host in hosts if hosts.count(host) > 1), None)
    is_unequal = nodes is not None and ranks % nodes != 0
    is_other = nodes is not None and per_node is not None and nodes * per_node != ranks
    is_partial = nodes is None and per_node is not None and ranks > per_node and ranks % per_node != 0
    return [
        (spec.program is not None and spec.accelerator is not None, "device",
         "a program cannot compute on an emulated accelerator", "leave `device` out"),
        (spec.measure.steps is not None and spec.measure.minutes is not None, "measure",
         "`steps` and `minutes` both end the run", "keep one of them, set the other to null"),
        (spec.seed - spec.repeat > 2**31 - MAX_REPEATS, "seed",
         f"{spec.seed - spec.repeat} leaves no room for {MAX_REPEATS:,} repeats, which add to it", "choose a smaller one"),
        (twice, "hosts", f"names {shown(twice)} twice", "name each host once"),
        (THIS_HOST in hosts and len(hosts) > 1, "hosts",
         f"`{THIS_HOST}` is the host where the command is started, and cannot be combined with other nodes",
         "name the nodes as their scheduler does"),
        (hosts and spec.nodes not in (None, len(hosts)), "nodes",
         f"{len(hosts)} {'host is' if len(hosts) == 1 else 'hosts are'} named, and `nodes` is {spec.nodes}",
         "leave `nodes` out"),
        (hosts and spec.network is not None, "network", "an emulated network has no hosts to be named", ONE_OUT),
        (is_unequal, key, f"{ranks} ranks cannot be divided equally among {nodes} nodes", NUMBER),
        (is_other, "ranks_per_node", f"{nodes} nodes of {per_node} ranks are not {ranks} ranks",
         f"leave out `{key}` or `ranks_per_node`"),
        (is_partial, "ranks_per_node", f"{ranks} ranks do not fill nodes of {per_node}", NUMBER),
    ]  # fmt: skip


def _of_training(spec: RunSpec, machine: Machine) -> list[Row]:
    """Strategy, numbers, batch, precision, loader and staging of the project's own trainer."""
    strategy, ranks, batch, loader, dtype = spec.strategy, spec.ranks, spec.batch, spec.loader, spec.dtype
    name, most = strategy.name, strategy.max_ranks
    is_horovod, is_pipeline = isinstance(strategy, Horovod), isinstance(strategy, Pipeline)
    stages, parts = (strategy.stages, strategy.micro_batches or 1) if isinstance(strategy, Pipeline) else (None, 1)
    is_uneven = stages is not None and ranks % stages != 0
    replica_batch = spec.global_batch // (ranks // stages if stages is not None and not is_uneven else 1)
    is_one_batch = (batch.per_rank is None) != (batch.global_ is None)
    is_unequal = batch.global_ is not None and batch.global_ % ranks != 0
    source, shard = spec.data.source, getattr(spec.data, "shard", None)
    is_own = isinstance(spec.data, OwnData)
    is_tensors, is_raw = is_own or source in TENSOR_SOURCES, spec.data.preprocess == "raw"
    stored = "" if shard is None else shard.format
    form = "tensors" if is_tensors else FORMAT_OF_SHARD.get(stored, "")
    form = "raw" if form == "files" and is_raw else form
    # Images that are used where they lie may be ranges of containers: only opening them tells.
    modes = () if not form or (form == "files" and loader.mode == "shards") else MODES[form]
    storage, unread = loader.storage, "origin" if loader.storage is None else "storage"
    size, is_elsewhere = spec.data.scale, max(machine.nodes or 1, geometry(spec, machine)[0]) > 1
    # With accelerators, the machine's number of them decides.
    is_one_node = spec.nodes_named is None and spec.ranks_per_node is None and not machine.devices_per_node
    is_staged, is_one_file = spec.stage.to is not None, is_tensors or stored == "lmdb" or (stored == "files" and is_raw)
    return [
        (most is not None and ranks > most, "ranks",
         f"strategy `{name}` has at most {most} {'rank' if most == 1 else 'ranks'}, not {ranks}", STRATEGY),
        (spec.accelerator and not strategy.emulatable, "device",
         f"`{name}` exchanges inside the layers, of which an emulated accelerator has none",
         "use a real device, or exclude this combination"),
        (spec.accelerator and spec.memory_limit_mib, "memory_limit_mib", "an emulated accelerator has no memory",
         "use a real device, or leave it out"),
        (loader.origin == NGINX and spec.network is None, "loader.origin",
         "`nginx` is started on a node of an emulated network", "set `network.mib_per_s`, and `network.latency_ms`"),
        (spec.network and loader.origin != NGINX and ranks + strategy.servers_beside > 1 and is_one_node, "network",
         "all ranks are on one node, whose inside an emulated network does not limit", "set `nodes` or `ranks_per_node`"),
        (spec.network and strategy.needs_mpi, "network",
         "ranks that mpirun starts cannot be put into an emulated network", STRATEGY),
        (is_horovod and dtype == "bfloat16", "dtype", "Horovod cannot sum bfloat16",
         "choose float32, or exclude this combination"),
        (is_pipeline and batch.accumulate > 1, "batch.accumulate",
         "strategy `pipeline` accumulates gradients over its own micro-batches",
         "leave it out, and set `strategy.micro_batches`"),
        (is_pipeline and spec.compile, "compile", "strategy `pipeline` runs the operators as it traced them",
         "leave it out"),
        (spec.memory_format != "contiguous" and not strategy.keeps_layout, "memory_format",
         f"`{name}` cuts weights into parts, which are contiguous", ONE_OUT),
        (is_uneven, "strategy.stages", f"{ranks} ranks cannot be divided equally among {stages} stages", NUMBER),
        (is_pipeline and not is_uneven and replica_batch % parts, "strategy.micro_batches",
         f"{replica_batch} samples cannot be divided into {parts} equal micro-batches", NUMBER),
        (not is_one_batch, "batch", "needs exactly one of `per_rank` and `global`",
         "set one of them" if batch.per_rank is None else "set the other one to null"),
        (is_one_batch and is_unequal, "batch.global",
         f"{batch.global_} samples cannot be divided equally among {ranks} ranks", NUMBER),
        (is_one_batch and not is_unequal and spec.rank_batch % batch.accumulate, "batch.accumulate",
         f"{spec.rank_batch} samples of a rank cannot be divided into {batch.accumulate} equal micro-batches", NUMBER),
        (spec.autocast and dtype != "float32", "autocast",
         f"`autocast` keeps weights in float32, and `dtype` is {dtype}", ONE_OUT),
        (spec.tf32 is not None and dtype != "float32", "tf32",
         f"`tf32` is about products of float32, and `dtype` is {dtype}", ONE_OUT),
        (spec.tf32 and spec.device not in (None, "cuda"), "tf32",
         f"TF32 is of GPUs, and `device` is {spec.device}", ONE_OUT),
        (spec.autocast == "float16" and not strategy.scales_loss, "autocast",
         f"float16 scales the loss, and the update of `{name}` does not know the scale",
         "use bfloat16, or another strategy"),
        (spec.measure.trace_steps and (strategy.servers_beside or spec.accelerator), "measure.trace_steps",
         "steps are traced on ranks alone, and on real devices: neither on servers nor where compute is emulated", ONE_OUT),
        (max(spec.measure.trace_ranks or (0,)) >= ranks, "measure.trace_ranks", f"there are {ranks} ranks, from 0 on", NUMBER),
        (modes and loader.mode not in (None, *modes), "loader.mode",
         f"`{loader.mode}` cannot read `{source}` in this form",
         f"it has {', '.join(one for one in modes if one != 'memory' or not is_own)}; `data.shard.format` chooses the form"),
        (loader.mode == "memory" and is_own, "loader.mode", "data of your own is fetched item by item, and not kept",
         "leave it out, and keep the items in your class"),
        (loader.mode == "stream" and loader.kind == "processes" and loader.workers, "loader.kind",
         "threads of the rank read a stream; each process would have to read all of it",
         "use `threads` with `mode: stream`"),
        (storage is not None and storage.mib_per_s is None and not storage.latency_ms, "loader.storage",
         "neither a rate nor a latency is given", "set `mib_per_s` or `latency_ms`"),
        (is_tensors and (storage is not None or loader.origin is not None), f"loader.{unread}",
         f"`{source}` comes from memory, not from a storage", "leave it out, or use images"),
        (loader.memory_limit_mib is not None and form == "database", "loader.memory_limit_mib",
         "the pages of a database are mapped and cannot be dropped", "use shards, or limit `loader.storage`"),
        (loader.memory_limit_mib is not None and (is_tensors or loader.mode == "synthetic"), "loader.memory_limit_mib",
         "training reads no files that the page cache could hold", "use images that are read from files"),
        (spec.optimiser.nesterov and not spec.optimiser.momentum, "optimiser.nesterov", "needs a momentum above 0", ONE_OUT),
        (is_staged and (is_own or source == "synthetic"), "stage", f"`{source}` is made while it is read",
         "leave `stage.to` out, or use other data"),
        (is_staged and not is_own and source != "synthetic" and spec.stage.share == "by_shard" and is_one_file, "stage.share",
         "the data is one file, and nodes cannot have shards of it", "use `all`, or `data.shard.format: tar` or `raw`"),
        (isinstance(size, str) and not 1 <= size_in_bytes(size, node_memory_bytes=1 << 40) <= MAX_BYTES, "data.scale",
         f"{shown(size)} is not a size from 1 byte to 1 EB", "write it as `64 MiB`, `1.5 GB` or `2x node memory`"),
        (is_elsewhere and machine.memory_gib is None and str(size).endswith("node memory"), "data.scale",
         f"{shown(size)}: the memory of the run's nodes is unknown here",
         "set `memory_gib` in the machine file, or write the size as `64 GiB`"),
        (_has_secret(loader.origin), "loader.origin", HOLDS_SECRET, FROM_ENVIRONMENT),
        (_has_secret(spec.stage.from_), "stage.from", HOLDS_SECRET, FROM_ENVIRONMENT),
    ]  # fmt: skip
