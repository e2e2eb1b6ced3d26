"""Verbs that run something: studies, one run, one dataset."""

from __future__ import annotations

import json
import os
import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from scalestudy.commands.options import FILE, OUT, in_warm_server
from scalestudy.errors import UserError

if TYPE_CHECKING:
    from scalestudy.data.catalogue import AnyData


ON_GPU = ("batch_and_precision", "loader_workers")
"""What it runs on one with an accelerator, at scale `node`: 42 runs of about 10 s each on an H200 with 16 cores."""
ASK_CPU = "`make run SCALE=mini` measures the CPU"


def fitting_scale(wish: str | None = None) -> tuple[str, str]:
    """The scale of `make run`, and why: `node` where there is an accelerator, else `mini`, or the user's `wish`.

    Raises UserError where there is an accelerator that runs cannot use, or that torch or its driver cannot: the CPU is not
    taken in its place unasked.
    """
    from scalestudy.hardware import accelerators
    from scalestudy.spec.auto_machine import auto_machine

    if wish == "mini":
        return wish, "scale mini, as asked: this CPU, and accelerators that are emulated"
    inventory = accelerators()
    if inventory.refusal:
        raise UserError(inventory.refusal, remedy=f"fix that first (`scalestudy doctor` says more); {ASK_CPU}")
    if inventory.count:
        names = " and ".join(dict.fromkeys(device.name or "a part of a GPU" for device in inventory.devices))
        return "node", f"{inventory.count} x {names} is here: scale node, on machine {auto_machine()}; {ASK_CPU}"
    if wish == "node":
        what = f"scale `node` needs an accelerator, and none is here: {inventory.source}"
        raise UserError(what, remedy="choose SCALE=mini")
    return "mini", f"no accelerator is here ({inventory.source}): scale mini, on this CPU"


@click.command(name="run")
@click.option(
    "--scale", type=click.Choice(["mini", "node"]), help="Unset: node where there is an accelerator, else mini."
)
@click.option("-n", "--dry-run", is_flag=True, help="Only the plan, and a count of jobs per rule.")
def run(scale: str | None, dry_run: bool) -> None:
    """Run the studies that fit this machine, as `make run` does: print the Snakemake command, then execute it.

    \b
    Example: scalestudy run -n
    """
    from scalestudy.spec.machine import AUTO
    from scalestudy.spec.study import MACHINE_STUDIES

    scale, why = fitting_scale(scale)
    machine, names = (AUTO, ON_GPU) if scale == "node" else ("local", MACHINE_STUDIES)
    studies = ",".join(names)
    click.echo(f"{why}; studies {studies.replace(',', ', ')}")
    if scale == "mini":
        os.environ["CUDA_VISIBLE_DEVICES"] = "-1"
    words = ["snakemake", "all", "--profile", "profiles/local"]
    words += ["--config", f"studies={studies}", f"scale={scale}", f"machine={machine}", *(["-n"] if dry_run else [])]
    click.echo(shlex.join(words))
    sys.stdout.flush()
    beside = Path(sys.executable).with_name("snakemake")
    # In the place of this process, so that signals reach Snakemake.
    os.execvp(str(beside) if beside.exists() else words[0], words)


@click.command(name="train")
@click.option("--out", required=True, type=FILE, help="result.json to write; spec.json is in the same folder.")
def train(out: Path) -> None:
    """Make the run described by spec.json and write result.json.

    Example: scalestudy train --out results/local/runs/RUN/result.json
    """
    in_warm_server("train", "--out", str(out))
    from scalestudy.commands.one_run import train_from_spec

    train_from_spec(out)


@click.command(name="try")
@click.argument("settings", nargs=-1, metavar="[KEY=VALUE]...")
@click.option("--out", required=True, type=FILE, help="Folder for the run's files.")
def try_(settings: tuple[str, ...], out: Path) -> None:
    """Make one run outside the DAG, with defaults for all other keys, and print its metrics.

    A run that stopped on purpose (exit status 75) or was killed resumes when the same command is run again.

    \b
    Example: scalestudy try strategy=allreduce ranks=2 train.epochs=5 --out /tmp/a
    Example: scalestudy try model=resnet50 device=emulated:p100 data.source=synthetic measure.steps=20 --out /tmp/b
    """
    in_warm_server("try", *settings, "--out", str(out))
    from scalestudy.commands.one_run import try_settings

    try_settings(settings, out)


@click.command(name="agent", hidden=True)
@click.argument("folder", type=FILE)
@click.argument("index", type=int, required=False)
def agent(folder: Path, index: int | None) -> None:
    """One node of a run on several; started by a launcher.

    Example: scalestudy agent FOLDER 1
    """
    from scalestudy.launch.agent import main as be_agent

    sys.exit(be_agent(folder, index))


