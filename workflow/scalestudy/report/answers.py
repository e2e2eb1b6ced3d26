"""The answer to a study's question: sentences whose numbers are those of its summary.csv.

A sentence is declared in the study file (`answers`), or puts the first figure of lines or bars into words. One whose number is
missing, or comes from a configuration with a run that is not valid, is left out and named.
"""

from __future__ import annotations

import csv
import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from scalestudy.analysis.stats import with_interval
from scalestudy.claims.model import MIN_REPEATS
from scalestudy.figures.catalogue import HALF_WIDTH, OWN_UNIT, AnswerSpec, FigureSpec, divided, fields_of
from scalestudy.files import canonical_json
from scalestudy.results.stored import read_result
from scalestudy.spec.columns import MAX_TESTED_FACTOR, MEASURED, STATUSES
from scalestudy.spec.labels import column_label, friendly, number, unit_of, value_text
from scalestudy.spec.layout import result_file, study_folder
from scalestudy.spec.run import emulated_parts
from scalestudy.spec.step_times import emulated_step_time
from scalestudy.spec.study import MACHINE_STUDIES, Study

MAX_SERIES = 3
"""Series of a figure that are put into words."""
KINDS = {"extrapolated": "extrapolated from a window", "predicted": "predicted", "reported": "reported by the program"}
"""Kinds of number that are not measured, in words."""
IN_WORDS = ("lines", "bars", "time_over_ranks", "throughput_over_ranks")
"""Kinds of figure that are."""
MAX_SENTENCES = 8
"""Sentences with which terminal and report begin."""

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
    kind: str = ""
    unit: str = ""
    """Unit of its column; of a ratio, none where both have one unit."""
    places: frozenset[str] = frozenset()
    """Periods and instruments of its runs, from summary.csv."""

    def over(self, other: Number) -> Number:
        """The ratio of two numbers; what has to be known of their runs stays with the two. The half-widths of the logarithms
        add as squares: the interval of two independent means, and too wide a one where rounds shift both alike.
        """
        if not (self.mean > 0 and other.mean > 0):
            raise NoNumber("a ratio needs numbers above 0")
        ratio = self.mean / other.mean
        low = high = None
        if self.low and self.high and other.low and other.high and min(self.low, other.low) > 0:
            below = math.hypot(math.log(self.mean / self.low), math.log(other.high / other.mean))
            above = math.hypot(math.log(self.high / self.mean), math.log(other.mean / other.low))
            low, high = ratio * math.exp(-below), ratio * math.exp(above)
        n = min((n for n in (self.n, other.n) if n), default=0)
        unit = f"{self.unit}/{other.unit}" if self.unit and other.unit and self.unit != other.unit else ""
        return Number(ratio, low, high, n, unit=unit)

    def text(self, form: str) -> str:
        """The number, with its interval as far as it has one; its half-width alone for `±%`."""
        if form == HALF_WIDTH:
            if self.low is None or self.high is None:
                raise NoNumber(f"{self.n} runs give no interval")
            if self.mean <= 0:
                raise NoNumber("a number of 0 or less has no half-width in per cent")
            return f"{number(100 * max(self.high / self.mean - 1, 1 - self.low / self.mean), 2)} %"
        written = friendly(self.unit, [self.mean]) if form == OWN_UNIT else divided(form, self.unit)
        if written is None:
            raise NoNumber(f"a number {f'in {self.unit}' if self.unit else 'without unit'} cannot be written in {form}")
        factor, unit = written
        return f"{with_interval(self.mean, self.low, self.high, factor)} {unit}".strip()


@dataclass(frozen=True)
class Answer:
    """What is found of one study's question: sentences, and why a sentence is left out."""

    sentences: tuple[str, ...] = ()
    left_out: tuple[str, ...] = ()


def answer_of(study: Study, machine: str) -> Answer:
    """The answer to a study's question, from its summary."""
    file = study_folder(machine, study.scale, study.name) / "summary.csv"
    rows: Rows = {}
    if file.is_file():
        # The id of a configuration does not tell what else makes a run another one, such as the user's own code.
        missing = {run.configuration for run in study.runs if not result_file(machine, run.id).exists()}
        with file.open(encoding="utf-8", newline="") as lines:
            table = {row["configuration"]: row for row in csv.DictReader(lines)}
        rows = {name: row for name, row in table.items() if name not in missing or int(row["n_missing"])}
    if not rows:
        return Answer(left_out=("its runs are not summarised",))
    if not study.answers:
        return _of_figure(study, rows)
    sentences, left_out = [], []
    for answer in study.answers:
        try:
            sentences.append(_sentence(study, answer, rows))
        except NoNumber as error:
            left_out.append(f"{answer}: {error}")
    return Answer(tuple(sentences), tuple(left_out))


