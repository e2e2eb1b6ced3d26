"""One run, from the DAG or by hand."""

from __future__ import annotations

import math
import os
import sys
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import Any

import click

from scalestudy.data.verify import is_usable
from scalestudy.errors import UserError, raise_problems
from scalestudy.files import now_at_most, read_json, write_json
from scalestudy.host_lock import WaitedTooLong, measured_run
from scalestudy.launch.trainer_lock import LOCK, only_trainer
from scalestudy.limits import free_memory_bytes
from scalestudy.results.stored import is_skipped
from scalestudy.spec.base import parse
from scalestudy.spec.check_run import run_problems
from scalestudy.spec.columns import METRICS
from scalestudy.spec.config import read_machine, read_site
from scalestudy.spec.ids import dataset_id, own_code, own_code_problems, run_id
from scalestudy.spec.labels import speed_text
from scalestudy.spec.layout import CHECKPOINTS, EXTENSIONS, RESULTS, manifest_file
from scalestudy.spec.machine import Machine
from scalestudy.spec.run import RunSpec
from scalestudy.spec.sizes import in_bytes
from scalestudy.spec.yamlfile import dotted, setting, with_key

AGAIN = "    once the cause is gone, the same command resumes the run from its last checkpoint, or starts it from the beginning"


def train_from_spec(out: Path) -> None:
    """Make the run of the spec.json in the folder of `out`; a crash ends with exit status 1 and no result."""
    folder, file = out.parent, out.parent / "spec.json"
    plain = read_json(file)
    spec = checked_run(plain, str(file))
    if folder.parent.name == "runs" and (identity := run_id(spec)) != folder.name:
        what, remedy = f"describes another run than its folder names: {identity}", "delete it; it will be written again"
        if own := own_code(spec):
            remedy = f"{' or '.join(own)} was changed since the run was planned: run the same command again"
        raise UserError(what, str(file), remedy)
    machine = read_machine(folder.parent.parent.name) if folder.parent.name == "runs" else Machine()
    with only_trainer(folder):
        manifest = manifest_file(dataset_id(spec.data))
        now_at_most(file, *([] if spec.program else [manifest]))
        result = _finished_result(out) or _make(folder.name, spec, manifest, out, machine)
    outcome_text = speed_text(result) if result["status"] == "valid" else result["reason"]
    print("\n".join([f"{result['status']}: {outcome_text}", *_remarks(result)]), flush=True)


def _finished_result(out: Path) -> dict[str, Any] | None:
    """The result that another process has written meanwhile, dated now; None where there is none of this run."""
    with suppress(UserError, TypeError, KeyError):
        result: dict[str, Any] = read_json(out)
        if result["run"] == out.parent.name and result["status"] != "skipped":
            os.utime(out)  # Snakemake wants an output that is newer than the job's inputs
            return result
    return None


def try_settings(settings: tuple[str, ...], out: Path) -> None:
    """Make one run from `key=value` settings into a folder, and print its figures.

    Exits with status 1 where the result is invalid.
    """
    spec = checked_run(from_settings(settings, "try"), "try")
    identity = run_id(spec)
    manifest = manifest_file(dataset_id(spec.data))
    if not EXTENSIONS.parent.is_dir():
        manifest = out / "data" / dataset_id(spec.data) / "manifest.json"
    if is_skipped(manifest):
        manifest.unlink()  # what could not be had last time is looked for again
    refuse_foreign_folder(out, identity)
    with only_trainer(out):
        write_json(out / "spec.json", spec.to_dict())
        result = _make(identity, spec, manifest, out / "result.json", Machine())
    click.echo(f"{identity}\n{out / 'result.json'}")
    click.echo("\n".join([": ".join(filter(None, (result["status"], result["reason"]))), *_remarks(result)]))
    for name in METRICS:
        if (value := result["metrics"].get(name)) is not None:
            kind = result["kinds"].get(name, "")
            click.echo(f"  {METRICS[name].label:24} {value:>12,.4g} {METRICS[name].unit} {kind}".rstrip())
    if result["metrics"].get("step_time_s") is not None:
        from scalestudy.results.parts import step_in_words

        click.echo("\n".join(step_in_words(result)["sentences"]))
    if result["status"] == "invalid":
        sys.exit(1)


def _remarks(result: dict[str, Any]) -> list[str]:
    """Warnings, and sentences on what could not be checked."""
    warnings = [f"warning: {warning}" for warning in result.get("warnings", [])]
    return [*warnings, *(f"unchecked: {sentence}" for sentence in result.get("unchecked", []))]


def refuse_foreign_folder(out: Path, identity: str) -> None:
    """UserError where `out` lies below `results/`, holds foreign files, or a result or checkpoints of another run."""
    if out.resolve().is_relative_to(RESULTS.resolve()):
        raise UserError("belongs to the studies: their runs lie there", f"--out {out}", "name a folder outside of it")
    if not out.exists() or (out.is_dir() and all(path.name == LOCK for path in out.iterdir())):
        return
    earlier = None
    with suppress(UserError, OSError):
        spec, _ = parse(RunSpec, read_json(out / "spec.json"))
        earlier = None if spec is None else run_id(spec)
    is_worth_keeping = (out / "result.json").exists() or (out / CHECKPOINTS).exists()
    if earlier is None or (earlier != identity and is_worth_keeping):
        what = "holds files that are not of a run" if earlier is None else f"holds another run, {earlier}"
        raise UserError(f"{what}: they are left as they are", f"--out {out}", "name an empty folder, or remove it")


