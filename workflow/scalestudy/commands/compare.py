"""`scalestudy compare`: whether one folder of results is slower than another, as a gate."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import click

from scalestudy.commands.options import FILE
from scalestudy.errors import UserError


class Margin(click.ParamType):
    """`3%` or `0.03`, as a share."""

    name = "PERCENT"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """The share, at least 0 and below 1."""
        text = str(value).strip()
        try:
            share = float(text.removesuffix("%")) / (100 if text.endswith("%") else 1)
        except ValueError:
            share = -1.0
        if not 0 <= share < 1:
            self.fail(f"`{text}` is not a margin: give a fraction of the speed, such as 3% or 0.03", param, ctx)
        return share


@click.command(name="compare")
@click.argument("before", nargs=-1)
@click.argument("after")
@click.option("--nodes", is_flag=True, help="Each node of one folder against its others.")
@click.option(
    "--margin",
    type=Margin(),
    default="3%",
    show_default=True,
    help="Relative change that still counts as `same`; equal one-rank runs vary by about this much on a quiet machine.",
)
@click.option("--study", default=None, help="Only the configurations of this study.")
@click.option("--column", default="throughput_samples_per_s", show_default=True, help="A column of rates or times.")
@click.option(
    "--across",
    default="",
    metavar="KEY[,KEY]",
    help="What may differ because it is the question: hardware, software, code, or one key such as torch.",
)
@click.option("--out", type=FILE, default=None, help="Folder to write into; default results/comparisons/BEFORE_AFTER.")
def compare(
    before: tuple[str, ...],
    after: str,
    nodes: bool,
    margin: float,
    study: str | None,
    column: str,
    across: str,
    out: Path | None,
) -> None:
    """Compare folders of results: machines, campaigns or versions. Is AFTER slower than BEFORE?

    Each is a name in results/ or a path; with --nodes, one folder of runs that name their nodes. A gate needs three campaigns
    before, because nights differ; of fewer, the changes are shown and nothing is decided. Writes a page, a CSV table, a
    Markdown summary and JUnit XML. Exit status: 1 where a configuration is slower, else 3 where one is undecided, else 0.

    \b
    Example: scalestudy compare local local+night_2 local+night_3 local+candidate --across code
    Example: scalestudy compare ../release/results/local local --across code --margin 5%
    Example: scalestudy compare my_cluster --nodes --study acceptance --margin 5%
    """
    from scalestudy.analysis.compare import compare, compare_nodes
    from scalestudy.analysis.comparison import exit_status
    from scalestudy.analysis.recorded import read_records
    from scalestudy.figures.configurations import configuration_names
    from scalestudy.report.comparison import headline, shown_lines, write_comparison
    from scalestudy.spec.layout import comparison_folder

    if nodes == bool(before):
        raise UserError("give two folders or more, or one with --nodes", "compare", "see scalestudy compare --help")
    old, new = [read_records(name) for name in before], read_records(after)
    names = configuration_names(new.name, study)
    only = None if study is None else names
    if nodes:
        comparison = compare_nodes(new, margin, column, only)
    else:
        asked = [word.strip() for word in across.split(",") if word.strip()]
        comparison = compare(old, new, margin, asked, column, only)
    ends = (new.name, "nodes") if nodes else (old[0].name, new.name)
    click.echo(headline(comparison))
    for shown in shown_lines(comparison, names):
        if shown.row.change.verdict != "same":
            why = f" ({shown.why})" if shown.why else ""
            click.echo(
                f"  {shown.row.change.verdict:9} {shown.name.study}: {shown.name.text}: speed {shown.change}{why}"
            )
    for file in write_comparison(comparison, names, out or comparison_folder(*ends)):
        click.echo(f"  {file}")
    sys.exit(exit_status(comparison.verdicts))
