"""From a study file to its runs at one scale, each validated, in the order in which they are measured."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from scalestudy.claims.check import Written, claim_problems, claims_at, raise_claim_problems, written_claims
from scalestudy.errors import Problem, UserError, raise_all
from scalestudy.files import canonical_json
from scalestudy.spec.answer import answer_problems
from scalestudy.spec.axes import Combination, Combinations, applied, at_scale, combinations, merged, override, place_of
from scalestudy.spec.base import KeyPath, parse, shown
from scalestudy.spec.capacity import InfeasibleRuns, capacity_problems
from scalestudy.spec.check_figures import figure_problems
from scalestudy.spec.check_run import run_problems
from scalestudy.spec.check_study import (
    MAX_ERRORS,
    check_keys,
    check_size,
    duplicate_problems,
    empty_sections,
    repeat_problems,
)
from scalestudy.spec.columns import columns_of
from scalestudy.spec.ids import configuration_id, dataset_id, own_code_problems, run_id
from scalestudy.spec.layout import EXTENSIONS
from scalestudy.spec.machine import Machine
from scalestudy.spec.machine_axes import MachineCapacity, NoHosts
from scalestudy.spec.matching import matches
from scalestudy.spec.run import RunSpec, one_or_more
from scalestudy.spec.sizes import in_bytes, where_in_bytes
from scalestudy.spec.study import Run, Study
from scalestudy.spec.study_file import StudySpec
from scalestudy.spec.yamlfile import YamlDocument


@dataclass(frozen=True)
class Configuration:
    """One combination as a validated run at repeat 0."""

    run: RunSpec
    entry: Combination


@dataclass(frozen=True)
class _Expansion:
    """Inputs of every step of one expansion."""

    document: YamlDocument
    scale: str
    base: Mapping[str, Any]
    found: Combinations
    capacity: MachineCapacity
    extensions: Path
    changes: Mapping[str, Any]
    infeasible: InfeasibleRuns

    def error(self, problem: Problem, entry: Combination) -> UserError:
        """A problem of a run, with the place of its key and the combination that has it."""
        where = place_of(self.document, self.scale, problem.path, self.changes, entry.place, entry.point)
        settings = f" (with {entry})" if entry.point else ""
        return UserError(f"{problem.what}{settings}", where, problem.remedy)


def expand(
    document: YamlDocument,
    spec: StudySpec,
    name: str,
    scale: str,
    machine: Machine,
    machine_name: str = "local",
    extensions: Path = EXTENSIONS,
    changes: Mapping[str, Any] | None = None,
) -> Study:
    """All runs of a study at one scale, validated; raises UserError with all problems and their lines.

    Runs that exceed the machine are left out and listed in `left_out`; a study of which nothing remains is wrong.
    `changes` replace values of keys; then duplicate runs count once.
    """
    base = merged(merged({}, spec.base), spec.at(scale).base)
    device = base.get("device")
    capacity = MachineCapacity(machine, machine_name, device if isinstance(device, str) else None)
    found = combinations(document, spec, scale, capacity)
    found = override(found, changes) if changes else found
    check_keys(document, found, base, scale, changes or {})
    check_size(document, found)
    expansion = _Expansion(document, scale, base, found, capacity, extensions, changes or {}, InfeasibleRuns())
    configurations = _configurations(expansion)
    if not configurations:
        raise _nothing_left(expansion)
    rounds = _rounds(configurations, found.repeats, extensions)
    if changes:
        configurations = _distinct(configurations, rounds[0])
        rounds = _rounds(configurations, found.repeats, extensions)
    raise_all([expansion.error(*each) for each in duplicate_problems(rounds[0], [c.entry for c in configurations])])
    # With other values for keys, the runs of a claim need not be there.
    written = [] if changes else written_claims(document, name, scale)
    study = Study(
        name=name,
        title=spec.title or name.replace("_", " "),
        question=spec.question,
        source=spec.source,
        scale=scale,
        tags=spec.tags,
        repeats=found.repeats,
        runs=tuple(itertools.chain.from_iterable(rounds)),
        varied=tuple(dict.fromkeys(setting.key for each in configurations for setting in each.entry.point)),
        labels=_labels(expansion, configurations),
        figures=tuple(where_in_bytes(figure, machine) for figure in at_scale(spec, scale, "figures")[0]),
        tables=tuple(where_in_bytes(table, machine) for table in at_scale(spec, scale, "tables")[0]),
        claims=claims_at(written, capacity),
        answers=tuple(at_scale(spec, scale, "answers")[0]),
        target_accuracy=at_scale(spec, scale, "target_accuracy")[0],
        cannot_show=(spec if scale == "paper" else spec.at(scale)).cannot_show or "",
        left_out=(*dict.fromkeys(found.lacks), *expansion.infeasible.sentences),
        prices=machine.prices,
    )
    _check(document, spec, study, found, written)
    return study


def _check(
    document: YamlDocument, spec: StudySpec, study: Study, found: Combinations, written: Sequence[Written]
) -> None:
    """Raise UserError with everything that is wrong beyond the runs."""
    errors = [UserError(p.what, document.where(p.path), p.remedy) for p in empty_sections(spec)]
    depends_on_machine = bool(study.left_out) or any(setting.of_machine for setting in found.settings)
    for problem in (*figure_problems(study), *answer_problems(study.runs, study.answers, depends_on_machine)):
        place: KeyPath = (*at_scale(spec, study.scale, str(problem.path[0]))[1], *problem.path[1:])
        errors.append(UserError(problem.what, document.where(place), problem.remedy))
    raise_all(errors)
    raise_claim_problems(claim_problems(study, depends_on_machine), written)


def _nothing_left(expansion: _Expansion) -> UserError:
    """Reason why no configuration remains."""
    document, errors = expansion.document, expansion.infeasible.errors
    if errors:
        return errors[0]
    if lacks := expansion.found.lacks:
        return NoHosts(lacks[0], document.where(("vary",)), "choose a machine of several nodes")
    what = f"`exclude` leaves no run at scale `{expansion.scale}`"
    return UserError(what, document.where(("exclude",)), "exclude fewer")


def _configurations(expansion: _Expansion) -> list[Configuration]:
    """Every combination as a validated run."""
    found, capacity = expansion.found, expansion.capacity
    configurations: list[Configuration] = []
    errors: dict[tuple[KeyPath, str], UserError] = {}
    for entry in found.all():
        data = applied(expansion.base, entry.point)
        _fill_hosts(data, capacity)
        run, problems = parse(RunSpec, data)
        if entry.can_be_excluded and any(_is_excluded(data, run, rule) for rule in found.exclude):
            continue
        if run is not None:
            problems = [
                *own_code_problems(run, expansion.extensions),
                *run_problems(run),
                *repeat_problems(run, found.repeats),
            ]
            if beyond := _beyond(run, entry, problems, capacity):
                expansion.infeasible.add(entry.repeats, beyond, [expansion.error(each, entry) for each in beyond])
                continue
        for problem in problems:
            errors.setdefault((problem.path, problem.what), expansion.error(problem, entry))
        if len(errors) >= MAX_ERRORS:
            break
        if run is not None and not problems:
            configurations.append(Configuration(in_bytes(run, capacity.machine), entry))
    raise_all(list(errors.values()))
    return configurations


def _fill_hosts(data: dict[str, Any], capacity: MachineCapacity) -> None:
    """Give a run on nodes by name the ranks that fill them, where the study sets none."""
    hosts, per_node = one_or_more(data.get("hosts")), data.get("ranks_per_node")
    if isinstance(hosts, tuple) and "ranks" not in data:
        data["ranks"] = len(hosts) * (per_node if type(per_node) is int else capacity.ranks_on_node)


def _beyond(run: RunSpec, entry: Combination, problems: list[Problem], capacity: MachineCapacity) -> list[Problem]:
    """Reasons to leave a run out: it exceeds the machine, or a number that the machine chose does not suit the run."""
    of_machine = [setting.key for setting in entry.point if setting.of_machine]
    if problems:
        return problems if of_machine else []
    return list(capacity_problems(run, capacity, "loader.workers" in of_machine))


def _is_excluded(data: dict[str, Any], run: RunSpec | None, rule: Mapping[str, Any]) -> bool:
    """Whether a combination agrees with a map of `exclude`; a key that the file does not set has its default."""
    columns = None if run is None else columns_of(run)
    for key, wanted in rule.items():
        value = None if key == "hosts" else _value_at(data, key)
        if value is None and columns is not None:
            value = columns.get(key)
        if not matches(value, wanted):
            return False
    return True


def _value_at(data: Any, key: str) -> Any:
    for part in key.split("."):
        data = data.get(part) if isinstance(data, dict) else None
    return data


def _rounds(configurations: list[Configuration], repeats: int, extensions: Path) -> list[list[Run]]:
    """The runs of each repeat."""
    first = [(each.entry, _run(each.run, extensions)) for each in configurations]
    return [
        [run if repeat == 0 else _repeat(run, repeat, extensions) for entry, run in first if repeat < entry.repeats]
        for repeat in range(repeats)
    ]


def _run(spec: RunSpec, extensions: Path) -> Run:
    return Run(run_id(spec, extensions), spec, configuration_id(spec), dataset_id(spec.data, extensions))


def _repeat(run: Run, repeat: int, extensions: Path) -> Run:
    """A later repeat of a configuration's first run."""
    spec = run.spec.model_copy(update={"seed": run.spec.seed + repeat, "repeat": repeat})
    return replace(run, id=run_id(spec, extensions), spec=spec)


