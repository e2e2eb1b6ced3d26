"""A second copy of a run's result, until the driver that asked for it has ended.

Snakemake deletes the output of a command that fails, and of one that it is about to start. A run whose shell or command is
killed after its result was written, or that an orphan finishes while the next driver begins, would be made again: it has
its result back from the copy.
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


def known(out: Path, spec: RunSpec) -> dict[str, Any] | None:
    """The result of a run that was finished before; None where there is none that is right, and for a run by hand.

    One that lies at `out` was written after Snakemake had made room for it; else the copy is written there again.
    """
    if (copy := finished_file(out)) is None:
        return None
    if (result := _right(out, out, spec)) is not None:
        return result
    if (result := _right(copy, out, spec)) is not None:
        write_sealed(out, result)
    return result


def _right(file: Path, out: Path, spec: RunSpec) -> dict[str, Any] | None:
    """The content of a file, where it is the result that `out` is to have."""
    from scalestudy.results.stored import differences  # here: who only releases starts in an instant

    try:
        result = read_sealed(file, "", needs_digest=True)
    except UserError:
        return None
    return None if any(differences(result, out.parent.name, spec, machine_of(out))) else result


def release(out: Path) -> None:
    """Delete the copy: its driver has ended, and what is done with the result from now on is meant.

    One that cannot be deleted does not fail the run: the next driver tries again.
    """
    if (file := finished_file(out)) is not None:
        with suppress(OSError):
            file.unlink()


def release_all() -> None:
    """Delete each copy whose result is there: when a driver ends, and when one begins, since one before was killed."""
    for file in RESULTS.glob(f"*/{FINISHED}/*.json"):
        if (out := result_file(file.parent.parent.name, file.stem)).exists():
            release(out)
