"""Start the processes of a run on this machine, watch them, and write the result, whole or not at all."""

from __future__ import annotations

import contextlib
import ctypes
import datetime
import gc
import json
import multiprocessing
import os
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Iterator
from multiprocessing.connection import wait as wait_for
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

from scalestudy.data.manifest import Manifest, read_manifest
from scalestudy.errors import Skipped, UserError
from scalestudy.files import canonical_json, write_json
from scalestudy.measure.links import Node, emulated_nodes
from scalestudy.measure.system import Sampler
from scalestudy.spec.ids import EXTENSIONS
from scalestudy.spec.machine import Machine
from scalestudy.spec.run import RunSpec
from scalestudy.strategies.available import missing
from scalestudy.training import stopping
from scalestudy.training.job import Job, Resolved, emulated_step_time
from scalestudy.training.records import staleness, write_events

PR_SET_PDEATHSIG = 1


class RankFailed(Exception):
    """A process of the run died; the message names it."""


def resolve(spec: RunSpec, machine: Machine) -> Resolved:
    """Fill in what the machine decides: device, threads, ranks per node."""
    cores = machine.cores_per_node or len(os.sched_getaffinity(0))
    device = spec.device or machine.device or ("cuda" if gpus() else "cpu")
    step_time = None
    if spec.accelerator is not None:
        device, step_time = "cpu", emulated_step_time(spec.model.name, spec.accelerator, spec.rank_batch)
    if reason := missing(spec.strategy):
        raise Skipped(reason)
    devices = machine.devices_per_node or (gpus() if device == "cuda" else 0)
    ranks_per_node = spec.ranks_per_node or (spec.ranks // spec.nodes if spec.nodes else spec.ranks)
    if device == "cuda" and ranks_per_node > devices:
        raise Skipped(f"{ranks_per_node} ranks need as many GPUs; this machine has {devices}")
    threads = spec.threads_per_rank or (max(1, cores // devices) if device == "cuda" and devices else 1)
    return Resolved(spec.nodes or -(-spec.ranks // ranks_per_node), ranks_per_node, threads, device, cores, step_time)


@contextlib.contextmanager
def network_of(spec: RunSpec, resolved: Resolved) -> Iterator[tuple[Node, ...]]:
    """The emulated nodes of the run, while it runs; none where it uses the network that is there."""
    if spec.network is None:
        yield ()
        return
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
    resolved, nodes = None, tuple[Node, ...]()
    try:
        resolved = resolve(spec, machine)
        nodes = held.enter_context(network_of(spec, resolved))
    except Skipped as error:
        skipped = str(error)
    head = {
        "run": run_id,
        "status": "skipped",
        "reason": skipped,
        "spec": spec.plain(),
        "started": started.isoformat(timespec="seconds"),
    }
    if skipped is not None or resolved is None:
        result = {**head, "metrics": {}, "kinds": {}, "emulated": emulated(spec)}
    else:
        with tempfile.TemporaryDirectory(prefix="scalestudy-run-") as folder:
            weights = out.parent / "weights.safetensors" if spec.keep == "weights" else None
            job = Job(
                run_id, spec, resolved, manifest_file.resolve(), Path(folder), extensions.resolve(), weights,
                network=nodes, **chain.for_job(),
            )  # fmt: skip
            job.keep.mkdir()
            memory = start_and_watch(job, out.parent)
            stopping.raise_if_stopped(job.folder)
            measured_s = time.perf_counter() - begin
            result = {**head, **assemble(job, manifest, measured_s, memory, out.parent)}
            for kept in sorted(job.keep.iterdir()):
                _move(kept, out.parent / kept.name)
            if weights is not None:
                _move(job.folder / "weights.safetensors", weights)
    result["ended"] = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
    chain.add_to(result)
    write_json(out, result)
    append_history(out, result)
    return result


def start_and_watch(job: Job, beside: Path) -> float | None:
    """Run all processes to their end; returns their largest anonymous memory in bytes, None for a very short run.

    Raises RankFailed when one dies, after ending the others.
    """
    context = multiprocessing.get_context("fork")
    # A collection in a rank would copy the pages that it shares with this process: a pause of half a second in a step.
    gc.freeze()
    count = job.spec.ranks + job.spec.strategy.servers_beside
    parent = os.getpid()
    processes: list[BaseProcess] = []
    with stopping.signals(job.folder):
        for rank in range(count):
            process = context.Process(target=_rank, args=(job, rank, parent), name=_title(job, rank))
            process.start()
            processes.append(process)
        sampler = Sampler([process.pid or 0 for process in processes])
        sampler.start()
        try:
            _watch(processes)
        except RankFailed:
            for file in sorted(job.folder.glob("error.*")):
                raise UserError(file.read_text(encoding="utf-8"), job.run) from None
            raise
        finally:
            end_all(processes)
            sampler.stop()
    if sampler.rows:
        import pandas as pd

        from scalestudy.files import write_with

        write_with(beside / "system.parquet", pd.DataFrame(sampler.rows).to_parquet)
        return max(row["anonymous_bytes"] for row in sampler.rows)
    return None


def _title(job: Job, rank: int) -> str:
    return f"rank {rank}" if rank < job.spec.ranks else f"parameter server {rank - job.spec.ranks}"


def _rank(job: Job, rank: int, parent: int) -> None:
    """What a started process does: it dies with its parent, and says what went wrong with it."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:
            os._exit(1)
    stopping.rank_signals()
    if job.network:
        job.network[job.node_of(rank)].enter()
    try:
        from scalestudy.training.loop import main

        main(job, rank)
    except UserError as error:
        (job.folder / f"error.{rank}").write_text(str(error), encoding="utf-8")
        os._exit(2)
    except BaseException:
        print(f"{_title(job, rank)} failed:\n{traceback.format_exc()}", flush=True)
        os._exit(1)
    sys.stdout.flush()
    # Threads of libraries are not waited for: everything of worth has been written.
    os._exit(0)


def _watch(processes: list[BaseProcess]) -> None:
    """Wait until all have ended well; raise when the first has not."""
    left = {process.sentinel: process for process in processes}
    while left:
        for sentinel in wait_for(list(left)):
            process = left.pop(sentinel)  # type: ignore[arg-type]
            process.join()
            if process.exitcode:
                # Those that only lost their partner fail next; the first to die tells the cause.
                raise RankFailed(f"{process.name} {_ending(process.exitcode)}")


def _ending(code: int) -> str:
    if code < 0:
        return f"was killed by signal {-code} ({signal.Signals(-code).name}), cause unknown"
    return f"failed (exit status {code})"


def end_all(processes: list[BaseProcess]) -> None:
    """End what still runs. To a rank, SIGTERM is a question; it has nothing to put in order that this would spoil."""
    for process in processes:
        if process.is_alive():
            process.kill()
    for process in processes:
        process.join()


def assemble(job: Job, manifest: Manifest, wall_s: float, memory_bytes: float | None, beside: Path) -> dict[str, Any]:
    """The result of a run whose processes all ended well; writes steps.parquet."""
    from scalestudy.training import result

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
        "kinds": result.kinds(spec, measured),
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
        "instrument": result.instrument(first["device_name"]),
        "affinity": [report["affinity"] for report in measured.reports],
        "staleness": staleness(job),
        "faults": dict(sum((Counter(report["faults"]) for report in measured.reports), Counter())),
    }


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
