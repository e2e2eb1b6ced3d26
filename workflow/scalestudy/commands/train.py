"""One run, from the DAG or by hand."""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path
from typing import Any

import click
import yaml

from scalestudy.errors import UserError, raise_all
from scalestudy.files import read_json, write_json
from scalestudy.locks import measured_run, only_trainer
from scalestudy.spec.base import parse
from scalestudy.spec.columns import METRICS
from scalestudy.spec.config import read_machine, read_site
from scalestudy.spec.ids import EXTENSIONS, dataset_id, run_id
from scalestudy.spec.layout import manifest_file
from scalestudy.spec.machine import Machine
from scalestudy.spec.run import RunSpec, geometry_problems
from scalestudy.spec.study import in_bytes

SHOWN = ("throughput_samples_per_s", "step_time_s", "data_s", "compute_s", "exchange_s", "optimiser_s", "data_stall",
         "accelerator_utilisation", "loader_samples_per_s", "accuracy", "auroc", "loss", "training_time_s",
         "stage_s", "staged_bytes", "time_to_train_s",
         "setup_s", "trace_s", "profile_s", "search_s", "stages", "replicas", "micro_batches", "predicted_step_time_s",
         "predicted_memory_mib", "device_memory_mib", "wall_s")  # fmt: skip


def train_from_spec(out: Path) -> None:
    """Make the run whose spec.json lies beside `out`; a crash ends with exit status 1 and no result."""
    spec = checked_run(read_json(out.parent / "spec.json"), str(out.parent / "spec.json"))
    folder = out.parent
    machine = read_machine(folder.parent.parent.name) if folder.parent.name == "runs" else Machine()
    with only_trainer(folder) as waited:
        if waited and out.exists():
            result = read_json(out)  # an orphan has finished it
        else:
            result = _make(folder.name, spec, manifest_file(dataset_id(spec.data)), out, machine)
    print(one_line(result), flush=True)
    for warning in result.get("warnings", []):
        print(f"warning: {warning}", flush=True)


def try_settings(settings: tuple[str, ...], out: Path, borrow: Path | None = None) -> None:
    """Make one run from `key=value` settings into a folder, and print its figures; perhaps from another's checkpoint."""
    spec = in_bytes(checked_run(from_settings(settings), "try"), Machine())
    if borrow is not None:
        from scalestudy.training import checkpoint

        checkpoint.borrowed_state(borrow, spec)
    identity = run_id(spec)
    manifest = manifest_file(dataset_id(spec.data))
    if not EXTENSIONS.parent.is_dir():
        manifest = out / "data" / dataset_id(spec.data) / "manifest.json"
    if manifest.exists() and read_json(manifest).get("status") == "skipped":
        manifest.unlink()  # what could not be had last time is looked for again
    with only_trainer(out):
        write_json(out / "spec.json", spec.plain())
        result = _make(identity, spec, manifest, out / "result.json", Machine(), borrow)
    click.echo(f"{identity}\n{out / 'result.json'}")
    click.echo(f"{result['status']}" + (f": {result['reason']}" if result["reason"] else ""))
    for warning in result.get("warnings", []):
        click.echo(f"warning: {warning}")
    for name in SHOWN:
        if (value := result["metrics"].get(name)) is not None:
            kind = result["kinds"].get(name, "")
            click.echo(f"  {METRICS[name].label:24} {value:>12,.4g} {METRICS[name].unit} {kind}".rstrip())


