"""The answer to a study's question: sentences whose numbers are those of its summary.csv.

A sentence is declared in the study file (`answers`), or puts the first figure of lines or bars into words. One whose number is
missing, or comes from a configuration with a run that is not valid, is left out and named.
"""

from __future__ import annotations

import csv
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from scalestudy.analysis.rounding import with_interval
from scalestudy.analysis.stats import FEWEST
from scalestudy.figures.catalogue import FigureSpec
from scalestudy.figures.words import friendly
from scalestudy.files import canonical_json
from scalestudy.results.stored import read_result
from scalestudy.spec.answer import HALF_WIDTH, UNITS, AnswerSpec, configurations, fields_of
from scalestudy.spec.columns import MEASURED
from scalestudy.spec.emulated import emulated_parts
from scalestudy.spec.labels import column_label, number, unit_of, value_text
from scalestudy.spec.layout import RESULTS, study_folder
from scalestudy.spec.matching import matches
from scalestudy.spec.step_times import published_step_time
from scalestudy.spec.study import Study

MAX_SERIES = 3
"""Series of a figure that are put into words."""
OF_THE_HOST = ("loader_samples_per_s", "stage_s", "staged_bytes", "preparation_s", "preparation_cpu_s", "dataset_bytes")
"""Columns that emulated compute has no part in."""
MAX_SENTENCES = 8
"""Sentences with which terminal and report begin."""
AXES = {"time_over_ranks": ("ranks", "training_time_s"), "throughput_over_ranks": ("ranks", "throughput_samples_per_s")}
"""Columns of kinds of figure that set them."""

Rows = Mapping[str, Mapping[str, str]]
"""Rows of summary.csv by configuration."""


class NoNumber(Exception):
    """A number that an answer needs does not exist; the message says why."""


@dataclass(frozen=True)
class Number:
    """A mean with its 95 % interval, and what has to be known of its runs; without an interval `low` and `high` are None."""

    mean: float
    low: float | None
    high: float | None
    n: int = 0
    disturbed: int = 0
    emulated: tuple[str, ...] = ()

    def over(self, other: Number) -> Number:
        """The ratio of two numbers. The half-widths of the logarithms add as squares: the interval of two independent
        means, and too wide a one where rounds shift both alike.
        """
        if not (self.mean > 0 and other.mean > 0):
            raise NoNumber("a ratio needs numbers above 0")
        below = _half(self.low, self.mean), _half(other.mean, other.high)
        above = _half(self.mean, self.high), _half(other.low, other.mean)
        ratio = self.mean / other.mean
        return Number(
            ratio,
            None if None in below else ratio * math.exp(-math.hypot(*below)),  # type: ignore[arg-type]
            None if None in above else ratio * math.exp(math.hypot(*above)),  # type: ignore[arg-type]
            min((n for n in (self.n, other.n) if n), default=0),
            self.disturbed + other.disturbed,
            tuple(dict.fromkeys((*self.emulated, *other.emulated))),
        )

    def text(self, form: str) -> str:
        """The number in a unit, with its interval as far as it has one; its half-width alone for `±%`."""
        if form == HALF_WIDTH:
            if self.low is None or self.high is None:
                raise NoNumber(f"{self.n} runs give no interval")
            return f"{number(100 * max(self.high / self.mean - 1, 1 - self.low / self.mean), 2)} %"
        ends = [None if end is None else end / UNITS[form] for end in (self.low, self.high)]
        return f"{with_interval(self.mean / UNITS[form], *ends)} {form}".strip()


def _half(low: float | None, high: float | None) -> float | None:
    """Half-width on logarithms; None without an interval."""
    return math.log(high / low) if low and high and low > 0 else None


@dataclass(frozen=True)
class Answer:
    """What is found of one study's question: sentences, and why a sentence is left out."""

    sentences: tuple[str, ...] = ()
    left_out: tuple[str, ...] = ()
    declared: bool = False


def answer_of(study: Study, machine: str, results: Path = RESULTS) -> Answer:
    """The answer to a study's question, from its summary below `results`."""
    folder = study_folder(machine, study.scale, study.name).relative_to(RESULTS)
    rows = _rows(results / folder / "summary.csv")
    if not rows:
        return Answer(left_out=("its runs are not summarised",), declared=bool(study.answers))
    if not study.answers:
        return _of_figure(study, rows)
    said, left_out = [], []
    for answer in study.answers:
        try:
            said.append(_sentence(study, answer, rows))
        except NoNumber as error:
            left_out.append(f"“{answer.say.partition('{')[0].strip()} …”: {error}")
    return Answer(tuple(said), tuple(left_out), declared=True)


