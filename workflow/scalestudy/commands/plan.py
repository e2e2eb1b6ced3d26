"""`scalestudy plan`: what would run now, and what it would take."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date
from typing import TYPE_CHECKING, Any

import click

from scalestudy.commands.options import CONFIG, PROFILE
from scalestudy.errors import UserError, nearest
from scalestudy.files import write_text

if TYPE_CHECKING:
    from scalestudy.cluster.plan.planned import Plan

OVER_BUDGET = 3


@dataclass(frozen=True)
class PlanOptions:
    """The options of the command line."""

    config: Sequence[str]
    changes: Sequence[str]
    json_file: str | None
    csv_file: str | None
    by: str
    details: bool
    proposal: str | None
    budget: float | None
    actual: bool


@click.command(name="plan")
@click.argument("targets", nargs=-1)
@PROFILE
@CONFIG
@click.option("--set", "changes", multiple=True, metavar="KEY=VALUE", help="Set a key in every study.")
@click.option("--json", "json_file", default=None, metavar="FILE|-", help="The whole plan as JSON; -: standard output.")
@click.option("--csv", "csv_file", default=None, metavar="FILE|-", help="The table as CSV.")
@click.option(
    "--by", default="", metavar="strategy,ranks", help="One line per study and these keys instead of one per study."
)
@click.option("--details", is_flag=True, help="Further columns, makespan, chains, storage, energy, assumptions.")
@click.option("--proposal", default=None, metavar="FILE.md", help="The page of an application for computing time.")
@click.option("--budget", type=float, default=None, metavar="H", help="GPU hours; more to request ends with status 3.")
@click.option("--actual", is_flag=True, help="Compare what was planned with what finished runs have used.")
def command(targets: tuple[str, ...], profile: str, **options: Any) -> None:
    """Plan what would run now: jobs, GPU hours, storage, makespan, before anything is submitted.

    \b
    Example: scalestudy plan --profile profiles/pbs
    Example: scalestudy plan gpu_scaling --profile profiles/slurm --set repeats=5 --json -
    """
    sys.exit(show_plan(targets, profile, PlanOptions(**options)))


def show_plan(targets: Sequence[str], profile: str, options: PlanOptions) -> int:
    """Print or write the plan; returns the exit status."""
    from scalestudy.cluster.plan import show
    from scalestudy.cluster.plan.planned import over_budget
    from scalestudy.commands.run import configuration
    from scalestudy.dag.plan import plan_of

    config = [*options.config, *(target for target in targets if "=" in target)]
    targets = [target for target in targets if "=" not in target]
    if options.json_file == "-" and options.csv_file == "-":
        raise UserError("only one of them can go to standard output", "plan", "write one of --json and --csv to a file")
    if options.actual:
        return _show_actual(targets, profile, config, options.json_file)
    plan, project = plan_of(targets, profile, configuration(config, None, options.changes, None))
    _write(plan, options)
    if options.proposal is not None:
        from scalestudy.cluster.plan.proposal import proposal

        write_text(options.proposal, proposal(plan, project.chosen, date.today()))
    if options.budget is not None and over_budget(plan, options.budget):
        needed = show.digits(plan.to_request(plan.submitted, "gpu"))
        click.echo(show.table(plan, show.GROUPS), err=True)
        click.echo(f"over budget: {needed} GPU hours to request, {options.budget:,g} allowed", err=True)
        return OVER_BUDGET
    return 0


def _show_actual(targets: Sequence[str], profile: str, config: Sequence[str], json_file: str | None) -> int:
    from scalestudy.cluster.ledger.actual import show_actual
    from scalestudy.dag.plan import plan_of

    _, project = plan_of(targets, profile, config)
    text, data = show_actual(targets, project.chosen, project.config.folder)
    if json_file != "-":
        click.echo(text)
    if json_file is not None:
        _put(json_file, json.dumps(data, indent=1) + "\n")
    return 0


def _write(plan: Plan, options: PlanOptions) -> None:
    from scalestudy.cluster.plan import show

    if "-" not in (options.json_file, options.csv_file):
        click.echo(show.table(plan, groups_of(options.by), options.details))
    if options.json_file is not None:
        from scalestudy.cluster.submit import submit_lines

        data = show.as_json(plan, submit_lines(plan))
        _put(options.json_file, json.dumps(data, indent=1, ensure_ascii=False) + "\n")
    if options.csv_file is not None:
        _put(options.csv_file, show.as_csv(plan))


def groups_of(by: str) -> list[str]:
    """`strategy,ranks` as a list. UserError for another word."""
    from scalestudy.cluster.plan.show import GROUPS

    found = [name.strip() for name in by.split(",") if name.strip()]
    for name in found:
        if name not in GROUPS:
            raise UserError(f"a plan has no groups by `{name}`", "--by", nearest(name, GROUPS))
    return found


def _put(file: str, text: str) -> None:
    if file == "-":
        sys.stdout.write(text)
    else:
        write_text(file, text)
