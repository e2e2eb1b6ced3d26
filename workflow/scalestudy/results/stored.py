"""Results as they are read back. A file's content is checked first; a result that is not what was measured is invalid."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from scalestudy.errors import UserError, visible
from scalestudy.files import canonical_json, read_json, read_sealed, write_sealed
from scalestudy.results.shape import wrong_parts
from scalestudy.spec.base import parse, shown_safely
from scalestudy.spec.columns import METRICS, SHARES, columns_of
from scalestudy.spec.ids import is_named
from scalestudy.spec.layout import STATE_FILE, machine_and_campaign, result_file
from scalestudy.spec.run import RunSpec
from scalestudy.spec.study import Run

REMEDY = "measure it again: scalestudy forget"


def write_result(file: Path, result: dict[str, Any]) -> None:
    """Write result.json, whole or not at all, with a digest of its content."""
    write_sealed(file, result)


def read_result(machine: str, run: Run) -> dict[str, Any] | None:
    """The result of a run of a study, None where there is none.

    Where the file is damaged, was changed, or is that of another run or of another question, the result is `invalid`,
    has no metrics, and its reason names the difference.
    """
    return checked_result(result_file(machine, run.id), run.id, run.spec, machine)


def checked_result(
    file: Path, run: str, spec: RunSpec | None = None, machine: str | None = None
) -> dict[str, Any] | None:
    """As `read_result`, by the file; without `spec` or `machine` it is not checked what was measured, or where."""
    try:
        result = read_sealed(file, REMEDY)
    except UserError as error:
        if not file.exists():
            return None
        return _not_measured(run, spec, error.what)
    wrong = next(differences(result, run, spec, machine), None)
    return result if wrong is None else _not_measured(run, spec, wrong)


def state_of(folder: Path) -> dict[str, str]:
    """The texts that a run says of itself in state.json, beside its result; empty where there is none, or it is damaged."""
    try:
        found = read_json(folder / STATE_FILE)
    except (OSError, UserError):
        return {}
    if not isinstance(found, dict):
        return {}
    return {key: visible(value) for key, value in found.items() if isinstance(value, str)}


def status_of(machine: str, run: str) -> str:
    """The status of a run's result, by its id alone; `no result` where it has none."""
    found = checked_result(result_file(machine, run), run, machine=machine)
    return "no result" if found is None else str(found["status"])


def _not_measured(run: str, spec: RunSpec | None, difference: str) -> dict[str, Any]:
    reason = f"not what was measured: {difference} ({REMEDY} {run})"
    plain = {} if spec is None else spec.plain()
    return {"run": run, "status": "invalid", "reason": reason, "spec": plain, "metrics": {}, "kinds": {}}


def differences(result: Mapping[str, Any], run: str, spec: RunSpec | None, machine: str | None) -> Iterator[str]:
    """How a result differs from one that this run would write, the plainest difference first."""
    if result.get("run") != run:
        yield f"it is the result of {shown_safely(result.get('run'))}"
    if machine is not None and not _is_of(machine, result.get("machine")):
        yield f"it was measured on machine {shown_safely(result['machine'])} and lies below results/{machine}"
    for wrong in wrong_parts(result):
        yield wrong
        return  # what follows takes every part for what it should be
    if spec is None and not is_named(run, result.get("spec") or {}):
        yield f"its `spec` is not that of the run {shown_safely(run)}"
    if spec is not None and (difference := _other_question(result.get("spec"), spec)):
        yield difference
    for name, value in (result.get("metrics") or {}).items():
        if value is not None and not _possible(name, value):
            yield f"its {name} is {shown_safely(value)}"


def _is_of(machine: str, measured: Any) -> bool:
    """Whether a result is one of this machine; its campaign may be another, which `scalestudy import --as` gives it.

    A result from before the machine was recorded says nothing.
    """
    if measured is None:
        return True
    return isinstance(measured, str) and machine_and_campaign(measured)[0] == machine_and_campaign(machine)[0]


def _possible(name: str, value: Any) -> bool:
    """Whether a metric can have that value: a finite number, not below 0, and for shares not above 1."""
    if name not in METRICS:
        return True  # of another version, and shown nowhere
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        return False
    return value >= 0 and not (name in SHARES and value > 1)


def _other_question(measured: Any, spec: RunSpec) -> str:
    """How the spec that was measured differs from the one that is asked for; empty where it does not."""
    asked = spec.plain()
    if _same(measured, asked):
        return ""
    found, problems = parse(RunSpec, measured if isinstance(measured, dict) else {})
    if found is None:
        return f"its spec is not one: {problems[0].what}" if problems else "its spec is not one"
    if _same(found.plain(), asked):
        return ""
    there, here = columns_of(found), columns_of(spec)
    keys = [key for key in {**there, **here} if there.get(key) != here.get(key)]
    return "it was measured with " + ", ".join(
        f"{key} {shown_safely(there.get(key)).strip('`')} where this run has {shown_safely(here.get(key)).strip('`')}"
        for key in keys
    )


def _same(measured: Any, asked: dict[str, Any]) -> bool:
    try:
        return canonical_json(measured) == canonical_json(asked)
    except (TypeError, ValueError):
        return False