@click.command(name="largest-batch")
@click.argument("settings", nargs=-1, metavar="[KEY=VALUE]...")
@click.option("--memory-mib", type=click.FloatRange(min=1), help="Limit; unset: all of a GPU, 90 % of free memory.")
def largest_batch(settings: tuple[str, ...], memory_mib: float | None) -> None:
    """Find the largest batch per rank that fits, by training with it: doubling, then bisection.

    From 64 samples on, to within 8 of them or 1 %.

    \b
    Example: scalestudy largest-batch model=resnet50 data="{source: synthetic, classes: 1000}" --memory-mib 4096
    """
    from scalestudy.commands.one_run import find_largest_batch

    find_largest_batch(settings, memory_mib)


@click.command(name="prepare")
@OUT
@click.option("--spec", "text", default="", help="The dataset's spec as JSON; needed without --again.")
@click.option("--bulk", default=None, type=FILE, help="Folder for the bulk; default: next to the manifest.")
@click.option("--again", is_flag=True, help="Make the data of --out anew, from the source's files as they are now.")
def prepare(out: Path, text: str, bulk: Path | None, again: bool) -> None:
    """Prepare a dataset and write its manifest.

    Example: scalestudy prepare --spec '{"source": "digits"}' --out /tmp/digits/manifest.json
    """
    from scalestudy.data.manifest import is_in_place, read_manifest
    from scalestudy.data.prepare.datasets import prepare
    from scalestudy.data.verify import described_by
    from scalestudy.host_lock import beside_measured_runs
    from scalestudy.spec.config import read_site

    if again:
        manifest = read_manifest(out)
        data, place = described_by(manifest, out), Path(manifest.bulk)
        bulk = place.parent if place.is_absolute() and not is_in_place(manifest) else None
    else:
        data = _described(text)
    with beside_measured_runs():
        made = prepare(data, out, bulk, read_site(), again=again)
    if made.status == "skipped":
        click.echo(made.reason)
        return
    size = f"{made.train.bytes / 2**20:,.1f} MiB" if made.bulk else "made in memory"
    shards = f" in {made.train.shards:,} shards" if made.train.shards else ""
    left_out = f"; {made.left_out:,} left out" if made.left_out else ""
    click.echo(f"{made.train.samples:,} training samples, {size}{shards}{left_out}")


def _described(text: str) -> AnyData:
    """The dataset that `text` describes; raises UserError where it is wrong."""
    from scalestudy.commands.one_run import checked_run

    try:
        data = json.loads(text)
    except (ValueError, RecursionError) as error:
        remedy = 'write, for example, {"source": "digits"}'
        raise UserError(f"cannot be read as JSON: {error}", "--spec", remedy) from None
    return checked_run({"data": data}, "--spec").data


@click.command(name="stage")
@click.argument("manifest", type=click.Path(path_type=Path, exists=True, dir_okay=False))
@click.option("--from", "origin", default=None, help="A folder or an address that holds the same files.")
@click.option("--streams", default=4, show_default=True, type=click.IntRange(1, 1024), help="Threads that copy.")
@click.option("--mib-per-s", default=None, type=click.FloatRange(0, min_open=True), help="Limit of the copying rate.")
def stage(manifest: Path, origin: str | None, streams: int, mib_per_s: float | None) -> None:
    """Copy prepared data to this node's own disk, ahead of the runs that will use the copies.

    A run with `stage` does this automatically. After an interruption, files that are whole are not copied again.

    Example: scalestudy stage results/data/digits-0123456789ab/manifest.json
    """
    from scalestudy.data import stage
    from scalestudy.spec.config import read_site

    options = stage.StageOptions(origin=origin, streams=streams, mib_per_s=mib_per_s)
    copies = stage.staged(manifest, options, stage.Share(), read_site())
    copied = copies.copied_bytes / 2**20
    rate = f", {copied / copies.seconds:,.0f} MiB/s" if copied else ""
    size = f"{copies.files:,} files, {copies.bytes / 2**20:,.1f} MiB"
    click.echo(f"{size}; {copied:,.1f} MiB copied in {copies.seconds:.2f} s{rate}")
    copies.release()
    click.echo(copies.manifest.parent)


@click.command(name="unstage")
def unstage() -> None:
    """Remove the copies on this node that no run is using.

    Example: scalestudy unstage
    """
    from scalestudy.data.stage import cache
    from scalestudy.spec.config import read_site

    root = cache.scratch_folder(read_site())
    removed, used = cache.clean(root)
    lines = [f"removed {name}" for name in removed] + [f"in use  {name}" for name in used]
    click.echo("\n".join(lines) if lines else f"there are no copies in {root}")
