"""Study: one question, what is varied to answer it, and its figures. One file in config/studies/."""

from __future__ import annotations

import copy
import itertools
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path as FilePath
from typing import Annotated, Any

from pydantic import Field

from scalestudy.errors import Problem, UserError, nearest, raise_all
from scalestudy.figures.catalogue import FigureSpec, TableSpec
from scalestudy.files import canonical_json
from scalestudy.spec.base import Spec, parse
from scalestudy.spec.columns import MEASURED
from scalestudy.spec.config import Name, checked
from scalestudy.spec.ids import EXTENSIONS, configuration_id, dataset_id, run_id
from scalestudy.spec.machine import Machine, machine_problems
from scalestudy.spec.run import RunSpec, geometry_problems
from scalestudy.spec.yamlfile import Document, Path, read_yaml

Axes = dict[str, Annotated[list[Any], Field(min_length=1)] | None]
Repeats = Annotated[int, Field(ge=1, le=10_000)]


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
    """Single combinations added: each a map of dotted keys to values, on top of `base`."""
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


Point = tuple[_Setting, ...]


def read_studies(
    names: Iterable[str] | None,
    scale: str,
    machine: Machine,
    *,
    tags: Iterable[str] = (),
    folder: FilePath | str = "config/studies",
    machine_name: str = "local",
    extensions: FilePath = EXTENSIONS,
) -> list[Study]:
    """The studies of that name (None: all) and scale, expanded; all their errors together.

    A study without a `mini` or `node` part is left out at that scale, unless it is asked for by name.
    """
    folder = FilePath(folder)
    known = sorted(path.stem for path in folder.glob("*.yaml"))
    if not known:
        raise UserError("there is no study here", str(folder), "put one in; see config/README.md")
    wanted = list(names) if names is not None else known
    errors = [UserError(f"there is no study `{name}`", str(folder), nearest(name, known)) for name in wanted if name not in known]
    studies: list[Study] = []
    for name in dict.fromkeys(name for name in wanted if name in known):
        try:
            document = read_yaml(folder / f"{name}.yaml")
            spec = checked(StudySpec, document)
            if set(tags) and not set(tags) & set(spec.tags):
                continue
            if scale != "paper" and scale not in spec.scales:
                if names is not None:
                    raise UserError(f"has no scale `{scale}`", document.where(("scales",)), f"it has {', '.join(['paper', *spec.scales])}")
                continue
            studies.append(expand(document, spec, name, scale, machine, machine_name, extensions))
        except UserError as error:
            errors += getattr(error, "errors", [error])
    raise_all(errors)
    if not studies:
        raise UserError(f"no study has scale `{scale}`" + (f" and one of the tags {', '.join(tags)}" if tags else ""), str(folder))
    _check_collisions(studies)
    return studies


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

    errors: list[UserError] = []
    points = [tuple(itertools.chain.from_iterable(parts)) for parts in itertools.product(*axes)] if axes or not include[0] else []
    points = [point for point in points if not any(_agrees(base.data, point, rule) for rule in exclude[0])]
    points += [tuple(_settings(rule, (*include[1], index))) for index, rule in enumerate(include[0])]
    first_rounds: list[tuple[RunSpec, Point]] = []
    for point in points:
        draft = _applied(base, point)
        run, wrong = parse(RunSpec, draft.data)
        if run is not None:
            wrong = [*geometry_problems(run), *machine_problems(run, machine, machine_name)]
        errors += [UserError(problem.what, draft.where(document, problem.path), problem.remedy) for problem in wrong]
        if run is not None and not wrong:
            first_rounds.append((_in_bytes(run, machine), point))
    raise_all(errors)
    if not first_rounds:
        raise UserError(f"has no runs at scale `{scale}`", document.where(("vary",)), "exclude fewer, or vary something")

    runs: dict[str, Run] = {}
    for repeat in range(repeats):
        for run, point in first_rounds:
            repeated = run.model_copy(update={"seed": run.seed + repeat, "repeat": repeat}) if repeat else run
            made = Run(run_id(repeated, extensions), repeated, configuration_id(repeated), dataset_id(repeated.data, extensions))
            if made.id in runs and repeat == 0:
                place = point[-1].origin if point else ("vary",)
                errors.append(UserError(f"two combinations are the same run `{made.id}`", document.where(place), "leave one out"))
            runs[made.id] = made
    raise_all(errors)

    varied = tuple(dict.fromkeys(setting.key for _, point in first_rounds for setting in point))
    study = Study(
        name=name,
        title=spec.title or name.replace("_", " "),
        question=spec.question,
        source=spec.source,
        scale=scale,
        tags=spec.tags,
        repeats=repeats,
        runs=tuple(runs.values()),
        varied=varied,
        labels=_labels(first_rounds),
        figures=tuple(figures),
        tables=tuple(tables),
    )
    prefix: Path = at if change.figures is not None else ()
    raise_all([UserError(p.what, document.where((*prefix, *p.path)), p.remedy) for p in _drawing_problems(study)])
    return study


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


