"""Study: one question, what is varied to answer it, and its figures. One file in config/studies/."""

from __future__ import annotations

import copy
import dataclasses
import itertools
import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path as FilePath
from typing import Annotated, Any, TypeVar

from pydantic import Field

from scalestudy.errors import Problem, UserError, nearest, raise_all
from scalestudy.figures.catalogue import FigureSpec, TableSpec
from scalestudy.files import canonical_json
from scalestudy.spec.base import Spec, key_problem, nearest_of_many, parse, shown
from scalestudy.spec.columns import MEASURED, PREDICTED
from scalestudy.spec.config import NAME, Name, checked
from scalestudy.spec.ids import EXTENSIONS, configuration_id, dataset_id, own_code_problems, run_id
from scalestudy.spec.machine import Machine, machine_problems
from scalestudy.spec.run import MOST_BYTES, RunSpec, geometry_problems, size_in_bytes
from scalestudy.spec.yamlfile import Document, Path, read_yaml

Axes = dict[str, Annotated[list[Any], Field(min_length=1)] | None]
Drawing = TypeVar("Drawing", FigureSpec, TableSpec)
Repeats = Annotated[int, Field(ge=1, le=10_000)]

MOST_RUNS = 50_000
MOST_ERRORS = 20
MOST_SEED = 2**31 - 1


class ScaleSpec(Spec):
    """What one scale changes: maps are merged, lists replaced, null removes."""

    base: dict[str, Any] = {}
    """Changes to `base`; a map that names another source or name replaces the one below."""
    vary: Axes = {}
    """Axes replaced or, by null, removed."""
    zip: list[Axes] | Axes | None = None
    """Replaces `zip`."""
    exclude: list[dict[str, Any]] | None = None
    """Replaces `exclude`."""
    include: list[dict[str, Any]] | None = None
    """Replaces `include`."""
    repeats: Repeats | None = None
    """Replaces `repeats`."""
    figures: list[FigureSpec] | None = None
    """Replaces `figures`."""
    tables: list[TableSpec] | None = None
    """Replaces `tables`."""


class StudySpec(Spec):
    """A study file."""

    question: str
    """What the study answers, as a question."""
    title: str | None = None
    """Its name in reports; the file's name when unset."""
    source: str = ""
    """Where the experiment comes from: document, section, figure."""
    tags: tuple[Name, ...] = ()
    """Words to select studies by."""
    base: dict[str, Any] = {}
    """The run that everything else is a variation of: keys of a run."""
    vary: Axes = {}
    """Dotted key to values; all are crossed. A value may be `{value: …, label: …}`."""
    zip: list[Axes] | Axes = []
    """Dotted keys that vary in step: one axis, or a list of axes."""
    exclude: list[dict[str, Any]] = []
    """Combinations left out: each a map of dotted keys to values that must all agree."""
    include: list[dict[str, Any]] = []
    """Single combinations added: each a map of dotted keys to values, on top of `base`; `repeats` if it needs fewer."""
    repeats: Repeats = 1
    """How often each configuration is measured."""
    scales: dict[Annotated[str, Field(pattern="^(mini|node)$")], ScaleSpec] = {}
    """`mini` and `node`, as changes to the file as it stands, which is `paper`."""
    figures: list[FigureSpec] = []
    """What is drawn."""
    tables: list[TableSpec] = []
    """What is tabulated."""


@dataclass(frozen=True)
class Run:
    """One run of a study."""

    id: str
    spec: RunSpec
    configuration: str
    dataset: str


@dataclass(frozen=True)
class Study:
    """A study at one scale, expanded: its runs in the order in which they are measured."""

    name: str
    title: str
    question: str
    source: str
    scale: str
    tags: tuple[str, ...]
    repeats: int
    runs: tuple[Run, ...]
    varied: tuple[str, ...]
    labels: dict[str, dict[str, str]]
    figures: tuple[FigureSpec, ...]
    tables: tuple[TableSpec, ...]

    @property
    def late(self) -> frozenset[str]:
        """Ids of the runs that wait for something to be compiled, and of the reference runs made in their rounds."""
        return frozenset(
            run.id for run in self.runs if run.spec.strategy.needs_build or run.spec.repeat >= self.repeats
        )

    def rounds(self) -> list[tuple[Run, ...]]:
        """The runs of each repeat; one round is measured after the other, so that drift hits all configurations."""
        return [tuple(run for run in self.runs if run.spec.repeat == repeat) for repeat in range(self.repeats)]


