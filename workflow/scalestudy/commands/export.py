"""`scalestudy export`: hand a study to somebody else."""

from __future__ import annotations

import io
import tarfile
from pathlib import Path
from typing import TYPE_CHECKING

import click

from scalestudy.commands.options import FILE, MACHINE, SCALE, one_study
from scalestudy.errors import UserError
from scalestudy.files import atomic_path
from scalestudy.spec.layout import result_file, run_folder

if TYPE_CHECKING:
    from scalestudy.spec.study import Study

FILES = ("spec.json", "result.json", "steps.parquet", "system.parquet")


@click.command(name="export")
@click.argument("study")
@MACHINE
@SCALE
@click.option("--out", type=FILE, default=None, help="Archive to write; default STUDY-MACHINE-SCALE.tar.gz.")
def command(study: str, machine: str, scale: str, out: Path | None) -> None:
    """Pack a study's results (no data, no checkpoints); `tar xzf` in another clone unpacks them.

    Example: scalestudy export gpu_scaling
    """
    file = out or Path(f"{study}-{machine}-{scale}.tar.gz")
    count = export_study(one_study(machine, scale, study), machine, scale, file)
    size = f"{count} runs, {file.stat().st_size / 2**20:.1f} MiB"
    click.echo(f"{file}: {size}. Unpack it at the top of a clone: tar xzf {file.name}")


def export_study(study: Study, machine: str, scale: str, out: Path) -> int:
    """Pack what the figures of a study are drawn from; returns the number of runs with a result.

    The archive holds paths below `results/`, so that it is unpacked at the top of a clone. The study file is
    included for reading: a clone that has another one of that name keeps its own.
    """
    done = [run for run in study.runs if result_file(machine, run.id).exists()]
    if not done:
        raise UserError(
            f"no run of `{study.name}` has a result on `{machine}`",
            study.name,
            "make it first: snakemake " + study.name,
        )
    with atomic_path(out) as temporary, tarfile.open(temporary, "w:gz") as archive:
        for run in done:
            for name in FILES:
                file = run_folder(machine, run.id) / name
                if file.exists():
                    archive.add(file, arcname=str(file))
        text = Path("config/studies", f"{study.name}.yaml").read_bytes()
        member = tarfile.TarInfo(f"results/{machine}/{scale}/studies/{study.name}/study.yaml")
        member.size = len(text)
        archive.addfile(member, io.BytesIO(text))
    return len(done)
