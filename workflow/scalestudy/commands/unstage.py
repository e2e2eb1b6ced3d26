"""`scalestudy unstage`: remove copies of data from this node."""

from __future__ import annotations

import click


@click.command(name="unstage")
def command() -> None:
    """Remove the copies on this node that no run is using.

    Example: scalestudy unstage
    """
    from scalestudy.data.stage import cache
    from scalestudy.spec.config import read_site

    root = cache.scratch_folder(read_site())
    removed, used, foreign = cache.clean(root)
    lines = [f"removed {name}" for name in removed] + [f"in use  {name}" for name in used]
    lines += [f"left    {root / name}: it does not hold copies made by scalestudy" for name in foreign]
    click.echo("\n".join(lines) if lines else f"there are no copies in {root}")