@dataclass
class _Draft:
    """A run in the making: plain data, and where in the study file each part was said."""

    data: dict[str, Any] = field(default_factory=dict)
    origins: dict[Path, Path] = field(default_factory=dict)

    def copy(self) -> _Draft:
        return _Draft(copy.deepcopy(self.data), dict(self.origins))

    def where(self, document: Document, path: Path) -> str:
        for cut in range(len(path), -1, -1):
            if path[:cut] in self.origins:
                return document.where((*self.origins[path[:cut]], *path[cut:]))
        return document.where(())


@dataclass(frozen=True)
class _Setting:
    """One value of one axis."""

    key: str
    value: Any
    label: str | None
    origin: Path
    place: Path
    """Where the key stands; `origin` is where the value stands."""


Point = tuple[_Setting, ...]
Axis = list[Point]
Rules = tuple[list[dict[str, Any]], Path]


def read_studies(
    names: Iterable[str] | None,
    scale: str,
    machine: Machine,
    *,
    tags: Iterable[str] = (),
    folder: FilePath | str = "config/studies",
    machine_name: str = "local",
    extensions: FilePath = EXTENSIONS,
    changes: Mapping[str, Any] | None = None,
) -> list[Study]:
    """The studies of that name (None: all) and scale, expanded; all their errors together.

    A study without a `mini` or `node` part is left out at that scale, unless it is asked for by name. `changes` are
    laid over every study: `repeats`, or a run's dotted key with a value or a list of values to vary it over.
    """
    folder = FilePath(folder)
    known = sorted(path.stem for path in folder.glob("*.yaml"))
    errors = list(_file_name_errors(folder))
    if not known and not errors:
        raise UserError("there is no study here", str(folder), "put one in; see config/README.md")
    wanted = list(names) if names is not None else [name for name in known if re.match(NAME, name)]
    for name in wanted:
        if name not in known:
            errors.append(UserError(f"there is no study {shown(name)}", str(folder), nearest(name, known)))
    studies: list[Study] = []
    for name in dict.fromkeys(name for name in wanted if name in known):
        try:
            document = read_yaml(folder / f"{name}.yaml")
            if changes:
                document = _changed(document, scale, changes)
            spec = checked(StudySpec, document)
            if set(tags) and not set(tags) & set(spec.tags):
                continue
            if scale != "paper" and scale not in spec.scales:
                if names is not None:
                    raise UserError(
                        f"has no scale `{scale}`",
                        document.where(("scales",)),
                        f"it has {', '.join(['paper', *spec.scales])}",
                    )
                continue
            studies.append(expand(document, spec, name, scale, machine, machine_name, extensions))
        except UserError as error:
            errors += getattr(error, "errors", [error])
    raise_all(errors)
    if not studies:
        raise UserError(
            f"no study has scale `{scale}`" + (f" and one of the tags {', '.join(tags)}" if tags else ""), str(folder)
        )
    _check_collisions(studies)
    return studies


def _changed(document: Document, scale: str, changes: Mapping[str, Any]) -> Document:
    """The study file as if it said something else at this scale."""
    data = copy.deepcopy(document.data)
    here = data if scale == "paper" else data.get("scales", {}).get(scale)
    if not isinstance(here, dict):
        return document
    for key, value in changes.items():
        if key == "repeats":
            here["repeats"] = value
            for rule in (here.get("include") or []) + (data.get("include") or []):
                if isinstance(value, int) and isinstance(rule.get("repeats"), int):
                    rule["repeats"] = min(rule["repeats"], value)
        else:
            here["vary"] = {**(here.get("vary") or {}), key: value if isinstance(value, list) else [value]}
    return dataclasses.replace(document, data=data)


