"""Start the processes of a run, watch them, and write the result, whole or not at all."""

from __future__ import annotations

import contextlib
import datetime
import importlib
import json
import os
import shutil
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from scalestudy.data.manifest import Manifest, read_manifest
from scalestudy.emulation.network import Node, emulated_nodes
from scalestudy.emulation.step_times import emulated_step_time
from scalestudy.errors import Skipped
from scalestudy.files import canonical_json
from scalestudy.launch import binding, control, stopping
from scalestudy.launch.allocation import Allocation, uneven, where_to_run
from scalestudy.launch.control import SETTLE_S
from scalestudy.launch.launchers import is_open_mpi
from scalestudy.launch.ranks import Ranks, raise_cause
from scalestudy.launch.reaper import janitor
from scalestudy.launch.warm import PRELOAD
from scalestudy.measure.instrument import instrument
from scalestudy.measure.system import Sampler
from scalestudy.results import transport
from scalestudy.results.records import staleness, write_events
from scalestudy.results.stored import write_result
from scalestudy.spec.config import Site, read_site
from scalestudy.spec.ids import EXTENSIONS
from scalestudy.spec.machine import Machine, geometry
from scalestudy.spec.run import RunSpec
from scalestudy.strategies.available import missing
from scalestudy.training.job import Job, Resolved