def find_largest_batch(settings: tuple[str, ...], memory_mib: float | None) -> None:
    """Print each batch that was tried, and the largest that fits."""
    import psutil

    from scalestudy.data.prepare import prepare
    from scalestudy.training.job import Job
    from scalestudy.training.largest_batch import search
    from scalestudy.training.launch import resolve

    spec = in_bytes(checked_run(from_settings(settings), "largest-batch"), Machine())
    if spec.accelerator is not None:
        raise UserError("an emulated accelerator has no memory", "device", "leave it away, or use cpu or cuda")
    resolved, _ = resolve(spec, Machine())
    if memory_mib is None and resolved.device == "cpu":
        memory_mib = 0.9 * psutil.virtual_memory().available / 2**20
    with measured_run(), tempfile.TemporaryDirectory(prefix="scalestudy-batch-") as folder:
        identity = dataset_id(spec.data)
        manifest = manifest_file(identity) if EXTENSIONS.parent.is_dir() else Path(folder) / identity / "manifest.json"
        if prepare(spec.data, manifest, None, read_site()).status == "skipped":
            raise UserError(f"the data is not there: {read_json(manifest)['reason']}", "data")
        job = Job("largest-batch", spec, resolved, manifest.resolve(), Path(folder), EXTENSIONS.resolve(), None)
        found, tried = search(job, None if memory_mib is None else int(memory_mib * 2**20))
    for attempt in tried:
        peak = f"{attempt.peak_bytes / 2**20:10,.0f} MiB" if attempt.peak_bytes is not None else "  does not fit"
        click.echo(f"{attempt.batch:>9,} samples {peak}")
    limit = "" if memory_mib is None else f" into {memory_mib:,.0f} MiB"
    click.echo(f"largest batch per rank that fits{limit}: {found:,}")


def _make(
    identity: str, spec: RunSpec, manifest: Path, out: Path, machine: Machine, borrow: Path | None = None
) -> dict[str, Any]:
    from scalestudy.data.prepare import ensure, prepare
    from scalestudy.training import launch, stopping
    from scalestudy.training.ranks import RankFailed

    with measured_run():
        if manifest.exists():
            ensure(manifest, read_site())
        else:
            prepare(spec.data, manifest, None, read_site())
        try:
            return launch.run(identity, spec, manifest, out, machine, borrow=borrow)
        except stopping.Stopped as stop:
            print(f"scalestudy: {identity}: {stop}", file=sys.stderr, flush=True)
            sys.exit(stopping.EXIT_STOPPED)
        except (RankFailed, stopping.EndedBySignal) as error:
            what, _, details = str(error).partition("\n")
            message = f"scalestudy: {identity}: {what}; no result is written"
            print(f"{message}\n{details}".rstrip(), file=sys.stderr, flush=True)
            sys.exit(1)


def checked_run(data: Any, where: str) -> RunSpec:
    """Plain data as a run that is possible; all that is wrong with it is said together."""
    spec, problems = parse(RunSpec, data)
    problems = problems if spec is None else list(geometry_problems(spec))
    raise_all([UserError(p.what, f"{where}: {'.'.join(map(str, p.path))}", p.remedy) for p in problems])
    assert spec is not None
    return spec


def from_settings(settings: tuple[str, ...]) -> dict[str, Any]:
    """`("strategy=allreduce", "train.epochs=3")` as nested data; values are YAML."""
    data: dict[str, Any] = {}
    for setting in settings:
        key, equals, text = setting.partition("=")
        if not equals or not key:
            raise UserError(f"`{setting}` is no setting", "try", "write key=value, for example ranks=2")
        try:
            value = yaml.safe_load(text)
            json.dumps(value, allow_nan=False)
        except (yaml.YAMLError, TypeError, ValueError):
            raise UserError(f"`{text}` is no value", f"try: {key}") from None
        *parents, last = key.split(".")
        target = data
        for parent in parents:
            below = target.get(parent)
            target[parent] = below if isinstance(below, dict) else {"name": below} if isinstance(below, str) else {}
            target = target[parent]
        if value is not None:
            target[last] = value
    for key, default in (("data", {"source": "digits"}), ("model", {"name": "small_cnn"})):
        if isinstance(data.get(key), dict) and "import" not in data[key]:
            data[key] = {**default, **data[key]}
    return data


def one_line(result: dict[str, Any]) -> str:
    """A result in one line, for the progress display and logs."""
    value = result["metrics"].get("throughput_samples_per_s")
    if result["status"] == "valid" and value is not None:
        return f"valid: {value:,.0f} samples/s"
    return f"{result['status']}: {result['reason']}"