def _file_name_errors(folder: FilePath) -> Iterator[UserError]:
    """Files that look like studies and cannot be one."""
    for file in sorted(folder.glob("*.y*ml")):
        if file.suffix != ".yaml":
            yield UserError(
                "is not read: a study's file name ends in `.yaml`", str(file), f"rename it {file.stem}.yaml"
            )
        elif not re.match(NAME, file.stem):
            remedy = "use small letters, digits and `_`, beginning with a letter"
            yield UserError("the file name is the study's name and part of paths", str(file), remedy)


def expand(
    document: Document,
    spec: StudySpec,
    name: str,
    scale: str,
    machine: Machine,
    machine_name: str = "local",
    extensions: FilePath = EXTENSIONS,
) -> Study:
    """All runs of a study at one scale, validated; raises UserError listing what is wrong and on which line."""
    change = spec.scales.get(scale, ScaleSpec())
    at: Path = ("scales", scale)
    base = _Draft()
    _overlay(base, spec.base, ("base",))
    _overlay(base, change.base, (*at, "base"))
    axes = list(_axes(document, spec, change, at))
    exclude = _chosen(spec, change, at, "exclude")
    include = _chosen(spec, change, at, "include")
    repeats = change.repeats or spec.repeats
    figures = spec.figures if change.figures is None else change.figures
    tables = spec.tables if change.tables is None else change.tables

    _check_keys(document, axes, exclude, include, repeats)
    _check_size(document, axes, include[0], repeats)
    first_round = _first_round(document, base, axes, exclude, include, repeats, machine, machine_name, extensions)
    if not first_round:
        raise UserError(f"`exclude` leaves no run at scale `{scale}`", document.where(exclude[1]), "exclude fewer")
    runs = [
        [_repeat(run, repeat, extensions) for run, _, most in first_round if repeat < most] for repeat in range(repeats)
    ]
    _check_doubles(document, runs[0], [point for _, point, _ in first_round])
    runs = _late_rounds_last(runs, extensions)

    study = Study(
        name=name,
        title=spec.title or name.replace("_", " "),
        question=spec.question,
        source=spec.source,
        scale=scale,
        tags=spec.tags,
        repeats=repeats,
        runs=tuple(itertools.chain.from_iterable(runs)),
        varied=tuple(dict.fromkeys(setting.key for _, point, _ in first_round for setting in point)),
        labels=_labels(document, first_round),
        figures=tuple(_where_in_bytes(figure, machine) for figure in figures),
        tables=tuple(_where_in_bytes(table, machine) for table in tables),
    )
    places: dict[str | int, Path] = {
        "figures": at if change.figures is not None else (),
        "tables": at if change.tables is not None else (),
    }
    wrong = list(_drawing_problems(study))
    raise_all([UserError(p.what, document.where((*places[p.path[0]], *p.path)), p.remedy) for p in wrong])
    return study


def _first_round(
    document: Document,
    base: _Draft,
    axes: list[Axis],
    exclude: Rules,
    include: Rules,
    repeats: int,
    machine: Machine,
    machine_name: str,
    extensions: FilePath,
) -> list[tuple[RunSpec, Point, int]]:
    """Repeat 0 of every combination, validated, and how many repeats it has."""
    crossed = [tuple(itertools.chain.from_iterable(parts)) for parts in itertools.product(*axes)]
    if not axes and include[0]:
        crossed = []
    included = [tuple(_settings(document, rule, (*include[1], index))) for index, rule in enumerate(include[0])]
    counts = [repeats] * len(crossed) + [rule.get("repeats", repeats) for rule in include[0]]
    found: list[tuple[RunSpec, Point, int]] = []
    errors: dict[str, UserError] = {}
    for position, point in enumerate([*crossed, *included]):
        draft = _applied(base, point)
        run, wrong = parse(RunSpec, draft.data)
        if position < len(crossed) and any(_agrees(draft.data, run, rule) for rule in exclude[0]):
            continue
        if run is not None:
            wrong = [
                *own_code_problems(run, extensions),
                *geometry_problems(run),
                *machine_problems(run, machine, machine_name),
                *_repeat_problems(run, repeats),
            ]
        for problem in wrong:
            error = UserError(problem.what, draft.where(document, problem.path), problem.remedy)
            errors[str(error)] = error
        if len(errors) >= MOST_ERRORS:
            errors[""] = UserError("may have more errors; the first are listed", document.file)
            break
        if run is not None and not wrong:
            found.append((in_bytes(run, machine), point, counts[position]))
    raise_all(list(errors.values()))
    return found


