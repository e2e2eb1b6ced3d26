"""Verbs that hand results on: `export` and `import`."""

from __future__ import annotations

import hashlib
import json
import lzma
import os
import re
import struct
import tempfile
import zipfile
import zlib
from collections.abc import Iterator, Mapping
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING

import click

from scalestudy.commands.options import FILE, MACHINE, SCALE, studies_of
from scalestudy.errors import UserError
from scalestudy.files import atomic_path, read_json, read_sealed, visible_texts
from scalestudy.spec.layout import (
    RESULTS,
    folder_name,
    machine_and_campaign,
    reference_file,
    result_file,
    run_folder,
)

if TYPE_CHECKING:
    from scalestudy.spec.study import Study

FILES = ("spec.json", "result.json", "steps.parquet", "system.parquet", "exchange.parquet")
"""Of a run; checkpoints, weights and logs stay."""
CODE = ("workflow", "envs", "profiles/default", "profiles/local")
TOP = ("Snakefile", "pyproject.toml", "LICENSE", "CITATION.cff", "README.md", "Makefile")
NO_CODE = ("__pycache__", "built")
PRODUCTS = ("figures/{}/*", "tables/{}/*", "studies/{}/*", "claims/{}.*")
SUMS = "manifest-sha256.txt"
"""Digest and path of every other file, as sha256sum writes and checks them."""
RUN_FILE = re.compile(r"results/([a-z][a-z0-9_]*)(?:\+[a-z][a-z0-9_]*)?/runs/([A-Za-z0-9_.]+-[0-9a-f]{12})/([a-z.]+)")
FOREIGN = "is it an archive of scalestudy export?"
LARGEST, LARGEST_TOTAL, MOST_FILES = 2**29, 2**31, 10**6
"""Bytes of one file and of all results together, unpacked, and number of files, from which on an archive is refused."""
REMEDY = "ask for the archive again"
DAMAGED = (zipfile.BadZipFile, zlib.error, lzma.LZMAError, struct.error, NotImplementedError, RuntimeError, EOFError, OSError,
           ValueError)  # fmt: skip
"""What Python's zipfile raises on damaged archives."""


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

    It contains no data, checkpoints or logs. Zenodo and WorkflowHub accept it unchanged; `scalestudy import` reads it back.

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
        raise UserError(f"no run of `{study}` has a result on `{machine}`", study, f"make it first: snakemake {study}")
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
    click.echo(f"{file}: {size}. In another clone: scalestudy import {file.name}")


def _code(study: Study, machine: str) -> Iterator[str]:
    """Main workflow, study file and machine file; what else the study reads; the workflow as it is here.

    That is claims of documents, published numbers, the user's own code, and of profiles only those that name no site.
    """
    from scalestudy.claims.check import documents_about
    from scalestudy.claims.model import Published

    workflow = next((path for path in ("workflow/Snakefile", "Snakefile") if Path(path).is_file()), None)
    if workflow is None:
        raise UserError("there is no Snakefile here", str(Path.cwd()), "run the command at the top of the project")
    yield workflow
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


@click.command(name="import")
@click.argument("file", type=FILE)
@click.option("--as", "campaign", default=None, metavar="NAME", help="Keep them in results/MACHINE+NAME/.")
def import_(file: Path, campaign: str | None) -> None:
    """Import the results from an archive that `scalestudy export` wrote; no code, studies or figures.

    Paths, digests and results are checked before anything is written. Results of a machine that has runs here already
    need a name of their own. They can then be listed, compared, and drawn by their study.

    Example: scalestudy import gpu_scaling-abci-mini.crate.zip --as colleague
    """
    from scalestudy.spec.config import NAME

    if campaign is not None and not re.fullmatch(NAME, campaign):
        remedy = "use lower-case letters, digits and `_`, starting with a letter"
        raise UserError(f"`{campaign}` cannot be a name", "--as", remedy)
    found = read_archive(file)
    places = {machine: folder_name(machine, campaign) for machine, _ in sorted(found)}
    for name in places.values():
        if any((RESULTS / name).glob("runs/*/result.json")):
            what = f"`{name}` has runs of its own here, and results of others are not mixed with them"
            raise UserError(what, str(RESULTS / name), "give another name: --as NAME")
    for (machine, run), files in found.items():
        # The result comes last: what is there without it is no run.
        for name in sorted(files, key=lambda name: name == "result.json"):
            with atomic_path(run_folder(places[machine], run) / name) as temporary:
                temporary.write_bytes(files[name])
    for machine, name in places.items():
        count = sum(there == machine for there, _ in found)
        click.echo(f"{RESULTS / name}: {count} runs. List them: scalestudy results --machine {name}")