def first_answers(studies: Sequence[Study], machine: str) -> tuple[list[tuple[str, str]], list[str]]:
    """The first sentences of all answers, each with its study's title, those that a study declares before those of figures;
    and what is left out.
    """
    answers = [(study, answer_of(study, machine)) for study in studies]
    answers.sort(key=lambda pair: not pair[1].declared)
    said = [(study.title, sentence) for study, answer in answers for sentence in answer.sentences]
    left_out = [
        f"{study.title}: {reason}" for study, answer in answers if answer.declared for reason in answer.left_out
    ]
    if len(said) > MAX_SENTENCES:
        left_out.append(f"{len(said) - MAX_SENTENCES} more sentences, each below its study's question in the report")
    return said[:MAX_SENTENCES], left_out


def this_machine(studies: Sequence[Study], machine: str) -> str:
    """`machine local: AMD EPYC, 2 cores. 70 of 70 runs valid, 2 disturbed by other programs.`"""
    results = [read_result(machine, run) for run in {run.id: run for study in studies for run in study.runs}.values()]
    made = [result for result in results if result is not None and result["status"] == "valid"]
    found = {
        key: " / ".join(
            dict.fromkeys(str(value) for result in made if (value := (result.get("instrument") or {}).get(key)))
        )
        for key in ("cpu", "cores", "memory_gib", "device_name")
    }
    hardware = [
        found["cpu"],
        found["cores"] and f"{found['cores']} cores",
        found["memory_gib"] and f"{found['memory_gib']} GiB",
    ]
    device = "" if found["device_name"] == "cpu" else found["device_name"]
    disturbed = sum(bool(result.get("disturbed")) for result in made)
    said = f"{len(made)} of {len(results)} runs valid" + (
        f", {disturbed} disturbed by other programs" if disturbed else ""
    )
    return f"This machine: {', '.join(filter(None, [*hardware, device])) or machine}. {said}."


def _rows(file: Path) -> Rows:
    if not file.is_file():
        return {}
    with file.open(encoding="utf-8", newline="") as lines:
        return {row["configuration"]: row for row in csv.DictReader(lines)}


def _sentence(study: Study, answer: AnswerSpec, rows: Rows) -> str:
    numbers: dict[str, Number] = {}
    for name, spec in answer.numbers.items():
        if spec.ratio is not None:
            numbers[name] = numbers[spec.ratio[0]].over(numbers[spec.ratio[1]])
        elif spec.column is not None:
            found = configurations(study.runs, spec.where)
            if len(found) != 1:
                raise NoNumber(f"no configuration has {canonical_json(spec.where)}")
            numbers[name] = _number(study, found[0], spec.column, rows)
        else:
            batch = spec.batch or 1
            rate = batch / published_step_time(spec.model or "", spec.accelerator or "", batch).seconds
            numbers[name] = Number(rate, rate, rate)
    parts = [text + ("" if name is None else numbers[name].text(form)) for text, name, form in fields_of(answer.say)]
    return f"{''.join(parts).rstrip('.')}{_marks(list(numbers.values()))}."


def _number(study: Study, configuration: str, column: str, rows: Rows) -> Number:
    """A column of a configuration of which every planned run is valid."""
    row = rows.get(configuration, {})
    counts = {key.removeprefix("n_"): int(value or 0) for key, value in row.items() if key.startswith("n_")}
    valid, disturbed = counts.pop("valid", 0), counts.pop("disturbed", 0)
    if not valid or any(counts.values()):
        reasons = [
            f"{count} of {valid + sum(counts.values())} runs {status}" for status, count in counts.items() if count
        ]
        raise NoNumber(", ".join(reasons) or "no run is valid")
    mean, low, high = (
        float(row[name]) if row.get(name) else None for name in (column, f"{column}_low", f"{column}_high")
    )
    if mean is None or not math.isfinite(mean) or (low is None and valid >= FEWEST):
        raise NoNumber(f"not all of its runs have {column}")
    spec = next(run.spec for run in study.runs if run.configuration == configuration)
    emulated = tuple(part for part in emulated_parts(spec) if part != "compute" or column not in OF_THE_HOST)
    return Number(mean, low, high, valid, disturbed, emulated)


