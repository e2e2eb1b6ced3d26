"""`scalestudy trend`: a machine's campaigns side by side."""

from __future__ import annotations

from pathlib import Path

import click

from scalestudy.commands.options import FILE


@click.command(name="trend")
@click.option("--machine", default="local", show_default=True, help="Name of a file in config/machines/.")
@click.option("--study", default=None, help="Only this study.")
@click.option("--column", default="throughput_samples_per_s", show_default=True, help="A column of rates or times.")
@click.option(
    "--order", type=click.Choice(["time", "name"]), default="time", show_default=True, help="Of the campaigns."
)
@click.option("--out", type=FILE, default=None, help="Folder to write into; default results/MACHINE/trend.")
def command(machine: str, study: str | None, column: str, order: str, out: Path | None) -> None:
    """Draw the speed of each configuration over the campaigns of a machine, and say where it changed.

    A figure and a table per study. A change point needs four campaigns; two are compared by `scalestudy compare`.

    Example: scalestudy trend --study gpu_scaling
    """
    from scalestudy.analysis.trend import campaigns_of, trend_of
    from scalestudy.figures.configurations import configuration_names
    from scalestudy.report.trend import by_study, sentence, write_trend
    from scalestudy.spec.layout import trend_folder

    campaigns = campaigns_of(machine, order)
    names = configuration_names(machine, study)
    found = trend_of(machine, campaigns, column, None if study is None else names)
    click.echo(f"{len(campaigns)} campaigns: {', '.join(campaign.name for campaign in campaigns)}")
    for name, series in ((name, each) for part in by_study(found, names).values() for name, each in part):
        click.echo(f"  {name.study}: {name.text}: {sentence(found, series)}")
    for file in write_trend(found, names, out or trend_folder(machine)):
        click.echo(f"  {file}")
