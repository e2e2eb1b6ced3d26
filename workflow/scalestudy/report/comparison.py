"""A comparison of two folders of results as a page, a table, a summary in Markdown, and JUnit XML for CI."""

from __future__ import annotations

import csv
import io
import math
import xml.etree.ElementTree as ET
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import jinja2

from scalestudy.analysis.compare import Compared, MachineComparison
from scalestudy.analysis.comparison import Verdict, exit_status
from scalestudy.analysis.instruments import told
from scalestudy.analysis.recorded import Recorded
from scalestudy.claims.inference import ERROR, MIN_CAMPAIGNS, POWER
from scalestudy.figures.configurations import Name, fallback_name
from scalestudy.figures.words import printable, with_unit
from scalestudy.files import write_text
from scalestudy.spec.labels import column_label, number, unit_of

VERDICTS: tuple[Verdict, ...] = ("slower", "undecided", "faster", "same")
"""In the order in which a reader wants to see them."""
EXIT_MEANS = {0: "nothing is slower, and everything is decided", 1: "slower", 3: "undecided"}
FILE = "comparison"
WIDEST = math.log(2)
"""Intervals on the page are drawn up to a factor of two to either side."""


@dataclass(frozen=True)
class Shown:
    """One line of every output."""

    name: Name
    row: Compared

    @property
    def change(self) -> str:
        """`-4.2 % [-5.0, -3.4]`: the speed after against before, with its 95 % interval."""
        return changed(self.row.change.ratio, self.row.change.low, self.row.change.high)

    @property
    def why(self) -> str:
        """Why it is undecided, and what would decide it."""
        needed = self.row.change.repeats_needed
        repeats = f"; {needed} repeats would decide it with a probability of {100 * POWER:.0f} %" if needed else ""
        return self.row.change.reason + repeats

    @property
    def marks(self) -> str:
        """What else has to be known of its numbers."""
        said = ["emulated parts"] if self.row.emulated else []
        if self.row.disturbed:
            said.append("1 run disturbed" if self.row.disturbed == 1 else f"{self.row.disturbed} runs disturbed")
        return ", ".join(said)


def changed(ratio: float | None, low: float | None, high: float | None) -> str:
    """A ratio of speeds as a change in per cent, with no more decimals than its interval bears."""
    if ratio is None:
        return "–"
    values = [100 * (value - 1) for value in (ratio, low, high) if value is not None]
    half = (values[2] - values[1]) / 2 if len(values) == 3 else 1.0
    decimals = 0 if half >= 5 else 1 if half >= 0.5 else 2
    first, *ends = (f"{value:+.{decimals}f}" for value in values)
    return f"{first} %" + (f" [{', '.join(ends)}]" if ends else "")


def shown_lines(comparison: MachineComparison, names: Mapping[str, Name]) -> list[Shown]:
    """Every configuration that was compared: slower first, then in the order of the studies."""
    order = {configuration: place for place, configuration in enumerate(names)}
    found = [
        Shown(names.get(row.configuration) or fallback_name(row.run), row)
        for row in sorted(comparison.compared, key=lambda row: order.get(row.configuration, len(order)))
    ]
    return sorted(found, key=lambda shown: VERDICTS.index(shown.row.change.verdict))


def headline(comparison: MachineComparison) -> str:
    """The answer in one sentence."""
    counts = Counter(comparison.verdicts)
    said = ", ".join(f"{counts[verdict]} {verdict}" for verdict in VERDICTS if counts[verdict])
    total = len(comparison.compared)
    noun = "configuration" if total == 1 else "configurations"
    before, after = comparison.names
    return f"{after} against {before}: {said}, of {total} {noun}"