def find_largest_batch(settings: tuple[str, ...], memory_mib: float | None) -> None:
    """Print each batch that was tried, and the largest that fits."""
    from scalestudy.data.prepare.datasets import prepare
    from scalestudy.launch.largest_batch import search
    from scalestudy.launch.resolve import resolve
    from scalestudy.training.job import Job

    spec = checked_run(from_settings(settings, "largest-batch"), "largest-batch")
    if spec.accelerator is not None:
        raise UserError("an emulated accelerator has no memory", "device", "leave it out, or use cpu or cuda")
    resolved, _ = resolve(spec, Machine())
    if memory_mib is None and resolved.device == "cpu":
        memory_mib = 0.9 * free_memory_bytes() / 2**20
    with measured_run("a search of the largest batch"), tempfile.TemporaryDirectory(prefix="scalestudy_") as folder:
        identity = dataset_id(spec.data)
        manifest = manifest_file(identity) if EXTENSIONS.parent.is_dir() else Path(folder) / identity / "manifest.json"
        prepared = prepare(spec.data, manifest, None, read_site())
        if prepared.status == "skipped":
            raise UserError(f"the data is not there: {prepared.reason}", "data")
        job = Job("largest-batch", spec, resolved, manifest.resolve(), Path(folder), EXTENSIONS.resolve())
        largest_batch = search(job, None if memory_mib is None else int(memory_mib * 2**20), _show_batch)
    limit = "" if memory_mib is None else f" into {memory_mib:,.0f} MiB"
    click.echo(f"largest batch per rank that fits{limit}: {largest_batch:,}")


def _show_batch(batch: int, answer: int | str) -> None:
    answer_text = f"{answer / 2**20:10,.0f} MiB" if isinstance(answer, int) else f"  does not fit: {answer}"
    click.echo(f"{batch:>9,} samples {answer_text}")


def _make(identity: str, spec: RunSpec, manifest: Path, out: Path, machine: Machine) -> dict[str, Any]:
    from scalestudy.launch import attempts, launch
    from scalestudy.launch.failures import NodeFailed, RankFailed
    from scalestudy.launch.job_environment import JobEnvironment
    from scalestudy.launch.signals import EndedBySignal
    from scalestudy.training.control_files import EXIT_STOPPED, write_state

    try:
        with measured_run(f"run {identity}", JobEnvironment().deadline or math.inf):
            if spec.program is None:  # a program has its own data
                _provide_data(spec, manifest)
            return launch.run(identity, spec, manifest, out, machine)
    except (attempts.Stopped, WaitedTooLong) as stop:
        if isinstance(stop, WaitedTooLong):
            write_state(out.parent, "checkpointed", 0, str(stop))
        print(f"scalestudy: {identity}: {stop}", file=sys.stderr, flush=True)
        sys.exit(EXIT_STOPPED)
    except (RankFailed, EndedBySignal) as error:
        what, _, details = str(error).partition("\n")
        if isinstance(error, NodeFailed):
            JobEnvironment().report_fault(what)
        message = f"scalestudy: {identity}: {what}; no result is written"
        print("\n".join(filter(None, [message, details, AGAIN])), file=sys.stderr, flush=True)
        sys.exit(1)


def _provide_data(spec: RunSpec, manifest: Path) -> None:
    """Prepare the run's data where it was not yet, or was purged since."""
    site = read_site()
    if manifest.exists() and is_usable(manifest, site):
        return
    from scalestudy.data.prepare.datasets import ensure, prepare

    if manifest.exists():
        ensure(manifest, site)
    else:
        prepare(spec.data, manifest, None, site)


def checked_run(data: Any, where: str) -> RunSpec:
    """Plain data as a possible run, with the size of its data in bytes; all its errors are raised together."""
    spec, problems = parse(RunSpec, data)
    problems = problems if spec is None else [*own_code_problems(spec), *run_problems(spec, Machine())]
    raise_problems(problems, lambda path: f"{where}: {dotted(path)}")
    assert spec is not None
    return in_bytes(spec, Machine())


def from_settings(settings: tuple[str, ...], command: str) -> dict[str, Any]:
    """`("strategy=allreduce", "train.epochs=3")` as nested data; text with keys below it is the name of that map.

    Of one key, the last setting holds; null is its default. Raises UserError where a setting cannot be read, or would
    drop the values given for another key.
    """
    data: dict[str, Any] = {}
    given: list[str] = []
    for text in settings:
        key, value = setting(text, command)
        if below := next((other for other in given if other.startswith(f"{key}.")), None):
            raise UserError(f"would drop `{below}`, which was given before", f"{command}: {key}", f"give `{key}` first")
        given.append(key)
        data = with_key(data, key.split("."), value)
    for key, default in (("data", {"source": "digits"}), ("model", {"name": "small_cnn"})):
        if isinstance(data.get(key), dict) and "import" not in data[key]:
            data[key] = {**default, **data[key]}
    return data
