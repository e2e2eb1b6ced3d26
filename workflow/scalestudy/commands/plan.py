"""`scalestudy plan`: the plan in the form that was asked for."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

from scalestudy.cluster import show
from scalestudy.cluster.plan import Plan, over_budget
from scalestudy.commands.train import setting
from scalestudy.dag.dryrun import plan_of
from scalestudy.errors import UserError
from scalestudy.files import write_text

OVER_BUDGET = 3


@dataclass(frozen=True)
class Options:
    """What the command line asks for."""

    config: Sequence[str]
    changes: Sequence[str]
    json_file: str | None
    csv_file: str | None
    gantt: str | None
    budget: float | None
    actual: bool


def show_plan(targets: Sequence[str], profile: str, options: Options) -> int:
    """Print or write the plan; returns the exit status."""
    config = [*options.config, *(target for target in targets if "=" in target)]
    targets = [target for target in targets if "=" not in target]
    if options.json_file == "-" and options.csv_file == "-":
        raise UserError("standard output can hold one thing", "plan", "write one of --json and --csv to a file")
    if options.actual:
        return _show_actual(targets, profile, config, options.json_file)
    plan, _ = plan_of(targets, profile, config, settings_of(options.changes))
    _write(plan, options)
    if options.budget is not None and over_budget(plan, options.budget):
        asked = plan.hours(plan.total.gpu[0])
        click.echo(show.by_hours(plan), err=True)
        click.echo(f"over budget: {asked:,} GPU hours asked for, {options.budget:,g} allowed", err=True)
        return OVER_BUDGET
    return 0


def _show_actual(targets: Sequence[str], profile: str, config: Sequence[str], json_file: str | None) -> int:
    from scalestudy.cluster.actual import show_actual

    _, project = plan_of(targets, profile, config)
    text, data = show_actual(targets, project.chosen, project.config.machine)
    if json_file != "-":
        click.echo(text)
    if json_file is not None:
        _put(json_file, json.dumps(data, indent=1) + "\n")
    return 0


def _write(plan: Plan, options: Options) -> None:
    alone = "-" in (options.json_file, options.csv_file)
    if not alone:
        click.echo(show.table(plan))
    if options.json_file is not None:
        from scalestudy.cluster.submit import submit_lines

        _put(options.json_file, json.dumps(show.as_json(plan, submit_lines(plan)), indent=1, ensure_ascii=False) + "\n")
    if options.csv_file is not None:
        _put(options.csv_file, show.as_csv(plan))
    if options.gantt is not None:
        from scalestudy.cluster.gantt import draw

        draw(plan, Path(options.gantt))
        click.echo(options.gantt, err=alone)


def _put(file: str, text: str) -> None:
    if file == "-":
        sys.stdout.write(text)
    else:
        write_text(file, text)


def settings_of(changes: Sequence[str]) -> Mapping[str, Any]:
    """`("repeats=5", "train.epochs=10")` by dotted key, values read as YAML."""
    return dict(setting(change, "--set") for change in changes)