def _marks(numbers: Sequence[Number]) -> str:
    """What has to be known of a sentence's numbers, in brackets; nothing where all is measured, undisturbed and repeated."""
    measured = [number for number in numbers if number.n]
    emulated = tuple(dict.fromkeys(part for number in measured for part in number.emulated))
    disturbed = max((number.disturbed for number in measured), default=0)
    fewest = min((number.n for number in measured if number.low is None), default=0)
    marks = [
        f"on emulated {' and '.join(emulated)}" if emulated else "",
        "with disturbed runs" if disturbed else "",
        f"n = {fewest}, so without an interval" if fewest else "",
    ]
    return f" ({'; '.join(filter(None, marks))})" if any(marks) else ""


def _of_figure(study: Study, rows: Rows) -> Answer:
    """The first figure of lines or bars in words: of each series its first and last point, and their ratio."""
    for figure in study.figures:
        x, y = AXES.get(figure.kind, (figure.x, figure.y))
        if figure.kind in ("lines", "bars", *AXES) and x and y in MEASURED and x not in MEASURED:
            return _first_and_last(study, figure, x, str(y), rows)
    return Answer(left_out=("no figure of lines or bars, and no `answers` in its file",))


def _first_and_last(study: Study, figure: FigureSpec, x: str, y: str, rows: Rows) -> Answer:
    specs = {run.configuration: run.columns for run in study.runs if run.repeat == 0}
    chosen = {
        name: row
        for name, row in specs.items()
        if all(matches(row.get(key), wanted) for key, wanted in figure.where.items() if key in row)
    }
    keys = [key for key in (figure.panel, figure.series or "strategy") if key and key != x]
    groups: dict[str, list[str]] = {}
    for name, row in chosen.items():
        label = ", ".join(value_text(study, key, row.get(key), named=True) for key in keys if _varies(chosen, key))
        groups.setdefault(label, []).append(name)
    said, left_out = [], []
    for label, names in groups.items():
        places = [canonical_json(specs[name].get(x)) for name in names]
        if len(names) < 2:
            continue
        if len(set(places)) < len(places):
            return Answer(left_out=(f"figure `{figure.file_name}` has several configurations at one {x}",))
        if all(isinstance(specs[name].get(x), (int, float)) for name in names):
            names.sort(key=lambda name: specs[name][x])
        try:
            said.append(
                _step(
                    study,
                    label,
                    x,
                    y,
                    [(specs[name].get(x), _number(study, name, y, rows)) for name in (names[0], names[-1])],
                )
            )
        except NoNumber as error:
            left_out.append(f"{label or column_label(y)}: {error}")
    if len(said) > MAX_SERIES:
        left_out.append(f"{len(said) - MAX_SERIES} more series of figure `{figure.file_name}`")
    return Answer(tuple(said[:MAX_SERIES]), tuple(left_out))


def _step(study: Study, label: str, x: str, y: str, ends: Sequence[tuple[object, Number]]) -> str:
    """`Ring: throughput from 100 ± 2 samples/s at 1 rank to 160 ± 3 at 2 ranks: 1.60 ± 0.04 times.`"""
    (first, before), (last, after) = ends
    factor, unit = friendly(unit_of(y), [before.mean, after.mean])
    texts = [
        with_interval(
            number.mean / factor, *(None if end is None else end / factor for end in (number.low, number.high))
        )
        for number in (before, after)
    ]
    ratio = ""
    if before.mean > 0 and after.mean > 0 and unit_of(y):
        ratio = f": {after.over(before).text('')} times"
    places = [value_text(study, x, value, named=True) for value in (first, last)]
    name = column_label(y) if not label else f"{label}: {column_label(y).lower()}"
    said = f"{name} goes from {texts[0]} {unit} at {places[0]} to {texts[1]} {unit} at {places[1]}{ratio}"
    return said.replace("  ", " ") + _marks([before, after]) + "."


def _varies(rows: Mapping[str, Mapping[str, object]], key: str) -> bool:
    return len({canonical_json(row.get(key)) for row in rows.values()}) > 1
