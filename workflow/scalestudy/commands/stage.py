"""`scalestudy stage`: copies of prepared data on this node's own disk."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

import click

from scalestudy.errors import UserError

if TYPE_CHECKING:
    from scalestudy.data.stage import Share


@click.command(name="stage")
@click.argument("manifest", type=click.Path(path_type=Path, exists=True, dir_okay=False))
@click.option("--from", "origin", default=None, help="A folder or an address that holds the same files.")
@click.option("--share", default=None, help="K/N: what node K of N needs, counted from 0. By default everything.")
@click.option("--streams", default=4, show_default=True, type=click.IntRange(1, 1024), help="Threads that copy.")
@click.option("--mib-per-s", default=None, type=click.FloatRange(0, min_open=True), help="Limit of the copying rate.")
def command(manifest: Path, origin: str | None, share: str | None, streams: int, mib_per_s: float | None) -> None:
    """Copy prepared data to this node's own disk, ahead of the runs that will use the copies.

    A run with `stage` does this automatically. After an interruption, files that are whole are not copied again.

    Example: scalestudy stage results/data/digits-0123456789ab/manifest.json
    """
    from scalestudy.data import stage
    from scalestudy.spec.config import read_site

    options = stage.StageOptions(origin=origin, streams=streams, mib_per_s=mib_per_s)
    copies = stage.staged(manifest, options, _share(share), read_site())
    copied = copies.copied_bytes / 2**20
    rate = f", {copied / copies.seconds:,.0f} MiB/s" if copied else ""
    size = f"{copies.files:,} files, {copies.bytes / 2**20:,.1f} MiB"
    click.echo(f"{size}; {copied:,.1f} MiB copied in {copies.seconds:.2f} s{rate}")
    copies.release()
    click.echo(copies.manifest.parent)


def _share(text: str | None) -> Share:
    from scalestudy.data import stage

    if text is None:
        return stage.Share()
    match = re.fullmatch(r"(\d{1,6})/(\d{1,6})", text)
    if match is None or not int(match[1]) < int(match[2]):
        raise UserError(f"`{text}` is not a share", "--share", "write K/N with K from 0 to N - 1, for example 0/4")
    return stage.Share(int(match[1]), int(match[2]))
