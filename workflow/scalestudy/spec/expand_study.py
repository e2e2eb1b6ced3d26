"""From a study file to its runs at one scale, each validated, in the order in which they are measured."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NoReturn

from scalestudy.claims.check import claim_problems
from scalestudy.claims.read import claim_in_bytes, claims_at, raise_claim_problems
from scalestudy.errors import Problem, UserError, raise_all
from scalestudy.files import canonical_json
from scalestudy.spec.axes import Combinations, Point, combinations, override
from scalestudy.spec.base import KeyPath, parse, shown
from scalestudy.spec.beyond import Chosen, LeftOut, beyond_problems, on_this_machine
from scalestudy.spec.check_figures import figure_problems
from scalestudy.spec.check_run import run_problems
from scalestudy.spec.check_study import MOST_ERRORS, check_duplicates, check_keys, check_size, repeat_problems
from scalestudy.spec.columns import columns_of
from scalestudy.spec.hosts import NoHosts
from scalestudy.spec.ids import EXTENSIONS, configuration_id, dataset_id, own_code_problems, run_id
from scalestudy.spec.machine import Machine
from scalestudy.spec.matching import matches
from scalestudy.spec.merge import Draft, applied, overlay
from scalestudy.spec.run import RunSpec, one_or_more
from scalestudy.spec.sizes import in_bytes, where_in_bytes
from scalestudy.spec.study import Run, ScaleSpec, Study, StudySpec
from scalestudy.spec.up_to import Extent
from scalestudy.spec.yamlfile import YamlDocument


@dataclass(frozen=True)
class Configuration:
    """One combination: its run at repeat 0, the settings that make it, and how often it is measured."""

    run: RunSpec
    point: Point
    repeats: int


@dataclass(frozen=True)
class _Expansion:
    """What the expansion of one study needs at every step."""

    document: YamlDocument
    base: Draft
    found: Combinations
    extent: Extent
    extensions: Path
    left_out: LeftOut


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
    """All runs of a study at one scale, validated; raises UserError listing what is wrong and on which line.

    What the machine does not have is left out, and listed in `left_out` of the study; a study of which nothing remains is
    wrong. `changes` are keys that get other values than the file says, and then duplicate runs count once.
    """
    base = _base(spec, scale)
    extent = Extent(machine, machine_name, _device_of(base))
    found = combinations(document, spec, scale, extent)
    found = override(found, changes) if changes else found
    check_keys(document, found)
    check_size(document, found)
    left_out = LeftOut()
    expansion = _Expansion(document, base, found, extent, extensions, left_out)
    configurations = _configurations(expansion)
    if not configurations:
        _raise_nothing_left(expansion, scale)
    rounds = _rounds(configurations, found.repeats, extensions)
    if changes:
        configurations = _distinct(configurations, rounds[0])
        rounds = _rounds(configurations, found.repeats, extensions)
    check_duplicates(document, rounds[0], [each.point for each in configurations])
    change = spec.scales.get(scale, ScaleSpec())
    figures = spec.figures if change.figures is None else change.figures
    tables = spec.tables if change.tables is None else change.tables
    # With other values for keys, what claims choose need not be there.
    claims = [] if changes else claims_at(document, scale)
    rows = [columns_of(each.run) for each in configurations] if claims else []
    chosen = Chosen(rows, _of_machine(found), left_out.rows, extent)
    study = Study(
        name=name,
        title=spec.title or name.replace("_", " "),
        question=spec.question,
        source=spec.source,
        scale=scale,
        tags=spec.tags,
        repeats=found.repeats,
        runs=tuple(itertools.chain.from_iterable(rounds)),
        varied=tuple(dict.fromkeys(setting.key for each in configurations for setting in each.point)),
        labels=_labels(document, configurations),
        figures=tuple(where_in_bytes(figure, machine) for figure in figures),
        tables=tuple(where_in_bytes(table, machine) for table in tables),
        claims=tuple(claim_in_bytes(on_this_machine(claim, scale, chosen), machine) for claim in claims),
        target_accuracy=spec.target_accuracy if change.target_accuracy is None else change.target_accuracy,
        cannot_show=(spec.cannot_show if scale == "paper" else change.cannot_show) or "",
        left_out=(*dict.fromkeys(extent.lacks), *left_out.sentences),
    )
    _check_figures(document, study, change)
    raise_claim_problems(claim_problems(study), document, scale)
    return study


def _raise_nothing_left(expansion: _Expansion, scale: str) -> NoReturn:
    """Why no configuration remains."""
    document, extent = expansion.document, expansion.extent
    expansion.left_out.raise_errors()
    if extent.lacks:
        raise NoHosts(extent.lacks[0], document.where(("vary",)), "choose a machine of several nodes")
    place = document.where(expansion.found.exclude_place)
    raise UserError(f"`exclude` leaves no run at scale `{scale}`", place, "exclude fewer")


def _base(spec: StudySpec, scale: str) -> Draft:
    base = Draft()
    overlay(base, spec.base, ("base",))
    overlay(base, spec.scales.get(scale, ScaleSpec()).base, ("scales", scale, "base"))
    return base


def _device_of(base: Draft) -> str | None:
    """The device that a study's base sets, where it is one."""
    device = base.data.get("device")
    return device if isinstance(device, str) else None


