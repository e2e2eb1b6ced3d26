"""`python -m tests.faults`: the steps of the pipeline meet faults, and what was promised is checked.

    python -m tests.faults [--steps prepare,train --faults sigkill,disk_full] [--out build/faults.json]
    python -m tests.faults kills --count 20
    python -m tests.faults page docs/measured/faults.json

A file that is there keeps the cells of other steps and faults. As root everything runs in a mount namespace of its own,
in which small disks are mounted; without root those cases are left out, and said to be.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.faults.catalogue import ALL
from tests.faults.engine import BROKE, NOT_HERE, NOT_PROVOKED, Cell, Matrix, machine
from tests.faults.faults import Stopped
from tests.faults.steps import NAMES, steps_of
from tests.faults.submit import SUBMIT, submit_world
from tests.faults.world import PREFIX, NotHere, World, make_world


def main() -> int:
    """What the command line says; status 1 where a promise was broken, or a fault not met."""
    words = sys.argv[1:]
    if words[:1] == ["page"]:
        from tests.faults.page import write_page

        return write_page(words[1:])
    _own_mounts()
    if words[:1] == ["kills"]:
        from tests.faults import kills

        given = kills.options(words[1:])
        with _world(base=given.base, whole=True) as world:
            return kills.main(world, given)
    return matrix(words)


def matrix(words: Sequence[str]) -> int:
    """The chosen cases, a line each."""
    parser = argparse.ArgumentParser(prog="python -m tests.faults", description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)  # fmt: skip
    parser.add_argument("--steps", type=_names(NAMES), default=NAMES, help=", ".join(NAMES))
    parser.add_argument("--faults", type=_names(names := tuple(each.name for each in ALL)), default=names,
                        help=", ".join(names))  # fmt: skip
    parser.add_argument("--cases", type=_pairs, default=None, help="Pairs STEP:FAULT in place of all of both.")
    parser.add_argument("--out", type=Path, default=Path("build/faults.json"))
    parser.add_argument("--minutes", type=float, default=None, help="Begin no case after that.")
    parser.add_argument("--stop-s", type=float, default=None, help="Seconds of SIGSTOP; 60 where unset.")
    parser.add_argument("--keep", action="store_true", help="Keep the folders of all cases.")
    parser.add_argument(
        "--base", type=Path, default=None, help="A project whose studies are made, as --keep leaves one."
    )
    given = parser.parse_args(words)
    for fault in ALL:
        if given.stop_s is not None and isinstance(fault, Stopped):
            fault.stop_s = given.stop_s
    cases = given.cases or [(step, fault) for step in given.steps for fault in given.faults]
    end = None if given.minutes is None else time.monotonic() + 60 * given.minutes
    print(f"{time.strftime('%Y-%m-%d')}, {machine()}, {os.cpu_count()} cores, {_user()}", flush=True)
    well = True
    with _world(given.keep, given.base, whole=given.keep) as world:
        for cell in _cells(world, cases, given.keep):
            well &= cell.status not in (BROKE, NOT_PROVOKED)
            _save(given.out, cell)
            print(cell.line, flush=True)
            if end is not None and time.monotonic() > end:
                print("no time left: the other cases were not run")
                break
    return 0 if well else 1


def _cells(world: World, cases: Sequence[tuple[str, str]], keep: bool) -> Iterator[Cell]:
    """What is seen in each case, as it ends."""
    faults = {fault.name: fault for fault in ALL}
    here = Matrix(world, keep)
    steps = steps_of(world)
    for step, fault in cases:
        if step != SUBMIT.name:
            yield here.run(steps[step], faults[fault])
    submits = [faults[fault] for step, fault in cases if step == SUBMIT.name]
    if not submits:
        return
    try:
        with submit_world(world) as box:
            there = Matrix(box, keep)
            for each in submits:
                yield there.run(SUBMIT, each)
    except NotHere as why:
        for each in submits:
            yield Cell(SUBMIT.name, each.name, NOT_HERE, str(why))


def _save(out: Path, cell: Cell) -> None:
    """Add a cell to those that are kept, in the place of an older one."""
    known: dict[str, Any] = json.loads(out.read_text()) if out.exists() else {"cells": []}
    cells = [other for other in known["cells"] if (other["step"], other["fault"]) != (cell.step, cell.fault)]
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(
        json.dumps({"machine": machine(), "cells": [*cells, cell.plain()]}, indent=1, ensure_ascii=False) + "\n"
    )


@contextmanager
def _world(keep: bool = False, base: Path | None = None, whole: bool = False) -> Iterator[World]:
    folder = Path(tempfile.mkdtemp(prefix=PREFIX))
    folder.chmod(0o755)
    try:
        yield make_world(folder, base, whole=whole)
    finally:
        if keep:
            print(f"kept: {folder}")
        else:
            shutil.rmtree(folder, ignore_errors=True)


def _own_mounts() -> None:
    """Go on in a mount namespace of this process's own, where this user may make one."""
    if os.geteuid() == 0 and "TESTS_FAULTS_MOUNTS" not in os.environ:
        again = [sys.executable, "-m", "tests.faults", *sys.argv[1:]]
        words = ["unshare", "--mount", "--propagation", "private", *again]
        os.execvpe(words[0], words, {**os.environ, "TESTS_FAULTS_MOUNTS": "own"})


def _user() -> str:
    return "as root" if os.geteuid() == 0 else "not as root"


def _names(known: Sequence[str]) -> Any:
    def names(text: str) -> list[str]:
        found = text.split(",")
        if wrong := [name for name in found if name not in known]:
            raise argparse.ArgumentTypeError(f"there is no {', '.join(wrong)}; there are {', '.join(known)}")
        return found

    return names


def _pairs(text: str) -> list[tuple[str, str]]:
    pairs = [(step, fault) for step, _, fault in (pair.partition(":") for pair in text.split(","))]
    _names(NAMES)(",".join(step for step, _ in pairs))
    _names(tuple(each.name for each in ALL))(",".join(fault for _, fault in pairs))
    return pairs


if __name__ == "__main__":
    sys.exit(main())
