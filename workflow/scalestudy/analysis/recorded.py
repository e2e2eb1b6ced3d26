"""All results of a folder, whatever study they were made for."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from scalestudy.errors import UserError, nearest
from scalestudy.results.stored import checked_result
from scalestudy.spec.base import parse
from scalestudy.spec.columns import VOLATILE
from scalestudy.spec.ids import configuration_id
from scalestudy.spec.layout import RESULTS
from scalestudy.spec.run import RunSpec


@dataclass(frozen=True)
class Recorded:
    """One run with a result, valid or not."""

    run: str
    configuration: str
    """The same for all repeats, on all machines, and for all versions of the trainer."""
    spec: RunSpec
    result: Mapping[str, Any]

    @property
    def is_valid(self) -> bool:
        """Whether every check held."""
        return bool(self.result["status"] == "valid")

    def metric(self, column: str) -> float | None:
        """A measured number; None where there is none."""
        value = (self.result.get("metrics") or {}).get(column)
        return None if value is None else float(value)

    def instrument(self) -> dict[str, str]:
        """The part of its instrument that can change a number; without the device where compute is emulated."""
        left_out = (*VOLATILE, "device_name") if self.spec.accelerator is not None else VOLATILE
        facts: Mapping[str, Any] = self.result.get("instrument") or {}
        return {key: str(value) for key, value in facts.items() if key not in left_out}


@dataclass(frozen=True)
class Records:
    """All results of one folder; `unreadable` are those that are none, each with the reason."""

    folder: Path
    name: str
    runs: tuple[Recorded, ...]
    unreadable: tuple[tuple[str, str], ...]

    def by_configuration(self) -> dict[str, dict[int, Recorded]]:
        """The runs of each configuration by repeat; of several, as before and after a change of code, the last that began."""
        configurations: dict[str, dict[int, Recorded]] = {}
        for run in sorted(self.runs, key=lambda run: str(run.result.get("started") or "")):
            configurations.setdefault(run.configuration, {})[run.spec.repeat] = run
        return configurations


def read_records(name: str) -> Records:
    """Every result of a folder, a name in results/ or a path, checked as when a study reads it.

    Raises UserError where there is none.
    """
    folder = RESULTS / name if "/" not in name and (RESULTS / name).is_dir() else Path(name)
    if not (folder / "runs").is_dir():
        names = sorted(path.parent.name for path in RESULTS.glob("*/runs"))
        remedy = "give a name in results/, such as local or local+night_2, or a path to such a folder"
        raise UserError(f"there are no runs in `{name}`", str(folder), nearest(name, names) if names else remedy)
    runs, unreadable = [], []
    machine = folder.name if folder.parent == RESULTS else None  # a folder elsewhere may have any name
    for file in sorted(folder.glob("runs/*/result.json")):
        run = file.parent.name
        result = checked_result(file, run, machine=machine)
        spec = None if result is None or not result.get("spec") else parse(RunSpec, result["spec"])[0]
        if result is not None and spec is not None:
            runs.append(Recorded(run, configuration_id(spec), spec, result))
        elif result is not None:
            unreadable.append((run, str(result.get("reason") or "its spec is not one of this version")))
    if not runs:
        raise UserError("no run has a result", str(folder), "measure first: snakemake --profile profiles/local")
    named = folder.resolve() if folder.name in ("", "..") else folder  # a link has its own name, not that of its target
    return Records(folder, named.name, tuple(runs), tuple(unreadable))