def _repeat(run: RunSpec, repeat: int, extensions: FilePath) -> Run:
    spec = run.model_copy(update={"seed": run.seed + repeat, "repeat": repeat})
    return Run(run_id(spec, extensions), spec, configuration_id(spec), dataset_id(spec.data, extensions))


def _late_rounds_last(runs: list[list[Run]], extensions: FilePath) -> list[list[Run]]:
    """Runs that wait for something to be compiled form rounds of their own, after all others.

    In each of them the first configuration of the others is measured once more: what changed meanwhile shows as its
    drift.
    """
    soon = [[run for run in one_round if not run.spec.strategy.needs_build] for one_round in runs]
    late = [[run for run in one_round if run.spec.strategy.needs_build] for one_round in runs]
    if not any(late) or not soon[0]:
        return runs
    first = soon[0][0].spec
    again = (_repeat(first, len(runs) + number, extensions) for number in range(len(runs)))
    return soon + [[reference, *found] for reference, found in zip(again, late, strict=True) if found]


def _check_keys(document: Document, axes: list[Axis], exclude: Rules, include: Rules, repeats: int) -> None:
    """Dotted keys that no run has, keys that vary twice, and values that are written wrongly."""
    errors: list[UserError] = []
    places: dict[str, Path] = {}
    for setting in itertools.chain.from_iterable(axis[0] for axis in axes if axis):
        if setting.key in places:
            first = document.where(places[setting.key])
            errors.append(
                UserError(f"`{setting.key}` varies twice", document.where(setting.place), f"first at {first}")
            )
        places.setdefault(setting.key, setting.place)
    used = list(places.items())
    for rules, at in (exclude, include):
        used += [(key, (*at, index, key)) for index, rule in enumerate(rules) for key in rule]
    for key, place in used:
        wrong = key_problem(RunSpec, key)
        if key == "repeats" and place[:-2] == include[1]:
            count = include[0][int(place[-2])][key]
            valid = type(count) is int and 1 <= count <= repeats
            what = f"must be a whole number from 1 to the study's {repeats}, not {shown(count)}"
            wrong = None if valid else Problem((key,), what, "raise the study's `repeats`, or lower this one")
        if key == "repeat":
            wrong = Problem((key,), "`repeat` is set by the study's `repeats`", "set `repeats`")
        if wrong:
            errors.append(UserError(wrong.what, document.where(place), wrong.remedy))
    raise_all(errors)


def _check_size(document: Document, axes: list[Axis], include: list[dict[str, Any]], repeats: int) -> None:
    count = (math.prod(len(axis) for axis in axes) + len(include)) * repeats
    if count > MOST_RUNS:
        what = f"makes {count:,} runs; at most {MOST_RUNS:,} are expanded"
        raise UserError(what, document.where(("vary",)), "vary fewer keys, or put keys in step with `zip`")


def _check_doubles(document: Document, runs: list[Run], points: list[Point]) -> None:
    """Two combinations that are one run: it would stand twice in every figure."""
    points_by_id: dict[str, Point] = {}
    errors: dict[Path, UserError] = {}
    for run, point in zip(runs, points, strict=True):
        first = points_by_id.setdefault(run.id, point)
        if first is not point:
            differing = [(a.origin, b.origin) for a, b in zip(first, point, strict=False) if a.origin != b.origin]
            there, here = (differing or [(("include",), ("include",))])[-1]
            remedy = f"leave one out; the other is at {document.where(there)}"
            errors[here] = UserError("makes the same run as another combination", document.where(here), remedy)
    raise_all(list(errors.values())[:MOST_ERRORS])


