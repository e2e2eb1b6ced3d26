"""From a study file to its runs at one scale, each validated, in the order in which they are measured."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any

from scalestudy.claims.check import claim_problems, claims_at, written_claims
from scalestudy.errors import Problem, UserError, raise_all, raise_problems
from scalestudy.files import canonical_json
from scalestudy.spec.axes import Combination, Expansion, applied, combinations, merged
from scalestudy.spec.base import KeyPath, dotted_keys, parse, printable, shown, suggest
from scalestudy.spec.check_figures import NoRun, answer_problems, figure_problems
from scalestudy.spec.check_run import run_problems
from scalestudy.spec.columns import columns_of, columns_of_runs, matches
from scalestudy.spec.ids import configuration_id, dataset_id, own_code_problems, run_id
from scalestudy.spec.labels import counted
from scalestudy.spec.machine import Machine, geometry, machine_problems
from scalestudy.spec.machine_axes import MachineCapacity
from scalestudy.spec.run import Measure, RunSpec, one_or_more
from scalestudy.spec.sizes import in_bytes
from scalestudy.spec.study import Run, Study
from scalestudy.spec.study_file import StudySpec
from scalestudy.spec.yamlfile import YamlDocument, dotted

MAX_ERRORS = 20
KWARGS = ("model.kwargs.", "data.kwargs.")
"""Beginnings of dotted keys that may end in anything."""

READ_WHERE: dict[str, tuple[Callable[[RunSpec], object], str]] = {
    "data.resize": (lambda run: run.data.preprocess != "none", "data.preprocess"),
    "data.quality": (lambda run: run.data.preprocess == "resized", "data.preprocess: resized"),
    "data.shard.mib": (
        lambda run: run.data.to_full_dict()["shard"]["format"] in ("tar", "raw"),
        "data.shard.format: tar",
    ),
    "loader.shuffle_buffer": (lambda run: run.loader.mode == "stream", "loader.mode: stream"),
    "strategy.bucket_mib": (lambda run: getattr(run.strategy, "schedule", "") != "flat", "strategy.schedule"),
    **dict.fromkeys(
        ("stage.share", "stage.mib_per_s", "stage.from", "stage.streams", "stage.reuse"),
        (lambda run: run.stage.to, "stage.to"),
    ),
}
"""Keys without effect on some runs: a predicate for runs that read them, and the setting that makes a run read them."""

Configuration = tuple[RunSpec, Combination]
"""A validated run at repeat 0, and the combination that it is made from."""


def expand(
    document: YamlDocument,
    spec: StudySpec,
    name: str,
    scale: str,
    machine: Machine,
    machine_name: str = "local",
    changes: Mapping[str, Any] | None = None,
) -> Study:
    """All runs of a study at one scale, validated; raises UserError with all problems and their lines.

    Runs that exceed the machine are left out and listed in `left_out`, and so are the figures, tables and answers that
    they alone are for; a study of which nothing remains is wrong. `changes` replace values of keys; then duplicate runs
    count once, and what shows or judges other runs is left out.
    """
    changes = changes or {}
    base = merged(merged({}, spec.base), spec.at(scale).base)
    device = changes.get("device", base.get("device"))
    capacity = MachineCapacity(machine, machine_name, device if isinstance(device, str) else None)
    expansion = Expansion(document, spec, scale, base, capacity, changes)
    entries = combinations(expansion)
    _check_keys(expansion, entries)
    configurations = _configurations(expansion, entries)
    _check_read(expansion, configurations)
    if not configurations and expansion.beyond:
        raise expansion.beyond[0]
    if not configurations:
        raise UserError(f"`exclude` leaves no run at scale `{scale}`", expansion.where(("exclude",)), "exclude fewer")
    if changes:
        firsts = {configuration_id(each[0]): each for each in reversed(configurations)}
        configurations = list(firsts.values())[::-1]
    rounds = _rounds(configurations, expansion.repeats)
    raise_all(list(_duplicates(expansion, configurations, rounds[0])))

    def resolved(part: Any) -> Any:
        """A part of the study that chooses runs by values that the machine sets."""
        return part.model_copy(update={"where": capacity.resolve(part.where)})

    explained = _explained(expansion, configurations) if spec.explain else ()
    written = written_claims(document, name, scale)
    left_out = [f"{counted(n, 'run')}: {what}" if n else what for what, n in expansion.left_out.items()]
    if changes and written:
        left_out.append(f"{counted(len(written), 'claim')}: judged only with the keys as the file has them")
    study = Study(
        name=name,
        title=spec.title or name.replace("_", " "),
        question=spec.question,
        source=spec.source,
        scale=scale,
        repeats=expansion.repeats,
        runs=tuple(itertools.chain.from_iterable(rounds)),
        varied=tuple(dict.fromkeys(setting.key for _, entry in configurations for setting in entry.point)),
        labels=_labels(expansion, configurations),
        figures=tuple(map(resolved, spec.part(scale, "figures"))),
        tables=tuple(map(resolved, spec.part(scale, "tables"))),
        claims=() if changes else claims_at(written, capacity),
        answers=tuple(
            each.model_copy(update={"numbers": {name: resolved(one) for name, one in each.numbers.items()}})
            for each in spec.part(scale, "answers")
        ),
        target_accuracy=spec.part(scale, "target_accuracy"),
        explained=explained,
        cannot_show=(spec if scale == "paper" else spec.at(scale)).cannot_show or "",
        left_out=tuple(left_out),
    )
    rows = columns_of_runs(study.runs)
    # Another machine may have the runs that this one lacks, and the keys that they alone have.
    may_lack = bool(expansion.beyond) or any(one.of_machine for entry in entries for one in entry.point)
    keys = {*(key for row in rows for key in row), *(dotted_keys(RunSpec) if may_lack else ())}
    problems = [
        *figure_problems(study, rows, keys),
        *answer_problems(study, rows, keys),
        *claim_problems(study, may_lack),
    ]
    # With other values for keys, no part of the study needs to have its runs.
    lacking = [each for each in problems if changes or (may_lack and isinstance(each, NoRun))]

    def where(path: KeyPath) -> str:
        return written[int(path[1])].where(path[2:]) if path[0] == "claims" else expansion.where(path)

    raise_problems([each for each in problems if each not in lacking], where)
    return _without(study, {each.path[:2]: each.what for each in reversed(lacking)})


def _without(study: Study, absent: Mapping[KeyPath, str]) -> Study:
    """The study without some figures, tables and answers, with a sentence for each of them and for claims without runs."""
    fitting: dict[str, Any] = {}
    left_out = list(study.left_out)
    for part in ("figures", "tables", "answers"):
        each_by_path = {(part, index): each for index, each in enumerate(getattr(study, part))}
        fitting[part] = tuple(each for path, each in each_by_path.items() if path not in absent)
        left_out += [f"{each}: {absent[path]}" for path, each in each_by_path.items() if path in absent]
    claims = {("claims", index): claim for index, claim in enumerate(study.claims)}  # they end as *not testable here*
    left_out += [f"claim `{claim.id}`: {absent[path]}" for path, claim in claims.items() if path in absent]
    return replace(study, **fitting, left_out=tuple(left_out))


def _check_keys(expansion: Expansion, entries: list[Combination]) -> None:
    """Raise UserError for unknown dotted keys and wrong `repeats` in `include`."""
    document, run_keys = expansion.document, dotted_keys(RunSpec)
    errors = []
    places = dict(expansion.keys)
    exclude = enumerate(expansion.spec.part(expansion.scale, "exclude"))
    places |= {key: expansion.where(("exclude", index, key)) for index, rule in exclude for key in rule}
    removed = ("scales", expansion.scale, "vary")
    places |= {key: document.where((*removed, key)) for key in document.at(removed) or ()}
    for key, place in places.items():
        if key not in run_keys and key not in expansion.own_keys and not key.startswith(KWARGS):
            errors.append(UserError(f"unknown key `{printable(key)}`", place, suggest(key, run_keys)))
    most = expansion.repeats
    for each in entries:
        if type(each.repeats) is not int or not 1 <= each.repeats <= most:
            what = f"must be a whole number from 1 to the study's {most}, not {shown(each.repeats)}"
            errors.append(UserError(what, expansion.where((*each.part, "repeats")), "raise the study's `repeats`"))
    raise_all(errors)


def _check_read(expansion: Expansion, configurations: list[Configuration]) -> None:
    """Raise UserError for varied keys that have no effect on any run of the study."""
    varied = {setting.key for _, entry in configurations for setting in entry.point} - expansion.changes.keys()
    places = dict(expansion.keys)
    raise_all(
        [
            UserError(
                f"`{key}` varies, and no run of the study reads it", places[key], f"set `{remedy}`, or leave it out"
            )
            for key, (reads, remedy) in READ_WHERE.items()
            if key in varied and not any(reads(run) for run, _ in configurations)
        ]
    )


def _configurations(expansion: Expansion, entries: list[Combination]) -> list[Configuration]:
    """Every combination as a validated run."""
    capacity, exclude = expansion.capacity, expansion.spec.part(expansion.scale, "exclude")
    configurations: list[Configuration] = []
    errors: dict[tuple[KeyPath, str], UserError] = {}
    for entry in entries:
        data = applied(expansion.base, entry.point)
        # A run on nodes by name gets the ranks that fill them, where the study sets none.
        hosts, per_node = one_or_more(data.get("hosts")), data.get("ranks_per_node")
        if isinstance(hosts, tuple) and "ranks" not in data:
            data["ranks"] = len(hosts) * (per_node if type(per_node) is int else capacity.end("ranks", "node"))
        run, problems = parse(RunSpec, data)
        if entry.part == ("vary",) and any(_is_excluded(data, run, rule) for rule in exclude):
            continue
        if run is not None:
            problems = [*own_code_problems(run), *run_problems(run, capacity.machine)]
            if run.repeat:
                what = "`repeat` is set by the study's `repeats`"
                problems.append(Problem(("repeat",), what, "remove it, and set `repeats`"))
            if run.program is not None and run.program.explain:
                what = "`explain` of a program is set by the study's `explain`"
                problems.append(Problem(("program", "explain"), what, "set `explain` of the study"))
            # A run that exceeds the machine is left out, and one that does not suit a number which the machine chose.
            beyond = problems if any(setting.of_machine for setting in entry.point) else []
            if not problems:
                beyond = list(machine_problems(run, capacity.machine, capacity.name))
            if beyond:
                expansion.left_out[beyond[0].what] += entry.repeats
                expansion.beyond.extend(expansion.error(each, entry) for each in beyond)
                continue
        for problem in problems:
            errors.setdefault((problem.path, problem.what), expansion.error(problem, entry))
        if len(errors) >= MAX_ERRORS:
            break
        if run is not None and not problems:
            configurations.append((in_bytes(run, capacity.machine), entry))
    raise_all(list(errors.values()))
    return configurations


def _is_excluded(data: dict[str, Any], run: RunSpec | None, rule: Mapping[str, Any]) -> bool:
    """Whether a combination agrees with a map of `exclude`; a key that the file does not set has its default."""
    columns = {} if run is None else columns_of(run)

    def value_of(key: str) -> Any:
        value: Any = None if key == "hosts" else data
        for part in key.split("."):
            value = value.get(part) if isinstance(value, dict) else None
        return columns.get(key) if value is None else value

    # As in `where`, a model of the user's own has the name of its class.
    return all(matches(value_of(key), wanted) or matches(columns.get(key), wanted) for key, wanted in rule.items())


def _rounds(configurations: list[Configuration], repeats: int) -> list[list[Run]]:
    """The runs of each repeat."""
    rounds: list[list[Run]] = [[] for _ in range(repeats)]
    for first, entry in configurations:
        configuration, dataset = configuration_id(first), dataset_id(first.data)
        for repeat in range(entry.repeats):
            spec = first.model_copy(update={"seed": first.seed + repeat, "repeat": repeat}) if repeat else first
            rounds[repeat].append(Run(run_id(spec), spec, configuration, dataset))
    return rounds


def _explained(expansion: Expansion, configurations: list[Configuration]) -> tuple[Run, ...]:
    """A run for each configuration that explains it; none where several processes start the command."""
    if any(run.program is None for run, _ in configurations):
        remedy = "leave it out; for a run of the project's own loop, scalestudy explain RUN prints its measured parts"
        raise UserError("`explain` needs a `program`", expansion.document.where(("explain",)), remedy)
    made: dict[str, Run] = {}
    for first, entry in configurations:
        assert first.program is not None
        nodes, _ = geometry(first, expansion.capacity.machine, expansion.capacity.devices)
        if nodes > 1 or (first.program.once_per == "rank" and first.ranks > 1):
            expansion.left_out[f"several processes start its command, which is not explained ({entry})"] += 1
            continue
        program = first.program.model_copy(update={"explain": True, "metrics": {}, "resume": False})
        spec = first.model_copy(update={"program": program, "measure": Measure()})
        run = Run(run_id(spec), spec, configuration_id(spec), dataset_id(spec.data))
        made.setdefault(run.id, run)
    return tuple(made.values())


def _duplicates(expansion: Expansion, configurations: list[Configuration], runs: list[Run]) -> Iterator[UserError]:
    """Combinations that are one run: it would appear twice in every figure."""
    first: dict[str, Combination] = {}
    for run, (_, entry) in zip(runs, configurations, strict=True):
        if (other := first.setdefault(run.id, entry)) is not entry:
            remedy = f"leave one out; the other is {dotted(other.part)}: {other}"
            yield UserError(f"{entry} makes the same run as another combination", expansion.where(entry.part), remedy)


def _labels(expansion: Expansion, configurations: list[Configuration]) -> dict[str, dict[str, str]]:
    """For each varied key, the label of each value that its column can have; a size is its own label."""
    labels: dict[str, dict[str, str]] = {}
    for run, entry, setting in ((*each, setting) for each in configurations for setting in each[1].point):
        is_size = setting.key == "data.scale" and isinstance(setting.value, str)
        label = setting.label or (setting.value if is_size else None)
        if label is None:
            continue
        columns = columns_of(run)
        for key in (setting.key, "data.source") if setting.key == "data" else (setting.key,):
            value = canonical_json(columns.get(key))
            first = labels.setdefault(key, {}).setdefault(value, label)
            if first != label:
                what = f"column `{key}` has the value {value} under two labels, {shown(first)} and {shown(label)}"
                remedy = f"label what differs: vary the option alone, such as `{key}.<option>`"
                raise expansion.error(Problem((key,), what, remedy), entry)
    return labels