def first_answers(studies: Sequence[Study], machine: str) -> tuple[list[tuple[Study, str]], list[str]]:
    """The first sentences of all answers, each with its study; and what is left out.

    Studies of the machine itself come first, then sentences that a study declares, then those of figures.
    """
    answers = [(study, answer_of(study, machine)) for study in studies]
    answers.sort(key=lambda pair: (pair[0].name not in MACHINE_STUDIES, not pair[0].answers))
    texts = [(study, sentence) for study, answer in answers for sentence in answer.sentences]
    left_out = [f"{study.title}: {reason}" for study, answer in answers if study.answers for reason in answer.left_out]
    if len(texts) > MAX_SENTENCES:
        left_out.append(f"{len(texts) - MAX_SENTENCES} more sentences, each below its study's question in the report")
    return texts[:MAX_SENTENCES], left_out


def this_machine(studies: Sequence[Study], machine: str) -> str:
    """`This machine: AMD EPYC, 2 cores, 8 GiB. 70 of 70 runs valid, 2 disturbed by other programs.`"""
    results = [read_result(machine, run) for run in {run.id: run for study in studies for run in study.runs}.values()]
    made = [result for result in results if result is not None and result["status"] == "valid"]
    facts = []
    for key, unit in (("cpu", ""), ("cores", " cores"), ("memory_gib", " GiB"), ("device_name", "")):
        values = ((result.get("instrument") or {}).get(key) for result in made)
        text = " / ".join(dict.fromkeys(str(value) for value in values if value))
        if text and (key, text) != ("device_name", "cpu"):
            facts.append(f"{text}{unit}")
    disturbed = sum(bool(result.get("disturbed")) for result in made)
    unquiet = f", {disturbed} disturbed by other programs" if disturbed else ""
    return f"This machine: {', '.join(facts) or machine}. {len(made)} of {len(results)} runs valid{unquiet}."


def warnings_of(studies: Sequence[Study], machine: str) -> list[str]:
    """What valid runs warn of, each kind once: `37 × the second half of the window was …`, the most frequent first."""
    kinds: dict[str, list[str]] = {}
    for run in {run.id: run for study in studies for run in study.runs}.values():
        result = read_result(machine, run) or {}
        for warning in result.get("warnings") or () if result.get("status") == "valid" else ():
            kinds.setdefault(re.sub(r"\d[\d.,]*", "#", warning), []).append(warning)
    warning_groups = sorted(kinds.values(), key=len, reverse=True)
    return [f"{len(each)} × {each[0]}" if len(each) > 1 else each[0] for each in warning_groups]


def _sentence(study: Study, answer: AnswerSpec, rows: Rows) -> str:
    numbers: dict[str, Number] = {}
    for name, spec in answer.numbers.items():
        if spec.ratio is not None:
            numbers[name] = numbers[spec.ratio[0]].over(numbers[spec.ratio[1]])
        elif spec.column is not None:
            configurations = list(study.configurations(spec.where))
            if len(configurations) != 1:
                raise NoNumber(f"no configuration has {canonical_json(spec.where)}")
            numbers[name] = _number(study, configurations[0], spec.column, rows)
        else:
            batch = spec.batch or 1
            rate = batch / emulated_step_time(spec.model or "", spec.accelerator or "", batch)
            numbers[name] = Number(rate, rate, rate)
    parts = [text + ("" if name is None else numbers[name].text(form)) for text, name, form in fields_of(answer.say)]
    return f"{''.join(parts).rstrip('.')}{_marks(list(numbers.values()))}."


def _number(study: Study, configuration: str, column: str, rows: Rows) -> Number:
    """A column of a configuration of which every planned run is valid."""
    row = rows.get(configuration, {})
    counts = {status: int(row.get(f"n_{status}") or 0) for status in STATUSES}
    planned, valid, disturbed = sum(counts.values()), counts.pop("valid"), int(row.get("n_disturbed") or 0)
    if not valid or valid < planned:
        reasons = [f"{count} of {planned} runs {status}" for status, count in counts.items() if count]
        raise NoNumber(", ".join(reasons) or "no run is valid")
    names = (column, f"{column}_low", f"{column}_high")
    mean, low, high = (float(row[name]) if row.get(name) else None for name in names)
    kind = row.get(f"{column}_kind") or ""
    if low is None and valid >= MIN_REPEATS and kind == "extrapolated":
        raise NoNumber(f"{column} is extrapolated beyond the tested factor of {MAX_TESTED_FACTOR:,.0f}")
    if mean is None or not math.isfinite(mean) or (low is None and valid >= MIN_REPEATS):
        raise NoNumber(f"not all of its runs have {column}")
    emulated = emulated_parts([study.configurations({})[configuration]], column)
    places = frozenset(map(canonical_json, json.loads(row.get("measured_in") or "[]")))
    return Number(mean, low, high, valid, disturbed, emulated, kind, unit_of(column), places)


