"""`scalestudy largest-batch`: the largest batch per rank that fits in memory."""

from __future__ import annotations

import click


@click.command(name="largest-batch")
@click.argument("settings", nargs=-1, metavar="[KEY=VALUE]...")
@click.option("--memory-mib", type=click.FloatRange(min=1), help="Limit; unset: all of a GPU, 90 % of free memory.")
def command(settings: tuple[str, ...], memory_mib: float | None) -> None:
    """Find the largest batch per rank that fits, by training with it: doubling, then bisection.

    \b
    Example: scalestudy largest-batch model=resnet50 data="{source: synthetic, classes: 1000}" --memory-mib 4096
    """
    from scalestudy.commands.one_run import find_largest_batch

    find_largest_batch(settings, memory_mib)
