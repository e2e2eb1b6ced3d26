"""The verb that hands results on: `export`."""

from __future__ import annotations

import os
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import click

from scalestudy.commands.options import FILE, MACHINE, SCALE, studies_of
from scalestudy.errors import UserError
from scalestudy.files import atomic_path
from scalestudy.spec.layout import (
    RESULTS,
    config_of,
    machine_and_campaign,
    machine_file,
    reference_file,
    result_file,
    run_folder,
)

if TYPE_CHECKING:
    from scalestudy.spec.study import Study

FILES = ("spec.json", "result.json", "steps.parquet", "system.parquet", "timeline.parquet")
"""Of a run; checkpoints, weights and logs stay."""
CODE = ("workflow", "envs", "profiles/default", "profiles/local")
TOP = ("Snakefile", "pyproject.toml", "LICENSE", "CITATION.cff", "README.md", "Makefile")
NO_CODE = ("__pycache__", "built", "site.yaml")


@click.command(name="export")
@click.argument("study")
@MACHINE
@SCALE
@click.option("--out", type=FILE, default=None, help="Archive to write; default STUDY-MACHINE-SCALE.zip.")
def export(study: str, machine: str, scale: str, out: Path | None) -> None:
    """Pack a study: specifications, results, claims, figures, code, and the software that made them.

    It contains no data, checkpoints or logs. Unpacked, it is a project of its own: its figures can be drawn there, and `compare`
    reads its results by their path.

    Example: scalestudy export gpu_scaling
    """
    from scalestudy.spec.config import LOCAL_SITE

    file = out or Path(f"{study}-{machine}-{scale}.zip")
    (chosen_study,) = studies_of(machine, scale, [study])
    runs = [run.id for run in (*chosen_study.runs, *chosen_study.explained) if result_file(machine, run.id).exists()]
    if not runs:
        is_here = (machine, scale) == ("local", "mini")
        profile = "profiles/local" if is_here else f"PROFILE --config {config_of(machine, scale)}"
        remedy = f"make it first: snakemake {study} --profile {profile}"
        raise UserError(f"no run of `{study}` has a result on `{machine}`", study, remedy)
    folder = RESULTS / machine / scale
    patterns = [f"studies/{study}/*", f"claims/{study}.*"]
    patterns += [f"figures/{study}/{figure.file_name}.*" for figure in chosen_study.figures]
    patterns += [f"tables/{study}/{table.name}.*" for table in chosen_study.tables]
    products = [path for pattern in patterns for path in sorted(folder.glob(pattern))]
    outputs = [str(path) for path in products if path.is_file() and path.suffix != ".log"]
    of_runs = [str(path) for run in runs for name in FILES if (path := run_folder(machine, run) / name).exists()]
    name, campaign = machine_and_campaign(machine)
    config = f"studies: [{study}]\nscale: {scale}\nmachine: {name}\n" + (f"campaign: {campaign}\n" if campaign else "")
    with atomic_path(file) as temporary, zipfile.ZipFile(temporary, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("config/config.yaml", config)
        archive.writestr(str(LOCAL_SITE), "launcher: local\n")  # the folders that this one names stay here
        for name in dict.fromkeys((*_code(chosen_study, machine), *outputs, *of_runs)):
            archive.writestr(name, Path(name).read_bytes())
    size = f"{len(runs)} runs, {file.stat().st_size / 2**20:.1f} MiB"
    click.echo(f"{file}: {size}")


def _code(study: Study, machine: str) -> Iterator[str]:
    """Yield the files of an export: the study, its machine, what else it reads, and the workflow; some of them twice.

    A study reads claims of documents, published numbers and the user's own code; of profiles, those that name a site stay.
    """
    from scalestudy.claims.check import documents_about
    from scalestudy.claims.model import Published

    yield f"config/studies/{study.name}.yaml"
    yield machine_file(machine)
    yield from map(str, documents_about(study.name))
    names = {figure.reference for figure in study.figures if figure.reference} | {"step_times"}
    names |= {name for claim in study.claims if isinstance(claim, Published) for name in claim.reference}
    yield from (str(file) for name in sorted(names) if (file := reference_file(name)).is_file())
    yield from (str(file) for file in sorted(Path("config/extensions").glob("*.py")))
    programs = [run.spec.program for run in study.runs if run.spec.program is not None]
    yield from (file for program in programs for file in program.files if Path(file).is_file())
    yield from (name for name in TOP if Path(name).is_file())
    for folder in CODE:
        # Also where a link leads: in workflow/ the executor's package is one.
        files = (Path(place, name) for place, _, names in os.walk(folder, followlinks=True) for name in names)
        for file in sorted(files):
            if not any(part in NO_CODE or part.endswith(".egg-info") for part in file.parts):
                yield str(file)
