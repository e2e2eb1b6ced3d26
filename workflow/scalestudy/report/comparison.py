"""Names of configurations in the words of their studies; a comparison of folders of results, as lines and as a table."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import get_args

import pandas as pd

from scalestudy.analysis.compare import Change, Compared, MachineComparison, Verdict, told
from scalestudy.analysis.workload import varied_columns
from scalestudy.claims.inference import ERROR, MIN_CAMPAIGNS, POWER
from scalestudy.errors import UserError
from scalestudy.files import write_text
from scalestudy.spec.base import SCALES
from scalestudy.spec.columns import columns_of
from scalestudy.spec.config import read_machine
from scalestudy.spec.labels import column_label, configuration_text, counted, unit_of
from scalestudy.spec.layout import STUDIES
from scalestudy.spec.machine import Machine
from scalestudy.spec.read_study import find_studies

VERDICTS: tuple[Verdict, ...] = get_args(Verdict)


@dataclass(frozen=True)
class Name:
    """A configuration in the words of one study."""

    study: str
    scale: str
    text: str


def configuration_names(machine_name: str, study: str | None = None) -> dict[str, Name]:
    """Names by configuration, of one study or of all, at all scales; of several studies that share one, the first's.

    Empty where there are no studies here, as when results of others are read.
    """
    if study is None and not any(STUDIES.glob("*.yaml")):
        return {}
    try:
        machine = read_machine(machine_name)
    except UserError:
        machine = Machine()  # of another project
    names: dict[str, Name] = {}
    for scale in SCALES:
        # Studies that are wrong, or have no such scale, name nothing.
        for each in find_studies(None if study is None else [study], scale, machine).studies:
            keys = varied_columns(each)
            for run in each.runs:
                text = configuration_text(each, keys, columns_of(run.spec)) or each.title
                names.setdefault(run.configuration, Name(each.name, scale, text))
    return names


def change_text(change: Change) -> str:
    """`-4.2 % [-5.0, -3.4]`: the speed after against before, with no more decimals than its 95 % interval bears."""
    if change.ratio is None:
        return "–"
    values = [100 * (value - 1) for value in (change.ratio, change.low, change.high) if value is not None]
    half = (values[2] - values[1]) / 2 if len(values) == 3 else 1.0
    decimals = 0 if half >= 5 else 1 if half >= 0.5 else 2
    first, *ends = (f"{value:+.{decimals}f}" for value in values)
    return f"{first} %" + (f" [{', '.join(ends)}]" if ends else "")


def remarks(row: Compared) -> str:
    """Why it is undecided and what would decide it, and all that has to be known of its numbers."""
    needed = row.change.repeats_needed
    repeats = f"{needed} repeats would decide it with a probability of {100 * POWER:.0f} %" if needed else ""
    disturbed = f"{counted(row.disturbed, 'run')} disturbed" if row.disturbed else ""
    reported = "reported by the program" if row.reported else ""
    marks = ", ".join(filter(None, (reported, "emulated parts" if row.emulated else "", disturbed)))
    return "; ".join(filter(None, (row.change.reason, repeats, marks)))


def named(comparison: MachineComparison, names: Mapping[str, Name]) -> list[tuple[Name, Compared]]:
    """Every configuration that was compared, with its name: slower first, then in the order of the studies."""
    order = {configuration: place for place, configuration in enumerate(names)}

    def place(row: Compared) -> tuple[int, int]:
        return VERDICTS.index(row.change.verdict), order.get(row.run.configuration, len(order))

    named_rows = []
    for row in sorted(comparison.compared, key=place):
        slug = row.run.run.rpartition("-")[0].rpartition(".r")[0]
        other = Name("other", "", f"{slug} ({row.run.configuration})")  # no study here has it
        named_rows.append((names.get(row.run.configuration, other), row))
    return named_rows


def headline(comparison: MachineComparison) -> str:
    """The answer in one sentence."""
    counts = Counter(row.change.verdict for row in comparison.compared)
    verdict_text = ", ".join(f"{counts[verdict]} {verdict}" for verdict in VERDICTS if counts[verdict])
    before, after = ", ".join(records.name for records in comparison.before), comparison.after.name
    sides = f"{after} against {before}" if before else f"nodes of {after} against the other nodes"
    return f"{sides}: {verdict_text}, of {counted(len(comparison.compared), 'configuration')}"


def notes(comparison: MachineComparison) -> list[str]:
    """How it was decided, and what has to be known."""
    inverse = ", its inverse" if unit_of(comparison.column) == "s" else ""
    campaigns = len(comparison.before)
    texts = [
        f"Speed is {column_label(comparison.column).lower()}{inverse}; a change is that of the speed, with its 95 % interval "
        f"on logarithms, around Student's and that of the median. Margin {100 * comparison.margin:g} %.",
        f"slower, faster: beyond the margin at {ERROR:.0%} over all configurations together (Holm). same: the 90 % "
        "interval lies inside the margin. undecided: neither.",
    ]
    if campaigns == 0:
        texts.append(
            "The interval covers variation between repeats, within the campaign in which all nodes were measured."
        )
    elif campaigns < MIN_CAMPAIGNS:
        texts.append(
            "The interval covers variation between repeats, not variation between campaigns, such as another tenant of the "
            f"machine. So nothing is decided: a gate needs {MIN_CAMPAIGNS} campaigns before."
        )
    else:
        texts.append(
            f"The interval is that of the next campaign, from the variation between the {campaigns} before: the means of the "
            "repeats that all have (prediction interval)."
        )
    if comparison.differences:
        texts.append("The instruments differ, as asked: " + "; ".join(told(comparison.differences)) + ".")
    if comparison.left_out:
        texts.append(f"Not measured in all folders, and not compared: {counted(comparison.left_out, 'configuration')}.")
    for records in (*comparison.before, comparison.after):
        if records.unreadable:
            (run, why), count = records.unreadable[0], len(records.unreadable)
            texts.append(f"{count} results of {records.name} could not be read; the first, {run}: {why}.")
    return texts


def write_comparison(comparison: MachineComparison, lines: Sequence[tuple[Name, Compared]], file: Path) -> None:
    """Write a row per configuration; `ratio`, `low` and `high` are speed after over speed before."""
    rows = []
    for name, row in lines:
        column, unit = comparison.column, unit_of(comparison.column)
        rows.append(
            {
                "study": name.study, "scale": name.scale, "configuration": name.text, **asdict(row.change),
                "margin": comparison.margin, "before": row.before, "after": row.after, "column": column, "unit": unit,
                "reported": row.reported, "emulated": row.emulated, "disturbed": row.disturbed,
            }
        )  # fmt: skip
    write_text(file, pd.DataFrame(rows).to_csv(index=False, float_format="%.6g"))
