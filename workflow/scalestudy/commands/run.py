"""`scalestudy run`: the Snakemake command that studies need, said and given."""

from __future__ import annotations

import json
import os
import shlex
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import click

from scalestudy.commands.options import BUDGET, CONFIG, PROFILE, SCALE_IF_NAMED, SET


@click.command(name="run")
@click.argument("targets", nargs=-1)
@PROFILE
@CONFIG
@SCALE_IF_NAMED
@SET
@BUDGET
@click.option("-n", "--dry-run", is_flag=True, help="Only the plan, and a count of jobs per rule.")
def command(
    targets: tuple[str, ...],
    profile: str,
    config: tuple[str, ...],
    scale: str | None,
    changes: tuple[str, ...],
    budget: float | None,
    dry_run: bool,
) -> None:
    """Run studies: print the Snakemake command, then execute it. Takes what `scalestudy plan` takes.

    \b
    Example: scalestudy run gpu_scaling --profile profiles/slurm --scale paper --budget 500
    Example: scalestudy run gpu_scaling --set repeats=5 -n
    """
    config = (*config, *(target for target in targets if "=" in target))
    targets = tuple(target for target in targets if "=" not in target)
    keys = configuration(config, scale, changes, budget)
    words = snakemake_command(targets, profile, keys)
    click.echo(shlex.join(words))
    if dry_run:
        click.echo(short_plan(targets, profile, keys))
        return
    from scalestudy.dag.plan import known_profile

    known_profile(profile)
    sys.stdout.flush()
    beside = Path(sys.executable).with_name("snakemake")
    # In the place of this process, so that signals reach Snakemake.
    os.execvp(str(beside) if beside.exists() else words[0], words)


def configuration(config: Sequence[str], scale: str | None, changes: Sequence[str], budget: float | None) -> list[str]:
    """The words of one `--config`; UserError for a change that is none."""
    from scalestudy.spec.config import changes_of

    changes_of(list(changes))
    found = list(config)
    if scale is not None:
        found.append(f"scale={scale}")
    if budget is not None:
        found.append(f"budget_gpu_hours={budget:g}")
    if changes:
        found.append(f"set={json.dumps(list(changes))}")
    return found


def snakemake_command(targets: Sequence[str], profile: str, config: Sequence[str]) -> list[str]:
    """The command line. `--config` stands once: of several, Snakemake keeps the last."""
    return ["snakemake", *targets, "--profile", profile, *(["--config", *config] if config else [])]


def short_plan(targets: Sequence[str], profile: str, config: Sequence[str]) -> str:
    """What would run, and how many jobs of each rule."""
    from scalestudy.cluster.plan import show
    from scalestudy.dag.plan import plan_of

    plan, _ = plan_of(targets, profile, config)
    counts = Counter(job.seen.rule for job in plan.jobs)
    jobs = ", ".join(f"{count:,} {rule}" for rule, count in counts.most_common())
    return f"{show.table(plan)}\nJobs         {jobs or 'none'}"
