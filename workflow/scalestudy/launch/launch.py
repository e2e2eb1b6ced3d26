"""Makes a run: starts its processes, watches them, and writes the result, whole or not at all."""

from __future__ import annotations

import shutil
import tempfile
import time
from pathlib import Path
from typing import Any

from scalestudy.data.manifest import bulk_folder, read_manifest
from scalestudy.errors import Skipped
from scalestudy.files import atomic_path, read_json
from scalestudy.launch import attempts, signals
from scalestudy.launch.attempts import now
from scalestudy.launch.job_environment import JobEnvironment
from scalestudy.launch.keeper import keeper
from scalestudy.launch.ranks import run_here
from scalestudy.launch.resolve import check_promised_gpus, network_of, resolve
from scalestudy.results.records import write_samples
from scalestudy.results.result import measured_result, skipped
from scalestudy.results.stored import append_history, write_result
from scalestudy.spec.layout import EXTENSIONS, machine_file, machine_of
from scalestudy.spec.machine import Machine
from scalestudy.spec.run import RunSpec
from scalestudy.training.control_files import STOPPED
from scalestudy.training.job import Job


def run(run_id: str, spec: RunSpec, manifest_file: Path, out: Path, machine: Machine) -> dict[str, Any]:
    """Make one run, or resume it, and write `out` (result.json), with tables of steps and of the system in its folder.

    A run that will come out the same next time (skipped, invalid) is a result; a crash raises RankFailed and leaves
    no result, and so does SiteFault, a lack of the site in a job. Raises Stopped where the run stopped on purpose,
    with its checkpoint written.
    """
    with attempts.attempt(run_id, out) as chain:
        started = now()
        try:
            outcome = _measure(chain, spec, manifest_file, machine)
        except Skipped as error:
            outcome = skipped(spec, str(error))
        head = {"run": run_id, "status": outcome["status"], "reason": outcome["reason"], "spec": spec.to_dict()}
        result = {**head, "machine": machine_of(out), "started": started, **outcome, "ended": now()}
        chain.add_to(result)
        write_result(out, result)
        append_history(out, result)
    return result


def _measure(chain: attempts.Chain, spec: RunSpec, manifest_file: Path, machine: Machine) -> dict[str, Any]:
    """Run all processes to their end; returns their measurements, as in a result. Raises Skipped."""
    begin, folder = time.perf_counter(), chain.folder
    manifest = None if spec.program is not None else read_manifest(manifest_file)
    if manifest is not None and manifest.status == "skipped":
        raise Skipped(str(manifest.reason))
    resolved, where = resolve(spec, machine)
    check_promised_gpus(resolved, machine, machine_file(folder.parent.parent.name))
    data = None if manifest is None else bulk_folder(manifest_file, manifest)
    # Where other machines take part they share the scratch folder, which lies in that of the result.
    shared = None if where.is_here else folder.resolve()
    prefix = "scalestudy-run-" if shared is None else ".nodes-"
    with (
        network_of(spec, resolved, where, data) as network,
        tempfile.TemporaryDirectory(prefix=prefix, dir=shared) as name,
        keeper(scratch := Path(name)) as group,
    ):
        if network.server is not None:
            spec = spec.model_copy(update={"loader": spec.loader.model_copy(update={"origin": network.server})})
        job = Job(
            chain.run, spec, resolved, manifest_file.resolve(), scratch, EXTENSIONS.resolve(),
            (folder / "log").resolve(), where.hosts, where.away, run_folder=folder.resolve(),
            resume=chain.resume and chain.resume.resolve(),
            relays=network.processes, deadline=JobEnvironment().deadline,
        )  # fmt: skip
        with signals.handled(scratch, spec.program):
            if where.launcher == "local":
                samples = run_here(job, group, network.nodes)
            else:
                from scalestudy.launch.control import Control

                samples = Control(job, where.launcher).run()
            if spec.program is not None:
                from scalestudy.program.resume import save_if_stopped

                save_if_stopped(job)
        memory_bytes = write_samples(samples, folder / "system.parquet")
        if (scratch / STOPPED).exists():  # the ranks stopped on purpose
            raise attempts.Stopped(**read_json(scratch / STOPPED))
        wall_s = time.perf_counter() - begin
        if manifest is not None:
            outcome = measured_result(job, manifest, wall_s, memory_bytes, folder, samples)
        else:
            from scalestudy.program.result import program_result

            outcome = program_result(job, wall_s, memory_bytes, samples)
        if spec.keep == "weights":
            with atomic_path(folder / "weights.safetensors") as temporary:  # also on another file system
                shutil.copyfile(scratch / "weights.safetensors", temporary)
    outcome["launch"] = {"launcher": where.launcher, "hosts": list(where.hosts)}
    return outcome
