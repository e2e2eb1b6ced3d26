"""`scalestudy here`: what this machine is, and what `make run` runs on it."""

from __future__ import annotations

import shlex
from dataclasses import dataclass

import click

from scalestudy.errors import UserError

ON_CPU = ("worker_items", "loader_workers", "gpu_scaling")
"""What `make run` runs on a machine without an accelerator, at scale `mini`."""
ON_GPU = ("batch_and_precision", "loader_workers")
"""What it runs on one with an accelerator, at scale `node`: meant for ten minutes at most, which no GPU has shown yet."""


@dataclass(frozen=True)
class MachineChoice:
    """What is run here: scale, machine, studies, and why, in a sentence."""

    scale: str
    machine: str
    studies: tuple[str, ...]
    why: str

    @property
    def words(self) -> str:
        """For Snakemake's `--config`."""
        return shlex.join([f"studies={','.join(self.studies)}", f"scale={self.scale}", f"machine={self.machine}"])


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


@click.command(name="here")
@click.option(
    "--scale",
    type=click.Choice(["mini", "node"]),
    default=None,
    help="Use this scale instead of the one that fits this machine.",
)
@click.option(
    "--words", is_flag=True, help="Print only what Snakemake's --config takes; the sentence goes to standard error."
)
def command(scale: str | None, words: bool) -> None:
    """Print what `make run` runs on this machine, and why.

    Where there is an accelerator, its machine file is written.

    Example: scalestudy here
    """
    choice = chosen(scale)
    click.echo(f"make run: {choice.why}; studies {', '.join(choice.studies)}", err=words)
    if words:
        click.echo(choice.words)