def resolve(spec: RunSpec, machine: Machine, site: Site | None = None) -> tuple[Resolved, Allocation]:
    """Fill in what machine and job decide: device, threads, ranks per node; the hosts and their launcher."""
    cores = machine.cores_per_node or len(os.sched_getaffinity(0))
    device = spec.device or machine.device or ("cuda" if gpus() else "cpu")
    step_time = None
    if spec.accelerator is not None:
        device, step_time = "cpu", emulated_step_time(spec.model.name, spec.accelerator, spec.rank_batch)
    if reason := missing(spec.strategy):
        raise Skipped(reason)
    devices = machine.devices_per_node or (gpus() if device == "cuda" else 0)
    nodes, ranks_per_node = geometry(spec, machine, devices)
    if spec.compile and step_time is None and not any(map(shutil.which, ("c++", "g++", "clang++"))):
        raise Skipped("torch.compile needs a C++ compiler, and none was found (g++ or clang++)")
    threads = spec.threads_per_rank or (max(1, cores // devices) if device == "cuda" and devices else 1)
    where = where_to_run(spec, nodes, read_site() if site is None else site)
    on_a_host = -(-spec.ranks // len(where.hosts))
    if device == "cuda" and on_a_host > devices:
        of = "this machine has" if len(where.hosts) == 1 else "a node has"
        raise Skipped(f"{on_a_host} ranks need as many GPUs; {of} {devices}")
    if where.launcher == "mpirun" and not is_open_mpi("mpirun"):
        raise Skipped(f"strategy `{spec.strategy.name}` is started by Open MPI's mpirun; the one here is another's")
    return Resolved(nodes, ranks_per_node, threads, device, cores, step_time), where


@contextlib.contextmanager
def network_of(spec: RunSpec, resolved: Resolved, where: Allocation) -> Iterator[tuple[Node, ...]]:
    """The emulated nodes of the run, while it runs; none where it uses the network that is there."""
    if spec.network is None:
        yield ()
        return
    if where.launcher != "local":
        raise Skipped(
            "an emulated network holds processes that one machine forks; this run has a launcher of another kind"
        )
    with emulated_nodes(resolved.nodes, spec.network.mib_per_s) as nodes:
        yield tuple(nodes)


def emulated(spec: RunSpec) -> bool:
    """Whether compute or network are stand-ins."""
    return spec.accelerator is not None or spec.network is not None


def gpus() -> int:
    """NVIDIA GPUs of this machine, counted without starting CUDA, so that ranks can be forked afterwards."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    found = len(list(Path("/proc/driver/nvidia/gpus").glob("*")))
    return found if visible is None else min(found, len([name for name in visible.split(",") if name.strip()]))


def run(
    run_id: str,
    spec: RunSpec,
    manifest_file: Path,
    out: Path,
    machine: Machine,
    extensions: Path = EXTENSIONS,
    borrow: Path | None = None,
) -> dict[str, Any]:
    """Make one run, or go on with it, and write `out` (result.json) with steps.parquet and system.parquet beside it.

    A run that will come out the same next time (skipped, invalid) is a result; a crash raises RankFailed and leaves
    no result. Raises Stopped where the run stopped on purpose, with its checkpoint written. `borrow` is a checkpoint of
    another run to begin from.
    """
    with stopping.chain(run_id, out, borrow) as chain, contextlib.ExitStack() as held:
        return _run(chain, held, run_id, spec, manifest_file, out, machine, extensions)


def _run(
    chain: stopping.Chain,
    held: contextlib.ExitStack,
    run_id: str,
    spec: RunSpec,
    manifest_file: Path,
    out: Path,
    machine: Machine,
    extensions: Path,
) -> dict[str, Any]:
    started = datetime.datetime.now(datetime.UTC)
    begin = time.perf_counter()
    manifest = read_manifest(manifest_file)
    skipped = manifest.reason if manifest.status == "skipped" else None
    resolved = where = None
    nodes: tuple[Node, ...] = ()
    try:
        resolved, where = resolve(spec, machine)
        nodes = held.enter_context(network_of(spec, resolved, where))
    except Skipped as error:
        skipped = str(error)
    head: dict[str, Any] = {
        "run": run_id,
        "status": "skipped",
        "reason": skipped,
        "spec": spec.plain(),
        "started": started.isoformat(timespec="seconds"),
    }
    if skipped is not None or resolved is None or where is None:
        result = {**head, "metrics": {}, "kinds": {}, "emulated": emulated(spec)}
    else:
        # What several machines share lies beside the result; what one machine has to itself, on its own disk.
        shared = None if len(where.hosts) == 1 else out.parent.resolve()
        weights = out.parent / "weights.safetensors" if spec.keep == "weights" else None
        with (
            tempfile.TemporaryDirectory(prefix="scalestudy-run-" if shared is None else ".nodes-", dir=shared) as name,
            janitor(Path(name)) as group,
        ):
            job = Job(
                run_id, spec, resolved, manifest_file.resolve(), Path(name), extensions.resolve(), weights,
                (out.parent / "log").resolve(), where.hosts, network=nodes, **chain.for_job(),
            )  # fmt: skip
            job.keep.mkdir()
            try:
                memory = start_and_watch(job, where, group, out.parent)
                stopping.raise_if_stopped(job.folder)
                measured_s = time.perf_counter() - begin
                result = {**head, **assemble(job, manifest, measured_s, memory, out.parent)}
                result["launch"] = {"launcher": where.launcher, "hosts": list(where.hosts)}
                result["warnings"] += uneven(where, resolved.ranks_per_node)
            except Skipped as error:  # what only the ranks could find out
                result = {**head, "reason": str(error), "metrics": {}, "kinds": {}, "emulated": emulated(spec)}
            for kept in sorted(job.keep.iterdir()):
                _move(kept, out.parent / kept.name)
            if weights is not None and result["status"] != "skipped":
                _move(job.folder / "weights.safetensors", weights)
    result["ended"] = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
    chain.add_to(result)
    write_result(out, result)
    append_history(out, result)
    return result


def start_and_watch(job: Job, where: Allocation, group: int, beside: Path) -> float | None:
    """Run all processes to their end; returns the largest anonymous memory of a node in bytes, None for a very short run.

    Raises RankFailed when one dies or falls silent, UserError when it says so, after ending the others.
    """
    with stopping.signals(job.folder):
        local = where.launcher == "local"
        rows = _run_here(job, group) if local else control.run_on_nodes(job, where.launcher)
    if not rows:
        return None
    import pandas as pd

    from scalestudy.files import write_with

    write_with(beside / "system.parquet", pd.DataFrame(rows).to_parquet)
    return max(row["anonymous_bytes"] for row in rows)


def _run_here(job: Job, group: int) -> list[dict[str, float]]:
    """All processes on this machine, forked from this one, which has imported what they need."""
    for module in PRELOAD:
        importlib.import_module(module)
    ranks = Ranks(job, range(job.processes), group)
    try:
        ranks.start()
        sampler = Sampler(ranks.pids)
        sampler.start()
        try:
            while ranks.running and not ranks.failures:
                ranks.watch()
            deadline = time.monotonic() + SETTLE_S
            while ranks.running and time.monotonic() < deadline:
                ranks.watch(timeout_s=SETTLE_S / 5)
        finally:
            sampler.stop()
    finally:
        ranks.end()
    if ranks.failures:
        raise_cause(ranks.failures, job)
    return [{"node": 0, **row} for row in sampler.rows]


def assemble(job: Job, manifest: Manifest, wall_s: float, memory_bytes: float | None, beside: Path) -> dict[str, Any]:
    """The result of a run whose processes all ended well; writes steps.parquet."""
    from scalestudy.results import result

    measured = result.read_reports(job)
    values = result.metrics(job, measured, manifest, wall_s, memory_bytes)
    reason = result.verdict(job, measured, values, manifest)
    write_steps(measured, beside / "steps.parquet")
    spec, resolved, first = job.spec, job.resolved, measured.reports[0]
    write_events(job, beside / "exchange.parquet")
    return {
        "status": "valid" if reason is None else "invalid",
        "reason": reason,
        "metrics": values,
        "kinds": result.kinds(spec, measured, values),
        "intervals": result.intervals(job, measured, manifest),
        "emulated": emulated(spec),
        "oversubscribed": resolved.step_time_s is None
        and resolved.device == "cpu"
        and resolved.ranks_per_node * resolved.threads_per_rank > resolved.cores,
        "evaluations": first["evaluations"],
        "checkpoints": first["checkpoints"],
        "steps_done": first["steps_done"],
        "samples_seen": sum(report["samples_seen"] for report in measured.reports),
        "resolved": {
            "nodes": resolved.nodes,
            "ranks_per_node": resolved.ranks_per_node,
            "threads_per_rank": resolved.threads_per_rank,
            "device": resolved.device,
            "step_time_s": resolved.step_time_s,
            "backend": first["backend"],
            "network": None if spec.network is None else f"emulated, {spec.network.mib_per_s:g} MiB/s per node",
        },
        "stage": staged_nodes(measured.reports),
        "emulated_storage": None if spec.loader.storage is None else spec.loader.storage.plain(),
        "instrument": {**instrument(first["device_name"]), "decoder": first["decoder"]},
        "affinity": [report["affinity"] for report in measured.reports],
        "warnings": list(warnings(job, measured.reports)),
        "staleness": staleness(job),
        "faults": dict(sum((Counter(report["faults"]) for report in measured.reports), Counter())),
    }


def staged_nodes(reports: list[dict[str, Any]]) -> list[dict[str, Any]] | None:
    """Per node what it has, from where, and what was copied for it in this run; None without staging."""
    nodes: dict[int, dict[str, Any]] = {}
    for report in reports:
        if found := report["stage"]:
            node = nodes.setdefault(found["node"], {**found, "copied_bytes": 0, "seconds": 0.0})
            node["copied_bytes"] += found["copied_bytes"]
            node["seconds"] = max(node["seconds"], found["seconds"])
    return [nodes[node] for node in sorted(nodes)] or None


def warnings(job: Job, reports: list[dict[str, Any]]) -> Iterator[str]:
    """What was not as it should be, though the numbers stand: where processes were, and how they exchanged."""
    if job.resolved.step_time_s is None:
        yield from binding.doubts(reports, job.resolved.threads_per_rank, job.spec.launch.binding)
    if job.processes > 1:
        yield from transport.doubts(job, reports[0]["backend"], reports[0]["interface"])


def write_steps(measured: Any, file: Path) -> None:
    """One row per rank and step: begin, seconds of each phase, loss, whether in the window."""
    import numpy as np
    import pandas as pd

    from scalestudy.files import write_with
    from scalestudy.measure.timers import PHASES

    ranks, steps, _ = measured.marks.shape
    phases = np.diff(measured.marks, axis=2).reshape(ranks * steps, -1)
    step = np.tile(measured.reports[0]["first_step"] + np.arange(steps), ranks)
    frame = pd.DataFrame(
        {"rank": np.repeat(np.arange(ranks), steps), "step": step, "begin_s": measured.marks[:, :, 0].ravel()}
    )
    for index, phase in enumerate(PHASES):
        frame[f"{phase}_s"] = phases[:, index]
    frame["loss"] = measured.losses.ravel()
    frame["in_window"] = np.tile(measured.in_window, ranks)
    write_with(file, frame.to_parquet)


def append_history(out: Path, result: dict[str, Any]) -> None:
    """One line about what the run took; the plan learns from it."""
    if out.parent.parent.name != "runs":
        return
    line = {key: result.get(key) for key in ("run", "status", "started", "ended", "spec")}
    line["wall_s"] = result["metrics"].get("wall_s")
    with open(out.parent.parent.parent / "history.jsonl", "a", encoding="utf-8") as history:
        history.write(canonical_json(json.loads(json.dumps(line))) + "\n")


def _move(source: Path, target: Path) -> None:
    """A file to its place, whole, also onto another file system."""
    from scalestudy.files import atomic_path

    with atomic_path(target) as temporary:
        shutil.copyfile(source, temporary)
