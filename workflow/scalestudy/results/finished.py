"""A second copy of a run's result, until the command that made it has ended.

Snakemake deletes the output of a command that fails. A run whose command is killed after its result was written would be
made again: it has its result back from the copy.
"""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from scalestudy.errors import UserError
from scalestudy.files import read_sealed, write_sealed
from scalestudy.spec.layout import FINISHED, RESULTS, finished_file, machine_of, result_file

if TYPE_CHECKING:
    from scalestudy.spec.run import RunSpec


def keep(out: Path, result: dict[str, Any]) -> None:
    """Write the copy of a result that is about to be written to `out`; a run by hand has none."""
    if (file := finished_file(out)) is not None:
        file.parent.mkdir(exist_ok=True)
        write_sealed(file, result)


def restored(out: Path, spec: RunSpec) -> dict[str, Any] | None:
    """The result of which there is a copy, written to `out` again; None where there is none that is right."""
    from scalestudy.results.stored import differences  # here: who only releases starts in an instant

    if (file := finished_file(out)) is None:
        return None
    try:
        result = read_sealed(file, "", needs_digest=True)
    except UserError:
        return None
    if any(differences(result, out.parent.name, spec, machine_of(out))):
        return None
    write_sealed(out, result)
    return result


def release(out: Path) -> None:
    """Delete the copy: the command has ended, and what is done with its result from now on is meant.

    One that cannot be deleted does not fail the run: the next driver tries again.
    """
    if (file := finished_file(out)) is not None:
        with suppress(OSError):
            file.unlink()


def release_all() -> None:
    """Delete each copy whose result is there: its command was killed, and its result kept."""
    for file in RESULTS.glob(f"*/{FINISHED}/*.json"):
        if (out := result_file(file.parent.parent.name, file.stem)).exists():
            release(out)