def _repeat_problems(run: RunSpec, repeats: int) -> Iterator[Problem]:
    if run.repeat:
        yield Problem(("repeat",), "`repeat` is set by the study's `repeats`", "remove it, and set `repeats`")
    if run.seed + repeats - 1 > MOST_SEED:
        yield Problem(("seed",), f"repeat {repeats - 1} has seed {run.seed + repeats - 1}; the largest is {MOST_SEED}")


def columns_of(spec: RunSpec) -> dict[str, Any]:
    """Every key of a run, dotted, with its value; `model`, `strategy` and `data.source` are their names."""
    columns: dict[str, Any] = {"model": spec.model.name, "strategy": spec.strategy.name}
    for key, value in _flat(spec.full()):
        columns.setdefault(key, value)
    columns["data.source"] = spec.data.source
    columns["batch.global"] = spec.global_batch
    columns["batch.per_rank"] = spec.rank_batch
    columns["scaling"] = "weak" if spec.batch.per_rank is not None else "strong"
    return columns


def label_of(labels: Mapping[str, Mapping[str, str]], key: str, value: Any) -> str:
    """What a figure writes for a value of a varied key."""
    return labels.get(key, {}).get(canonical_json(value), str(value))


def _flat(data: dict[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in data.items():
        if isinstance(value, dict):
            yield from _flat(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


def _overlay(draft: _Draft, change: Mapping[str, Any], origin: Path, path: Path = ()) -> None:
    """Merge `change` into the draft at `path`: maps merge, all else replaces, null removes."""
    target = draft.data
    for part in path:
        target = target[str(part)]
    for key, value in change.items():
        here, said = (*path, key), (*origin, key)
        below = target.get(key)
        if value is None:
            target.pop(key, None)
            draft.origins[here] = said
        elif isinstance(value, dict) and isinstance(below, dict) and not _names_another(below, value):
            _overlay(draft, value, said, here)
        else:
            draft.origins = {p: o for p, o in draft.origins.items() if p[: len(here)] != here}
            draft.origins[here] = said
            if isinstance(value, dict):
                target[key] = {}
                _overlay(draft, value, said, here)
            else:
                target[key] = value


def _names_another(below: Mapping[str, Any], above: Mapping[str, Any]) -> bool:
    """Whether two maps are of different kinds, so that merging them would mix two sets of options."""
    return any(key in above and above[key] != below.get(key) for key in ("name", "source", "import"))


def _chosen(spec: StudySpec, change: ScaleSpec, at: Path, key: str) -> Rules:
    changed = getattr(change, key)
    return (changed, (*at, key)) if changed is not None else (getattr(spec, key), (key,))


def _axes(document: Document, spec: StudySpec, change: ScaleSpec, at: Path) -> Iterator[Axis]:
    vary: dict[str, tuple[list[Any] | None, Path]] = {key: (values, ("vary", key)) for key, values in spec.vary.items()}
    vary |= {key: (values, (*at, "vary", key)) for key, values in change.vary.items()}
    for key, (values, place) in vary.items():
        if values is not None:
            yield [(_setting(document, key, value, (*place, index), place),) for index, value in enumerate(values)]
    zips, origin = (spec.zip, Path(("zip",))) if change.zip is None else (change.zip, (*at, "zip"))
    for index, zipped in enumerate(zips if isinstance(zips, list) else [zips]):
        here: Path = (*origin, index) if isinstance(zips, list) else origin
        columns = {key: values for key, values in zipped.items() if values is not None}
        if len({len(values) for values in columns.values()}) > 1:
            sizes = ", ".join(f"{key} has {len(values)}" for key, values in columns.items())
            what = f"keys that vary in step need equally many values: {sizes}"
            raise UserError(what, document.where(here), "give each key one value per step")
        if columns:
            yield [
                tuple(
                    _setting(document, key, values[i], (*here, key, i), (*here, key)) for key, values in columns.items()
                )
                for i in range(len(next(iter(columns.values()))))
            ]


def _settings(document: Document, rule: Mapping[str, Any], origin: Path) -> Iterator[_Setting]:
    for key, value in rule.items():
        if key != "repeats":
            yield _setting(document, key, value, (*origin, key), (*origin, key))


def _setting(document: Document, key: str, value: Any, origin: Path, place: Path) -> _Setting:
    """One value of one axis, with or without a label."""
    if not isinstance(value, dict) or "value" not in value:
        return _Setting(key, value, None, origin, place)
    for other in value.keys() - {"value", "label"}:
        remedy = "a value with a label is `{value: …, label: …}`"
        raise UserError(f"unknown key {shown(other)}", document.where((*origin, other)), remedy)
    label = value.get("label")
    if isinstance(label, (dict, list)):
        raise UserError(f"must be text, not {shown(label)}", document.where((*origin, "label")))
    return _Setting(key, value["value"], None if label is None else str(label), (*origin, "value"), place)


def _applied(base: _Draft, point: Point) -> _Draft:
    """The base with one value for each axis."""
    draft = base.copy()
    for setting in point:
        *parents, last = setting.key.split(".")
        target, path = draft.data, []
        for part in parents:
            below = target.get(part)
            # `model: resnet50` stands for `{name: resnet50}`, so that `model.kwargs` can be set beside it.
            target[part] = below if isinstance(below, dict) else {"name": below} if isinstance(below, str) else {}
            target = target[part]
            path.append(part)
        here = (*path, last)
        draft.origins = {p: o for p, o in draft.origins.items() if p[: len(here)] != here}
        draft.origins[here] = setting.origin
        if setting.value is None:
            target.pop(last, None)
        else:
            target[last] = copy.deepcopy(setting.value)
    return draft


def _agrees(data: dict[str, Any], run: RunSpec | None, rule: Mapping[str, Any]) -> bool:
    """Whether a combination is one that `exclude` names; what the file does not say has its default."""
    columns: dict[str, Any] | None = None
    for key, wanted in rule.items():
        value = _get(data, key)
        if value is None and run is not None:
            columns = columns or columns_of(run)
            value = columns.get(key)
        if not _same(value, wanted):
            return False
    return True


def _same(value: Any, wanted: Any) -> bool:
    """Whether two values agree; a name agrees with a map of that name, and one value with a list that holds it."""
    if isinstance(wanted, list) and not isinstance(value, (list, tuple)):
        return any(_same(value, one) for one in wanted)
    if isinstance(value, dict) and isinstance(wanted, str):
        return wanted in (value.get("name"), value.get("source"))
    if isinstance(value, str) and isinstance(wanted, dict):
        return wanted == {"name": value}
    return bool(value == wanted)


def _get(data: Any, key: str) -> Any:
    for part in key.split("."):
        data = data.get(part) if isinstance(data, dict) else None
    return data


def in_bytes(spec: RunSpec, machine: Machine) -> RunSpec:
    """A size of the data turned into bytes, so that the id says what it is on this machine."""
    if not isinstance(spec.data.scale, str):
        return spec
    scale = _kilobytes(spec.data.scale, machine)
    return spec.model_copy(update={"data": spec.data.model_copy(update={"scale": scale})})


def _kilobytes(size: str, machine: Machine) -> str:
    return f"{max(1, round(size_in_bytes(size, machine.memory_bytes) / 1000))} KB"


def _where_in_bytes(drawing: Drawing, machine: Machine) -> Drawing:
    """`where: {data.scale: 64 MiB}` in the words of the rows, which say bytes."""
    size = drawing.where.get("data.scale")
    if not isinstance(size, str) or not 0 < size_in_bytes(size, machine.memory_bytes) <= MOST_BYTES:
        return drawing
    return drawing.model_copy(update={"where": {**drawing.where, "data.scale": _kilobytes(size, machine)}})


def _labels(document: Document, runs: list[tuple[RunSpec, Point, int]]) -> dict[str, dict[str, str]]:
    """For each varied key, the label of each value that its column can have; a size is its own label."""
    labels: dict[str, dict[str, str]] = {}
    for spec, point, _ in runs:
        columns = columns_of(spec)
        for setting in point:
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


def _drawing_problems(study: Study) -> Iterator[Problem]:
    """Figures and tables over columns that no run has, double names, missing reference files."""
    rows = [columns_of(run.spec) for run in study.runs]
    known = {key for row in rows for key in row} | set(MEASURED)
    groups: dict[str, Sequence[FigureSpec | TableSpec]] = {"figures": study.figures, "tables": study.tables}
    for group, drawings in groups.items():
        names: set[str] = set()
        for index, drawing in enumerate(drawings):
            path: Path = (group, index)
            name = drawing.file_name if isinstance(drawing, FigureSpec) else drawing.name
            if name in names:
                yield Problem((*path, "name"), f"two {group} are called `{name}`", "give one of them another name")
            names.add(name)
            for key, column in (*_columns_used(drawing), *((("where", column), column) for column in drawing.where)):
                if column not in known:
                    what = f"no run of this study has a column {shown(column)}"
                    yield Problem((*path, *key), what, nearest_of_many(column, known))
            yield from _where_problems(drawing, rows, path)
            if isinstance(drawing, FigureSpec):
                yield from _figure_problems(drawing, path)


def _where_problems(drawing: FigureSpec | TableSpec, rows: list[dict[str, Any]], path: Path) -> Iterator[Problem]:
    """A choice of runs that chooses none; what is only measured cannot be judged yet."""
    where = {key: value for key, value in drawing.where.items() if any(key in row for row in rows)}
    if all(any(all(_same(row.get(k), v) for k, v in wanted) for row in rows) for wanted in [where.items()]):
        return
    for key, wanted in where.items():
        values = dict.fromkeys(shown(row.get(key)) for row in rows)
        if not any(_same(row.get(key), wanted) for row in rows):
            what = f"no run of this study has `{key}` {shown(wanted)}"
            yield Problem((*path, "where", key), what, f"there is {', '.join(list(values)[:10])}")
            return
    yield Problem((*path, "where"), "no run of this study agrees with all of it", "remove a key")


def _columns_used(drawing: FigureSpec | TableSpec) -> Iterator[tuple[Path, str]]:
    if isinstance(drawing, TableSpec):
        for index, value in enumerate(drawing.values):
            yield ("values", index), value
        if drawing.decide is not None:
            yield ("decide",), drawing.decide
    else:
        for key in ("x", "y", "prediction", "series", "panel"):
            if (column := getattr(drawing, key)) is not None:
                yield (key,), column


def _figure_problems(figure: FigureSpec, path: Path) -> Iterator[Problem]:
    for key in ("x", "y"):
        if figure.kind == "lines" and getattr(figure, key) is None:
            yield Problem(path, f"a figure of kind `lines` needs `{key}`", f"add `{key}`, the name of a column")
        if figure.kind != "lines" and getattr(figure, key) is not None:
            yield Problem((*path, key), f"a figure of kind `{figure.kind}` sets `{key}` itself", "use kind `lines`")
    if figure.prediction is not None and (figure.kind != "lines" or figure.prediction not in PREDICTED):
        what = f"`{figure.prediction}` is no prediction that a figure of kind `{figure.kind}` can show"
        yield Problem((*path, "prediction"), what, f"with kind `lines` there is {', '.join(PREDICTED)}")
    if figure.reference is not None:
        folder = FilePath("config/reference")
        if not (folder / f"{figure.reference}.csv").is_file():
            known = [file.stem for file in folder.glob("*.csv")]
            yield Problem(
                (*path, "reference"), f"there is no {folder}/{figure.reference}.csv", nearest(figure.reference, known)
            )


def _check_collisions(studies: list[Study]) -> None:
    """Two questions with one id are an error, never a mix-up."""
    seen: dict[str, RunSpec] = {}
    for study in studies:
        for run in study.runs:
            if seen.setdefault(run.id, run.spec) != run.spec:
                raise UserError(f"two different runs have the id `{run.id}`", study.name, "change a seed by one")
