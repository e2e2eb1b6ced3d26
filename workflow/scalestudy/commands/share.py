"""The verb that hands results on: `export`."""

from __future__ import annotations

import hashlib
import json
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
    machine_and_campaign,
    reference_file,
    result_file,
    run_folder,
)

if TYPE_CHECKING:
    from scalestudy.spec.study import Study

FILES = ("spec.json", "result.json", "steps.parquet", "system.parquet", "exchange.parquet", "timeline.parquet")
"""Of a run; checkpoints, weights and logs stay."""
CODE = ("workflow", "envs", "profiles/default", "profiles/local")
TOP = ("Snakefile", "pyproject.toml", "LICENSE", "CITATION.cff", "README.md", "Makefile")
NO_CODE = ("__pycache__", "built")
PRODUCTS = ("figures/{}/*", "tables/{}/*", "studies/{}/*", "claims/{}.*")
SUMS = "manifest-sha256.txt"
"""Digest and path of every other file, as sha256sum writes and checks them."""


@click.command(name="export")
@click.argument("study")
@MACHINE
@SCALE
@click.option("--out", type=FILE, default=None, help="Archive to write; default STUDY-MACHINE-SCALE.crate.zip.")
@click.option("--author", default=None, help="Name of the person who measured; unset: none.")
@click.option(
    "--license", "spdx", default="Apache-2.0", show_default=True, help="License of the results, as an SPDX identifier."
)
def export(study: str, machine: str, scale: str, out: Path | None, author: str | None, spdx: str) -> None:
    """Pack a study as a Workflow Run RO-Crate: specifications, results, claims, figures, code, and the software that made them.

    It contains no data, checkpoints or logs. Zenodo and WorkflowHub accept it unchanged. Unpacked, it is a project of its own:
    its figures can be drawn there, and `compare` and `results` read its results by their path.

    Example: scalestudy export gpu_scaling --author "Ada Lovelace" --license CC-BY-4.0
    """
    from scalestudy.report.crate import crate_of, folders_of
    from scalestudy.results.stored import read_result

    file = out or Path(f"{study}-{machine}-{scale}.crate.zip")
    (found,) = studies_of(machine, scale, [study])
    runs = {}
    for run in (*found.runs, *found.explained):
        result = read_result(machine, run) if result_file(machine, run.id).exists() else None
        there = [str(path) for name in FILES if (path := run_folder(machine, run.id) / name).exists()]
        if result is not None and result.get("metrics") is not None and there and there[0].endswith("spec.json"):
            runs[run.id] = result, there
    if not runs:
        raise UserError(
            f"no run of `{study}` has a result on `{machine}`",
            study,
            f"make it first: snakemake {study} --profile profiles/local",
        )
    code = list(dict.fromkeys(_code(found, machine)))
    folder = RESULTS / machine / scale
    products = (path for pattern in PRODUCTS for path in sorted(folder.glob(pattern.format(study))))
    outputs = [str(path) for path in products if path.is_file() and path.suffix != ".log"]
    crate = json.dumps(crate_of(found, machine, runs, code, outputs, author, spdx), indent=1, ensure_ascii=False)
    config = f"studies: [{study}]\nscale: {scale}\nmachine: {machine_and_campaign(machine)[0]}\n"
    contents = {"ro-crate-metadata.json": f"{crate}\n".encode(), "config/config.yaml": config.encode()}
    for name in (*code, *outputs, *(path for _, there in runs.values() for path in there)):
        contents[name] = Path(name).read_bytes()
    sums = "".join(f"{hashlib.sha256(data).hexdigest()}  {name}\n" for name, data in contents.items())
    with atomic_path(file) as temporary, zipfile.ZipFile(temporary, "w", zipfile.ZIP_DEFLATED) as archive:
        for name in folders_of(code):
            archive.mkdir(name.rstrip("/"))
        for name, data in {**contents, SUMS: sums.encode()}.items():
            archive.writestr(name, data)
    size = f"{len(runs)} runs, {file.stat().st_size / 2**20:.1f} MiB"
    click.echo(f"{file}: {size}")


def _code(study: Study, machine: str) -> Iterator[str]:
    """Main workflow, study file and machine file; what else the study reads; the workflow as it is here.

    That is claims of documents, published numbers, the user's own code, and of profiles only those that name no site.
    """
    from scalestudy.claims.check import documents_about
    from scalestudy.claims.model import Published

    yield "workflow/Snakefile" if Path("workflow/Snakefile").is_file() else "Snakefile"
    yield f"config/studies/{study.name}.yaml"
    yield f"config/machines/{machine_and_campaign(machine)[0]}.yaml"
    yield from map(str, documents_about(study.name))
    names = {figure.reference for figure in study.figures if figure.reference} | {"step_times"}
    names |= {name for claim in study.claims if isinstance(claim, Published) for name in claim.reference}
    yield from (str(file) for name in sorted(names) if (file := reference_file(name)).is_file())
    yield from (str(file) for file in sorted(Path("config/extensions").glob("*.py")))
    programs = [run.spec.program for run in study.runs if run.spec.program is not None]
    yield from dict.fromkeys(file for program in programs for file in program.files if Path(file).is_file())
    yield from (name for name in TOP if Path(name).is_file())
    for folder in CODE:
        # Also where a link leads: in workflow/ the executor's package is one.
        files = (Path(place, name) for place, _, names in os.walk(folder, followlinks=True) for name in names)
        for file in sorted(files):
            if not any(part in NO_CODE or part.endswith(".egg-info") for part in file.parts):
                yield str(file)
