"""`scalestudy train`: the run of a rule."""

from __future__ import annotations

from pathlib import Path

import click

from scalestudy.commands.options import in_warm_parent


@click.command(name="train")
@click.option(
    "--out",
    required=True,
    type=click.Path(path_type=Path),
    help="result.json to write; spec.json is in the same folder.",
)
def command(out: Path) -> None:
    """Make the run described by spec.json and write result.json.

    Example: scalestudy train --out results/local/runs/RUN/result.json
    """
    in_warm_parent("train", "--out", str(out))
    from scalestudy.commands.one_run import train_from_spec

    train_from_spec(out)