def _marks(numbers: Sequence[Number]) -> str:
    """What has to be known of a sentence's numbers, in brackets; nothing where all is measured, undisturbed and repeated."""
    measured = [number for number in numbers if number.n]
    emulated = dict.fromkeys(part for number in measured for part in number.emulated)
    kinds = dict.fromkeys(number.kind for number in measured if number.kind in KINDS)
    fewest = min((number.n for number in measured if number.low is None), default=0)
    why = f"n = {fewest}, so without an interval" if fewest < MIN_REPEATS else "without an interval: a number may be 0"
    marks = [
        f"on emulated {' and '.join(emulated)}" if emulated else "",
        *(KINDS[kind] for kind in kinds),
        "disturbed runs" if any(number.disturbed for number in measured) else "",
        "measured apart" if len(frozenset().union(*(number.places for number in measured))) > 1 else "",
        why if fewest else "",
    ]
    return f" ({'; '.join(filter(None, marks))})" if any(marks) else ""


def _of_figure(study: Study, rows: Rows) -> Answer:
    """The first figure of lines or bars in words: of each series its first and last point, and their ratio."""
    for figure in study.figures:
        x, y = figure.axes
        if figure.kind in IN_WORDS and y in MEASURED and x not in MEASURED:
            return _first_and_last(study, figure, x, y, rows)
    return Answer(left_out=("no figure of lines or bars, and no `answers` in its file",))


def _first_and_last(study: Study, figure: FigureSpec, x: str, y: str, rows: Rows) -> Answer:
    where = {key: value for key, value in figure.where.items() if key not in MEASURED}
    chosen = study.configurations(where)
    varied = [
        key
        for key in (figure.panel, figure.series)
        if key and key != x and len({canonical_json(row.get(key)) for row in chosen.values()}) > 1
    ]
    series: dict[str, list[str]] = {}
    for name, row in chosen.items():
        label = ", ".join(value_text(study, key, row.get(key), named=True) for key in varied)
        series.setdefault(label, []).append(name)
    sentences, left_out = [], []
    for label, names in series.items():
        places = [chosen[name].get(x) for name in names]
        if len(set(map(canonical_json, places))) < len(places):
            return Answer(left_out=(f"figure `{figure.file_name}` has several configurations at one {x}",))
        if len(names) < 2:
            continue
        if all(isinstance(place, (int, float)) for place in places):
            names.sort(key=lambda name: chosen[name][x])
        ends = [value_text(study, x, chosen[name].get(x), named=True) for name in (names[0], names[-1])]
        try:
            sentences.append(_step(label, y, ends, *(_number(study, name, y, rows) for name in (names[0], names[-1]))))
        except NoNumber as error:
            left_out.append(f"{label or column_label(y)}: {error}")
    if not sentences and not left_out:
        left_out.append(f"figure `{figure.file_name}` has one value of `{x}`")
    if len(sentences) > MAX_SERIES:
        left_out.append(f"{len(sentences) - MAX_SERIES} more series of figure `{figure.file_name}`")
    return Answer(tuple(sentences[:MAX_SERIES]), tuple(left_out))


def _step(label: str, y: str, places: Sequence[str], before: Number, after: Number) -> str:
    """`Ring: throughput goes from 100 ± 2 samples/s at 1 rank to 160 ± 3 samples/s at 2 ranks: 1.60 ± 0.04 times.`"""
    factor, unit = friendly(unit_of(y), [before.mean, after.mean])
    ends = [f"{with_interval(each.mean, each.low, each.high, factor)} {unit}".strip() for each in (before, after)]
    has_ratio = before.mean > 0 and after.mean > 0 and unit_of(y)
    ratio = f": {after.over(before).text('')} times" if has_ratio else ""
    name = column_label(y) if not label else f"{label}: {column_label(y).lower()}"
    return f"{name} goes from {ends[0]} at {places[0]} to {ends[1]} at {places[1]}{ratio}{_marks([before, after])}."