def _distinct(configurations: list[Configuration], runs: list[Run]) -> list[Configuration]:
    """The configurations without duplicates; of duplicates the first is kept."""
    return list({run.id: each for run, each in reversed(list(zip(runs, configurations, strict=True)))}.values())[::-1]


def _labels(expansion: _Expansion, configurations: list[Configuration]) -> dict[str, dict[str, str]]:
    """For each varied key, the label of each value that its column can have; a size is its own label."""
    labels: dict[str, dict[str, str]] = {}
    for key, value, label, entry in _labelled(configurations):
        first = labels.setdefault(key, {}).setdefault(value, label)
        if first != label:
            what = f"column `{key}` has the value {value} under two labels, {shown(first)} and {shown(label)}"
            remedy = f"label what differs: vary the option alone, such as `{key}.<option>`"
            raise expansion.error(Problem((key,), what, remedy), entry)
    return labels


def _labelled(configurations: list[Configuration]) -> Iterator[tuple[str, str, str, Combination]]:
    """Column, value and label of each labelled setting."""
    for each in configurations:
        columns: dict[str, Any] = {}
        for setting in each.entry.point:
            is_size = setting.key == "data.scale" and isinstance(setting.value, str)
            label = setting.label or (setting.value if is_size else None)
            if label is not None:
                columns = columns or columns_of(each.run)
                for key in (setting.key, *(("data.source",) if setting.key == "data" else ())):
                    yield key, canonical_json(columns.get(key)), label, each.entry