def facts(comparison: MachineComparison) -> list[str]:
    """How it was decided, and what has to be known."""
    margin = f"{100 * comparison.margin:g} %"
    found = [
        f"Speed is {column_label(comparison.column).lower()}"
        + (", its inverse" if unit_of(comparison.column) == "s" else "")
        + f"; a change is that of the speed, with its 95 % interval on logarithms (Student's t). Margin {margin}.",
        f"slower, faster: beyond the margin at {ERROR:.0%} over all configurations together (Holm). same: the 90 % "
        "interval lies inside the margin. undecided: neither.",
        _varying(len(comparison.before)),
    ]
    if comparison.differences:
        found.append("The instruments differ, as asked: " + "; ".join(told(comparison.differences)) + ".")
    for word, runs in (("before", comparison.only_before), ("after", comparison.only_after)):
        if runs:
            found.append(f"{len(runs)} configurations were measured only {word} and are not compared.")
    for records in (*comparison.before, comparison.after):
        if records.unreadable:
            run, why = records.unreadable[0]
            found.append(
                f"{len(records.unreadable)} results of {records.name} could not be read; the first, {run}: {why}."
            )
    return found


def _varying(campaigns: int) -> str:
    """What the interval covers."""
    if campaigns == 0:
        return "The interval covers variation between repeats, within the campaign in which all nodes were measured."
    if campaigns < MIN_CAMPAIGNS:
        return (
            "The interval covers variation between repeats, not variation between campaigns, such as another tenant of the "
            f"machine. So nothing is decided: a gate needs {MIN_CAMPAIGNS} campaigns before."
        )
    return (
        f"The interval is that of the next campaign, from the variation between the {campaigns} before: the means of the "
        "repeats that all have (prediction interval)."
    )


HEAD = (
    "study", "scale", "configuration", "verdict", "ratio", "low", "high", "n", "p", "p_holm", "margin", "repeats_needed",
    "before", "after", "column", "unit", "emulated", "disturbed", "reason",
)  # fmt: skip


