"""`scalestudy prepare`: one dataset, from its spec to its manifest."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import click

from scalestudy.commands.options import FILE, OUT
from scalestudy.errors import UserError, raise_all
from scalestudy.files import read_json

EXAMPLE = 'write, for example, {"source": "digits"}'

if TYPE_CHECKING:
    from scalestudy.data.catalogue import AnyData
    from scalestudy.data.manifest import Manifest


@click.command(name="prepare")
@OUT
@click.option("--spec", "text", default=None, help="The dataset's spec as JSON; default: dataset.json next to --out.")
@click.option("--bulk", default=None, type=FILE, help="Folder for the bulk; default: next to the manifest.")
@click.option("--again", is_flag=True, help="Make the data of --out anew, from the source's files as they are now.")
def command(out: Path, text: str | None, bulk: Path | None, again: bool) -> None:
    """Prepare a dataset and write its manifest.

    Example: scalestudy prepare --spec '{"source": "digits"}' --out /tmp/digits/manifest.json
    """
    from scalestudy.data.manifest import is_in_place, read_manifest
    from scalestudy.data.prepare.datasets import described_by, prepare
    from scalestudy.host_lock import beside_measured_runs
    from scalestudy.spec.config import read_site

    if again:
        manifest = read_manifest(out)
        data, place = described_by(manifest, out), Path(manifest.bulk)
        bulk = place.parent if place.is_absolute() and not is_in_place(manifest) else None
    else:
        data = _described(out.parent / "dataset.json", text)
    with beside_measured_runs():
        click.echo(_said(prepare(data, out, bulk, read_site(), again=again)))


def _described(file: Path, text: str | None) -> AnyData:
    """The dataset that `text`, or else the file, describes; raises UserError where it is wrong."""
    from scalestudy.spec.base import parse
    from scalestudy.spec.check_run import size_problems
    from scalestudy.spec.machine import Machine
    from scalestudy.spec.run import RunSpec
    from scalestudy.spec.sizes import in_bytes
    from scalestudy.spec.yamlfile import dotted

    where = "--spec" if text is not None else str(file)
    try:
        data = json.loads(text) if text is not None else read_json(file)
    except (ValueError, RecursionError) as error:
        raise UserError(f"cannot be read as JSON: {error}", where, EXAMPLE) from None
    run, problems = parse(RunSpec, {"data": data})
    problems = problems if run is None else list(size_problems(run))
    raise_all([UserError(each.what, f"{where}: {dotted(each.path)}", each.remedy) for each in problems])
    assert run is not None
    return in_bytes(run, Machine()).data


def _said(manifest: Manifest) -> str:
    if manifest.status == "skipped":
        return manifest.reason
    size = f"{manifest.train.bytes / 2**20:,.1f} MiB" if manifest.bulk else "made in memory"
    shards = f" in {manifest.train.shards:,} shards" if manifest.train.shards else ""
    left_out = f"; {manifest.left_out:,} that cannot be used are left out" if manifest.left_out else ""
    return f"{manifest.train.samples:,} training samples, {size}{shards}{left_out}"