def _chosen(spec: StudySpec, change: ScaleSpec, at: Path, key: str) -> tuple[list[dict[str, Any]], Path]:
    changed = getattr(change, key)
    return (changed, (*at, key)) if changed is not None else (getattr(spec, key), (key,))


def _axes(document: Document, spec: StudySpec, change: ScaleSpec, at: Path) -> Iterator[list[Point]]:
    vary = {key: (values, ("vary", key)) for key, values in spec.vary.items()}
    vary |= {key: (values, (*at, "vary", key)) for key, values in change.vary.items()}
    for key, (values, origin) in vary.items():
        if values is not None:
            yield [(_setting(key, value, (*origin, index)),) for index, value in enumerate(values)]
    zips, origin = (change.zip, (*at, "zip")) if change.zip is not None else (spec.zip, ("zip",))
    for index, zipped in enumerate(zips if isinstance(zips, list) else [zips]):
        place: Path = (*origin, index) if isinstance(zips, list) else origin
        columns = {key: values for key, values in zipped.items() if values is not None}
        if len({len(values) for values in columns.values()}) > 1:
            sizes = ", ".join(f"{key} {len(values)}" for key, values in columns.items())
            raise UserError(f"keys that vary in step need equally many values: {sizes}", document.where(place))
        if columns:
            count = len(next(iter(columns.values())))
            yield [tuple(_setting(key, values[i], (*place, key, i)) for key, values in columns.items()) for i in range(count)]


def _settings(rule: Mapping[str, Any], origin: Path) -> Iterator[_Setting]:
    for key, value in rule.items():
        yield _setting(key, value, (*origin, key))


def _setting(key: str, value: Any, origin: Path) -> _Setting:
    if isinstance(value, dict) and "value" in value and set(value) <= {"value", "label"}:
        label = value.get("label")
        return _Setting(key, value["value"], None if label is None else str(label), (*origin, "value"))
    return _Setting(key, value, None, origin)


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


def _agrees(base: dict[str, Any], point: Point, rule: Mapping[str, Any]) -> bool:
    """Whether a combination is one that `exclude` names."""
    values = {setting.key: setting.value for setting in point}
    return all(_same(values[key] if key in values else _get(base, key), value) for key, value in rule.items())


def _same(value: Any, wanted: Any) -> bool:
    if isinstance(value, dict) and isinstance(wanted, str):
        return wanted in (value.get("name"), value.get("source"))
    return bool(value == wanted)


def _get(data: Any, key: str) -> Any:
    for part in key.split("."):
        data = data.get(part) if isinstance(data, dict) else None
    return data


SIZE = re.compile(r"^([0-9.]+) *([KMGT]i?B|x node memory)$")
UNITS = {"K": 1, "M": 2, "G": 3, "T": 4}


