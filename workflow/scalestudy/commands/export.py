"""`scalestudy export`: hand a study on, with everything that made it."""

from __future__ import annotations

import hashlib
import json
import os
import zipfile
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING

import click

from scalestudy.commands.options import FILE, MACHINE, SCALE, one_study
from scalestudy.errors import UserError
from scalestudy.files import atomic_path
from scalestudy.spec.layout import RESULTS, machine_and_campaign, reference_file, result_file, run_folder

if TYPE_CHECKING:
    from scalestudy.report.crate import PackedStudy
    from scalestudy.spec.study import Study

FILES = ("spec.json", "result.json", "steps.parquet", "system.parquet", "exchange.parquet")
"""Of a run; checkpoints, weights and logs stay."""
CODE = ("workflow", "envs", "profiles/default", "profiles/local")
TOP = ("Snakefile", "pyproject.toml", "LICENSE", "CITATION.cff", "README.md", "Makefile")
NO_CODE = ("__pycache__", "built")
SUMS = "manifest-sha256.txt"
"""Digest and path of every other file, as sha256sum writes and checks them."""


@click.command(name="export")
@click.argument("study")
@MACHINE
@SCALE
@click.option("--out", type=FILE, default=None, help="Archive to write; default STUDY-MACHINE-SCALE.crate.zip.")
@click.option("--author", default=None, help="Name of the person who measured; unset: none.")
@click.option(
    "--license",
    "license_",
    default="Apache-2.0",
    show_default=True,
    help="License of the results, as an SPDX identifier.",
)
def export(study: str, machine: str, scale: str, out: Path | None, author: str | None, license_: str) -> None:
    """Pack a study as a Workflow Run RO-Crate: specifications, results, claims, figures, code, and the software that made them.

    It contains no data, checkpoints or logs. Zenodo and WorkflowHub accept it unchanged; `scalestudy import` reads it back.

    Example: scalestudy export gpu_scaling --author "Ada Lovelace" --license CC-BY-4.0
    """
    file = out or Path(f"{study}-{machine}-{scale}.crate.zip")
    count = export_study(one_study(machine, scale, study), machine, file, author, license_)
    size = f"{count} runs, {file.stat().st_size / 2**20:.1f} MiB"
    click.echo(f"{file}: {size}. In another clone: scalestudy import {file.name}")


def export_study(study: Study, machine: str, out: Path, author: str | None = None, license_: str = "Apache-2.0") -> int:
    """Write the crate; returns the number of runs with a result. Paths in it are those below the project."""
    from scalestudy.report.crate import METADATA, crate_of, folders_of

    packed = packed_of(study, machine, author, license_)
    paths = [*packed.code, *packed.outputs, *(path for run in packed.runs for path in run.files)]
    config = f"studies: [{study.name}]\nscale: {study.scale}\nmachine: {machine_and_campaign(machine)[0]}\n"
    described = json.dumps(crate_of(packed), indent=1, ensure_ascii=False) + "\n"
    contents = {METADATA: described.encode(), "config/config.yaml": config.encode()}
    contents |= {path: Path(path).read_bytes() for path in paths}
    sums = "".join(f"{hashlib.sha256(data).hexdigest()}  {name}\n" for name, data in contents.items())
    with atomic_path(out) as temporary, zipfile.ZipFile(temporary, "w", zipfile.ZIP_DEFLATED) as archive:
        for folder in folders_of(packed.code):
            archive.mkdir(folder.rstrip("/"))
        for name, data in {**contents, SUMS: sums.encode()}.items():
            archive.writestr(name, data)
    return len(packed.runs)


def packed_of(study: Study, machine: str, author: str | None, license_: str) -> PackedStudy:
    """Content of a study's crate. Raises UserError where no run has a result, or this is no clone."""
    from scalestudy.report.crate import DoneRun, PackedStudy
    from scalestudy.results.stored import read_result
    from scalestudy.spec.config import read_machine

    runs = []
    for run in study.runs:
        result = read_result(machine, run) if result_file(machine, run.id).exists() else None
        there = tuple(str(file) for name in FILES if (file := run_folder(machine, run.id) / name).exists())
        if (
            result is not None
            and result.get("metrics") is not None
            and any(path.endswith("spec.json") for path in there)
        ):
            runs.append(DoneRun(run.id, result, there))
    if not runs:
        what = f"no run of `{study.name}` has a result on `{machine}`"
        raise UserError(what, study.name, f"make it first: snakemake {study.name}")
    workflow = next((path for path in ("workflow/Snakefile", "Snakefile") if Path(path).is_file()), None)
    if workflow is None:
        raise UserError("there is no Snakefile here", str(Path.cwd()), "run the command at the top of the project")
    name, _ = machine_and_campaign(machine)
    files = [f"config/studies/{study.name}.yaml", f"config/machines/{name}.yaml", *_used(study)]
    code = tuple(dict.fromkeys([*files, *_code()]))
    outputs = tuple(_outputs(study, machine))
    paths = [*code, *outputs, *(path for run in runs for path in run.files)]
    return PackedStudy(
        study, machine, read_machine(machine).description, workflow, files[0], files[1], tuple(runs), outputs, code,
        {path: Path(path).stat().st_size for path in paths},
        license_, author, datetime.now().astimezone(),
    )  # fmt: skip


def _used(study: Study) -> Iterator[str]:
    """Claims of documents, published numbers of its figures and claims, and the user's own code."""
    from scalestudy.claims.check import documents_about
    from scalestudy.claims.model import Published

    yield from map(str, documents_about(study.name))
    names = {figure.reference for figure in study.figures if figure.reference} | {"step_times"}
    names |= {name for claim in study.claims if isinstance(claim, Published) for name in claim.reference}
    yield from (str(file) for name in sorted(names) if (file := reference_file(name)).is_file())
    yield from (str(file) for file in sorted(Path("config/extensions").glob("*.py")))


def _code() -> Iterator[str]:
    """The workflow as it is here. Of profiles only those that name no site."""
    yield from (name for name in TOP if Path(name).is_file())
    for folder in CODE:
        for file in _files(folder):
            if not any(part in NO_CODE or part.endswith(".egg-info") for part in file.parts):
                yield str(file)


def _files(folder: str) -> list[Path]:
    """All files below a folder, also where a link leads: in workflow/ the executor's package is one."""
    return sorted(Path(place) / name for place, _, names in os.walk(folder, followlinks=True) for name in names)


def _outputs(study: Study, machine: str) -> Iterator[str]:
    """Products of the results, as far as they are there."""
    place = RESULTS / machine / study.scale
    for pattern in (
        f"figures/{study.name}/*",
        f"tables/{study.name}/*",
        f"studies/{study.name}/*",
        f"claims/{study.name}.*",
    ):
        yield from (str(file) for file in sorted(place.glob(pattern)) if file.is_file() and file.suffix != ".log")