def read_archive(file: Path) -> dict[tuple[str, str], dict[str, bytes]]:
    """The files of each run in an archive, by machine and run, all checked. Raises UserError at the first that is wrong."""
    if file.exists() and not file.is_file():
        raise UserError("is not a file", str(file), "name the archive that scalestudy export wrote")
    try:
        with zipfile.ZipFile(file) as archive:
            return _read(archive, str(file))
    except FileNotFoundError:
        raise UserError("no such file", str(file)) from None
    except DAMAGED as error:
        raise UserError(f"cannot be read as an archive: {error}", str(file), REMEDY) from None


def _read(archive: zipfile.ZipFile, place: str) -> dict[tuple[str, str], dict[str, bytes]]:
    """The files of runs; UserError where the archive's list of files is not one that scalestudy export writes."""
    entries = archive.infolist()
    if len(entries) > MOST_FILES:
        raise UserError(f"holds {len(entries):,} files", place, FOREIGN)
    names = [entry.filename for entry in entries if not entry.filename.endswith("/")]
    if len(set(names)) < len(names):
        raise UserError("holds a path twice", place, REMEDY)
    for name in names:
        path = PurePosixPath(name)
        if not path.name or path.is_absolute() or ".." in path.parts or "\\" in name:
            raise UserError(f"holds a path that leaves the project: {name!r}", place, REMEDY)
    if SUMS not in names:
        raise UserError(f"has no {SUMS}: it was not written by scalestudy export", place, REMEDY)
    matches = ((entry, RUN_FILE.fullmatch(entry.filename)) for entry in entries)
    runs = [(entry, match) for entry, match in matches if match is not None and match[3] in FILES]
    sizes = [(entry.file_size, entry.filename) for entry in (archive.getinfo(SUMS), *(entry for entry, _ in runs))]
    largest, name = max(sizes)
    if largest > LARGEST:
        raise UserError(f"{name} has {largest:,} bytes", place, FOREIGN)
    if (total := sum(size for size, _ in sizes)) > LARGEST_TOTAL:
        raise UserError(f"its results have {total:,} bytes", place, FOREIGN)
    lines = (line.partition("  ") for line in archive.read(SUMS).decode().splitlines())
    sums = {name: digest for digest, _, name in lines}
    found: dict[tuple[str, str], dict[str, bytes]] = {}
    for entry, match in runs:
        if match[1] == "data":
            raise UserError(f"{entry.filename}: `data` is not a machine", place, FOREIGN)
        data = archive.read(entry)
        if sums.get(entry.filename) != hashlib.sha256(data).hexdigest():
            raise UserError(f"{entry.filename} is not what was packed: its digest differs", place, REMEDY)
        found.setdefault((match[1], match[2]), {})[match[3]] = data
    if not found:
        raise UserError("holds no run", place, FOREIGN)
    for (machine, run), files in found.items():
        _check_run(machine, run, files, place)
    return found


def _check_run(machine: str, run: str, files: Mapping[str, bytes], place: str) -> None:
    """Raise UserError where a run's files are not those of that run: the checks with which results are read back."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    from scalestudy.results.shape import differences, step_time_of
    from scalestudy.spec.base import parse
    from scalestudy.spec.ids import is_named
    from scalestudy.spec.run import RunSpec

    if not {"spec.json", "result.json"} <= files.keys():
        raise UserError(f"run {run} lacks its spec.json or result.json", place, REMEDY)
    with tempfile.TemporaryDirectory() as folder:
        for name, data in files.items():
            file = Path(folder, name)
            file.write_bytes(data)
            try:
                if file.suffix == ".parquet":
                    pq.ParquetFile(file).close()
            except (pa.ArrowException, OSError, ValueError) as error:
                raise UserError(f"{run}/{name} is not a Parquet file: {error}", place, REMEDY) from None
        what = f"spec.json of {run}"
        try:
            plain = read_json(Path(folder, "spec.json"))
            what = f"the result of {run}"
            result = read_sealed(Path(folder, "result.json"), REMEDY)
        except UserError as error:
            raise UserError(f"{what} {error.what}", place, REMEDY) from None
    if visible_texts([plain, result]) != [plain, result]:
        raise UserError(f"a text of {run} contains characters that terminals and pages act on", place, REMEDY)
    spec, problems = parse(RunSpec, plain)
    if spec is None:
        what = f"the specification of {run} is not one of this version: {problems[0].what if problems else 'no map'}"
        raise UserError(what, place, "use the version that wrote it")
    if not is_named(run, plain, step_time_of(result)):
        raise UserError(f"the specification of {run} is not that of its id", place, REMEDY)
    if wrong := next(differences(result, run, spec, machine), None):
        raise UserError(f"the result of {run} is not what was measured: {wrong}", place, REMEDY)