def _in_bytes(spec: RunSpec, machine: Machine) -> RunSpec:
    """A size of the data turned into bytes, so that the id says what it is on this machine."""
    if not isinstance(spec.data.scale, str):
        return spec
    match = SIZE.match(spec.data.scale)
    assert match is not None  # the model's pattern
    number, unit = float(match[1]), match[2]
    factor = machine.memory_bytes if unit == "x node memory" else (1024 if "i" in unit else 1000) ** UNITS[unit[0]]
    scale = f"{max(1, round(number * factor / 1000))} KB"
    return spec.model_copy(update={"data": spec.data.model_copy(update={"scale": scale})})


def _labels(runs: list[tuple[RunSpec, Point]]) -> dict[str, dict[str, str]]:
    """For each varied key, the label of each value that its column can have."""
    labels: dict[str, dict[str, str]] = {}
    for spec, point in runs:
        columns = columns_of(spec)
        for setting in point:
            if setting.label is not None:
                for key in (setting.key, *(("data.source",) if setting.key == "data" else ())):
                    labels.setdefault(key, {})[canonical_json(columns.get(key))] = setting.label
    return labels


def _drawing_problems(study: Study) -> Iterator[Problem]:
    """Figures and tables over columns that no run has, double names, missing reference files."""
    rows = [columns_of(run.spec) for run in study.runs]
    known = {key for row in rows for key in row} | set(MEASURED)
    for group, drawings in (("figures", study.figures), ("tables", study.tables)):
        names: set[str] = set()
        for index, drawing in enumerate(drawings):
            path: Path = (group, index)
            name = drawing.file_name if isinstance(drawing, FigureSpec) else drawing.name
            if name in names:
                yield Problem((*path, "name"), f"two {group} are called `{name}`", "give one of them another name")
            names.add(name)
            used = _columns_used(drawing)
            for key, column in used.items():
                if column not in known:
                    yield Problem((*path, key), f"no run of this study has a column `{column}`", nearest(column, known))
            unknown = [column for column in drawing.where if column not in known]
            for column in unknown:
                yield Problem((*path, "where", column), f"no run of this study has a column `{column}`", nearest(column, known))
            if not unknown and drawing.where and not any(all(_same(row.get(k), v) for k, v in drawing.where.items()) for row in rows):
                yield Problem((*path, "where"), "no run of this study agrees with it")
            if isinstance(drawing, FigureSpec):
                yield from _figure_problems(drawing, path)


def _columns_used(drawing: FigureSpec | TableSpec) -> dict[str, str]:
    if isinstance(drawing, TableSpec):
        return {f"values[{index}]": value for index, value in enumerate(drawing.values)}
    return {key: value for key in ("x", "y", "series", "panel") if (value := getattr(drawing, key)) is not None}


def _figure_problems(figure: FigureSpec, path: Path) -> Iterator[Problem]:
    for key in ("x", "y"):
        if figure.kind == "lines" and getattr(figure, key) is None:
            yield Problem(path, f"a figure of kind `lines` needs `{key}`")
        if figure.kind != "lines" and getattr(figure, key) is not None:
            yield Problem((*path, key), f"a figure of kind `{figure.kind}` sets `{key}` itself", "use kind `lines`")
    if figure.reference is not None:
        folder = FilePath("config/reference")
        if not (folder / f"{figure.reference}.csv").is_file():
            known = [file.stem for file in folder.glob("*.csv")]
            yield Problem((*path, "reference"), f"there is no {folder}/{figure.reference}.csv", nearest(figure.reference, known))


def _check_collisions(studies: list[Study]) -> None:
    """Two questions with one id are an error, never a mix-up."""
    seen: dict[str, RunSpec] = {}
    for study in studies:
        for run in study.runs:
            if seen.setdefault(run.id, run.spec) != run.spec:
                raise UserError(f"two different runs have the id `{run.id}`", study.name, "change a seed by one")


