"""`scalestudy run`: the Snakemake command that studies need, said and given."""

from __future__ import annotations

import json
import os
import shlex
import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import click

from scalestudy.commands.options import BUDGET, CONFIG, PROFILE, SCALE_IF_NAMED, SET
from scalestudy.errors import UserError

ON_CPU = ("second_rank", "noise", "loader_workers", "small_files")
"""What `make run` runs on a machine without an accelerator, at scale `mini`: what it measures of this machine itself."""
ON_GPU = ("batch_and_precision", "loader_workers")
"""What it runs on one with an accelerator, at scale `node`: meant for ten minutes at most, which no GPU has shown yet."""


@dataclass(frozen=True)
class MachineChoice:
    """Scale, machine and studies that fit this machine, with the reason in a sentence."""

    scale: str
    machine: str
    studies: tuple[str, ...]
    why: str

    @property
    def config(self) -> tuple[str, ...]:
        """For Snakemake's `--config`."""
        return f"studies={','.join(self.studies)}", f"scale={self.scale}", f"machine={self.machine}"


def chosen(scale: str | None = None) -> MachineChoice:
    """What `make run` runs: at scale `node` where there is an accelerator, else at `mini`; `scale` is the user's wish.

    Raises UserError where there is an accelerator that runs cannot use, or that torch or its driver cannot: the CPU is not
    taken in its place unasked.
    """
    from scalestudy.hardware import accelerators
    from scalestudy.nvml import unusual_modes
    from scalestudy.spec.auto_machine import AUTO, auto_machine

    if scale == "mini":
        return MachineChoice(
            "mini", "local", ON_CPU, "scale mini, as asked: this CPU, and accelerators that are emulated"
        )
    found = accelerators()
    if found.devices and not found.count:
        what = f"the accelerator here is one of type `{found.kind}`, which runs cannot use"
        raise UserError(what, remedy="`make run SCALE=mini` measures the CPU")
    if found.unusable:
        what = f"this machine has an accelerator, but it cannot be used: {found.unusable}"
        raise UserError(
            what, remedy="fix that first (`scalestudy doctor` says more); `make run SCALE=mini` measures the CPU"
        )
    if found.count:
        names = " and ".join(dict.fromkeys(device.name or "a part of a GPU" for device in found.devices))
        name = auto_machine()
        modes = "".join(f"; {said}" for said in unusual_modes([device.bus_id for device in found.devices]))
        why = f"{found.count} x {names} is here{modes}: scale node, on machine {name}; `make run SCALE=mini` measures the CPU"
        return MachineChoice("node", AUTO, ON_GPU, why)
    if scale == "node":
        raise UserError(
            f"scale `node` needs an accelerator, and none is here: {found.source}", remedy="choose SCALE=mini"
        )
    return MachineChoice("mini", "local", ON_CPU, f"no accelerator is here ({found.source}): scale mini, on this CPU")


@click.command(name="run")
@click.argument("targets", nargs=-1)
@PROFILE
@CONFIG
@SCALE_IF_NAMED
@SET
@BUDGET
@click.option("--here", is_flag=True, help="What fits this machine: with an accelerator scale node, else mini.")
@click.option("-n", "--dry-run", is_flag=True, help="Only the plan, and a count of jobs per rule.")
def command(
    targets: tuple[str, ...],
    profile: str,
    config: tuple[str, ...],
    scale: str | None,
    changes: tuple[str, ...],
    budget: float | None,
    here: bool,
    dry_run: bool,
) -> None:
    """Run studies: print the Snakemake command, then execute it. Takes what `scalestudy plan` takes.

    \b
    Example: scalestudy run gpu_scaling --profile profiles/slurm --scale paper --budget 500
    Example: scalestudy run gpu_scaling --set repeats=5 -n
    Example: scalestudy run --here -n
    """
    if here:
        choice = chosen(scale)
        click.echo(f"{choice.why}; studies {', '.join(choice.studies)}")
        targets, config, scale = targets or ("all",), (*config, *choice.config), None
        if choice.scale == "mini":
            os.environ["CUDA_VISIBLE_DEVICES"] = "-1"
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
