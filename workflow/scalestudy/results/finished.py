"""A second copy of a run's result, until the driver that asked for it has ended.

Snakemake deletes the output of a command that fails, and of one that it is about to start. A run whose shell or command is
killed after its result was written, or that an orphan finishes while the next driver begins, would be made again: it has
its result back from the copy.
"""

from __future__ import annotations

import sys
from collections.abc import Container
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from scalestudy.errors import UserError
from scalestudy.files import read_sealed, write_sealed
from scalestudy.spec.layout import FINISHED, RESULTS, finished_file, machine_of, result_file

if TYPE_CHECKING:
    from scalestudy.spec.run import RunSpec


def keep(out: Path, result: dict[str, Any]) -> None:
    """Write the copy of a result that is about to be written to `out`; a run by hand has none.

    Without one the result still counts: only a kill in the next moments would have the run made again.
    """
    if (file := finished_file(out)) is not None:
        try:
            file.parent.mkdir(exist_ok=True)
            write_sealed(file, result)
        except OSError as error:
            print(f"scalestudy: warning: {file} is not written: {error}", file=sys.stderr, flush=True)


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
        result = read_sealed(file, "")
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


def release_all(but: Container[Path] = ()) -> None:
    """Delete each copy whose result is there and not in `but`."""
    for out in kept():
        if out.exists() and out not in but:
            release(out)


def kept() -> list[Path]:
    """The results of which there is a copy."""
    return [result_file(file.parent.parent.name, file.stem) for file in sorted(RESULTS.glob(f"*/{FINISHED}/*.json"))]