def _of_machine(found: Combinations) -> dict[str, list[int]]:
    """The values of the axes that are as many as the machine has."""
    settings = [setting for axis in found.axes for point in axis for setting in point if setting.of_machine]
    return {key: [each.value for each in settings if each.key == key] for key in {each.key for each in settings}}


def _check_figures(document: YamlDocument, study: Study, change: ScaleSpec) -> None:
    at: KeyPath = ("scales", study.scale)
    places: dict[str | int, KeyPath] = {
        "figures": at if change.figures is not None else (),
        "tables": at if change.tables is not None else (),
    }
    wrong = list(figure_problems(study))
    raise_all([UserError(p.what, document.where((*places[p.path[0]], *p.path)), p.remedy) for p in wrong])


def _configurations(expansion: _Expansion) -> list[Configuration]:
    """Every combination as a validated run."""
    document, found = expansion.document, expansion.found
    configurations: list[Configuration] = []
    errors: dict[str, UserError] = {}
    for point, repeats, can_be_excluded in _points(found):
        draft = applied(expansion.base, point)
        _fill_hosts(draft, expansion.extent)
        run, wrong = parse(RunSpec, draft.data)
        if can_be_excluded and any(_is_excluded(draft.data, run, rule) for rule in found.exclude):
            continue
        if run is not None:
            wrong = list(_run_problems(run, expansion))
            if beyond := _beyond(run, point, wrong, expansion):
                errors_of = [UserError(p.what, draft.where(document, p.path), p.remedy) for p in beyond]
                expansion.left_out.add(run, repeats, beyond, errors_of)
                continue
        for problem in wrong:
            error = UserError(problem.what, draft.where(document, problem.path), problem.remedy)
            errors[str(error)] = error
        if len(errors) >= MOST_ERRORS:
            errors[""] = UserError("may have more errors; the first are listed", document.file)
            break
        if run is not None and not wrong:
            configurations.append(Configuration(in_bytes(run, expansion.extent.machine), point, repeats))
    raise_all(list(errors.values()))
    return configurations


def _fill_hosts(draft: Draft, extent: Extent) -> None:
    """A run on nodes by name has as many ranks as fill them, where the study does not say how many."""
    hosts, per_node = one_or_more(draft.data.get("hosts")), draft.data.get("ranks_per_node")
    if isinstance(hosts, tuple) and "ranks" not in draft.data:
        draft.data["ranks"] = len(hosts) * (per_node if type(per_node) is int else extent.ranks_on_node)


def _points(found: Combinations) -> Iterator[tuple[Point, int, bool]]:
    """Each combination, how often it is measured, and whether `exclude` applies to it."""
    for point in found.crossed:
        yield point, found.repeats, True
    for each in found.include:
        yield each.point, found.repeats if each.repeats is None else each.repeats, False


def _run_problems(run: RunSpec, expansion: _Expansion) -> Iterator[Problem]:
    yield from own_code_problems(run, expansion.extensions)
    yield from run_problems(run)
    yield from repeat_problems(run, expansion.found.repeats)


def _beyond(run: RunSpec, point: Point, wrong: list[Problem], expansion: _Expansion) -> list[Problem]:
    """Why a run is left out rather than wrong: the machine does not have it, or its number, which the machine chose, does
    not go with the rest of the run."""
    of_machine = [setting.key for setting in point if setting.of_machine]
    if wrong:
        return wrong if of_machine else []
    return list(beyond_problems(run, expansion.extent, "loader.workers" in of_machine))


def _is_excluded(data: dict[str, Any], run: RunSpec | None, rule: Mapping[str, Any]) -> bool:
    """Whether a combination agrees with a map of `exclude`; a key that the file does not set has its default."""
    columns: dict[str, Any] | None = None
    for key, wanted in rule.items():
        value = None if key == "hosts" else _value_at(data, key)
        if value is None and run is not None:
            columns = columns or columns_of(run)
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
    first = [_run(each.run, extensions) for each in configurations]
    found = list(zip(configurations, first, strict=True))
    return [
        [run if repeat == 0 else _repeat(run, repeat, extensions) for each, run in found if repeat < each.repeats]
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


def _labels(document: YamlDocument, configurations: list[Configuration]) -> dict[str, dict[str, str]]:
    """For each varied key, the label of each value that its column can have; a size is its own label."""
    labels: dict[str, dict[str, str]] = {}
    for each in configurations:
        columns = columns_of(each.run)
        for setting in each.point:
            label = setting.label
            if label is None and setting.key == "data.scale" and isinstance(setting.value, str):
                label = setting.value
            if label is None:
                continue
            for key in (setting.key, *(("data.source",) if setting.key == "data" else ())):
                value = canonical_json(columns.get(key))
                first = labels.setdefault(key, {}).setdefault(value, label)
                if first != label:
                    what = f"column `{key}` has the value {value} under two labels, {shown(first)} and {shown(label)}"
                    remedy = f"label what differs: vary the option alone, such as `{key}.<option>`"
                    raise UserError(what, document.where(setting.origin), remedy)
    return labels