def as_csv(comparison: MachineComparison, lines: Sequence[Shown]) -> str:
    """One line per configuration; `ratio`, `low` and `high` are speed after over speed before."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(HEAD)
    for shown in lines:
        change, name, row = shown.row.change, shown.name, shown.row
        values = (
            name.study, name.scale, name.text, change.verdict, change.ratio, change.low, change.high, change.n, change.p,
            change.p_holm, comparison.margin, change.repeats_needed, row.before, row.after, comparison.column,
            unit_of(comparison.column), row.emulated, row.disturbed, change.reason,
        )  # fmt: skip
        writer.writerow(
            ["" if value is None else f"{value:.6g}" if isinstance(value, float) else value for value in values]
        )
    return out.getvalue()


def as_markdown(comparison: MachineComparison, lines: Sequence[Shown]) -> str:
    """For the summary of a CI job: the answer, then what is not the same, then how it was decided."""
    told_lines = [shown for shown in lines if shown.row.change.verdict != "same"]
    text = [f"## {_cell(headline(comparison))}", ""]
    if told_lines:
        text += ["| verdict | study | configuration | speed | n | |", "|---|---|---|---:|---:|---|"]
        text += [
            f"| **{shown.row.change.verdict}** | {_cell(shown.name.study)} | {_cell(shown.name.text)} | {shown.change} "
            f"| {shown.row.change.n} | {_cell('; '.join(filter(None, (shown.why, shown.marks))))} |"
            for shown in told_lines
        ]
        text.append("")
    text += [f"- {_cell(fact)}" for fact in facts(comparison)]
    return "\n".join(text) + "\n"


def _cell(text: str) -> str:
    return printable(text).replace("|", "\\|").replace("\n", " ").replace("<", "&lt;")


def as_junit(comparison: MachineComparison, lines: Sequence[Shown]) -> str:
    """A test suite per study, a test case per configuration: slower fails, undecided is skipped."""
    root = ET.Element("testsuites", name=headline(comparison))
    for study in dict.fromkeys(shown.name.study for shown in lines):
        cases = [shown for shown in lines if shown.name.study == study]
        counts = Counter(shown.row.change.verdict for shown in cases)
        suite = ET.SubElement(
            root, "testsuite", name=study, tests=str(len(cases)), failures=str(counts["slower"]), errors="0",
            skipped=str(counts["undecided"]), time="0",
        )  # fmt: skip
        for shown in cases:
            case = ET.SubElement(
                suite, "testcase", classname=printable(study), name=printable(shown.name.text), time="0"
            )
            verdict = shown.row.change.verdict
            said = printable(f"{verdict}: speed {shown.change}, n = {shown.row.change.n}")
            if verdict == "slower":
                ET.SubElement(case, "failure", type="slower", message=said).text = printable(shown.why) or said
            elif verdict == "undecided":
                ET.SubElement(case, "skipped", message=printable(f"{said}; {shown.why}"))
            else:
                ET.SubElement(case, "system-out").text = said
    ET.indent(root)
    return '<?xml version="1.0" encoding="UTF-8"?>\n' + ET.tostring(root, encoding="unicode") + "\n"


def as_page(comparison: MachineComparison, lines: Sequence[Shown]) -> str:
    """One self-contained page."""
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(Path(__file__).parent),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=lambda value: printable(value) if isinstance(value, str) and not hasattr(value, "__html__") else value,
    )
    reach = _reach(comparison)
    counts = Counter(comparison.verdicts)
    return environment.get_template("comparison.html.j2").render(
        comparison=comparison,
        headline=headline(comparison),
        status=EXIT_MEANS[exit_status(comparison.verdicts)],
        counts=[(verdict, counts[verdict]) for verdict in VERDICTS],
        lines=[(shown, _bar(shown, reach)) for shown in lines],
        margin=_place(math.log1p(comparison.margin), reach) - 50,
        reach=f"{100 * math.expm1(reach):.0f}",
        facts=facts(comparison),
        head=[with_unit(word, unit_of(comparison.column)) for word in ("before", "after")],
        number=lambda value: "–" if value is None else number(value),
        alone=[
            (word, [fallback_name(run).text for run in runs])
            for word, runs in (("before", comparison.only_before), ("after", comparison.only_after))
            if runs
        ],
        instruments=[(records.name, str(records.folder), _started(records.runs)) for records in (*comparison.before, comparison.after)],
    )  # fmt: skip


def _started(runs: Sequence[Recorded]) -> str:
    """When the first and the last run began."""
    times = sorted(str(run.result["started"])[:16].replace("T", " ") for run in runs if run.result.get("started"))
    return f"{times[0]} to {times[-1]}" if times else "times not said"


def _reach(comparison: MachineComparison) -> float:
    """The largest change that the drawing has room for, in logarithms: what there is, twice the margin at least."""
    ends = [end for row in comparison.compared for end in (row.change.low, row.change.high, row.change.ratio) if end]
    largest = max((abs(math.log(end)) for end in ends), default=0.0)
    return min(WIDEST, max(1.05 * largest, 2 * math.log1p(comparison.margin), 0.02))


def _place(value: float, reach: float) -> float:
    """Where a log-ratio lies on a drawing from 0 to 100; what lies outside is at its edge."""
    return 50 + 50 * max(-1.0, min(1.0, value / reach))


def _bar(shown: Shown, reach: float) -> dict[str, float] | None:
    change = shown.row.change
    if change.ratio is None:
        return None
    found = {"middle": _place(math.log(change.ratio), reach)}
    if change.low is not None and change.high is not None:
        found |= {"low": _place(math.log(change.low), reach), "high": _place(math.log(change.high), reach)}
    return found


def write_comparison(comparison: MachineComparison, names: Mapping[str, Name], folder: Path) -> list[Path]:
    """Write page, table, Markdown and JUnit XML into `folder`; returns their paths."""
    lines = shown_lines(comparison, names)
    made = {"html": as_page, "csv": as_csv, "md": as_markdown, "xml": as_junit}
    files = []
    for suffix, make in made.items():
        files.append(folder / f"{FILE}.{suffix}")
        write_text(files[-1], make(comparison, lines))
    return files
