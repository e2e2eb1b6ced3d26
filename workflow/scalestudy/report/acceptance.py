"""Whether the nodes of a machine are as they should be: one page to print, a table, and the list of nodes to drain."""

from __future__ import annotations

import csv
import io
import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import jinja2

from scalestudy.analysis.fleet import Fleet, Standing, speed_text
from scalestudy.figures.words import column_label, number, printable, unit_of, with_unit
from scalestudy.files import write_text
from scalestudy.spec.layout import acceptance_folder

ACCEPTED, NOT_ACCEPTED, OPEN = 0, 1, 3
WORDS = {ACCEPTED: "Accepted", NOT_ACCEPTED: "Not accepted", OPEN: "Open"}
TONES = {"slower": "bad", "undecided": "doubt", "same": "good", "faster": "good"}
MOST_ROWS = 40
"""Lines of a table on the page: the slowest. The CSV file has all."""
ON_PAPER = 15
"""Of these, lines that are printed, so that a machine fits on one sheet."""
MOST_NAMES = 8
WIDEST = math.log(2)
COUNTERS = ("memory_errors_corrected", "memory_errors_uncorrected", "remapped_rows", "remap_faults")
NOT_COMPARED = ("instrument.code", "instrument.memory_gib")
"""What of an instrument says nothing of a node: our own code, and memory, of which the kernel takes a little more or less."""
Claim = Mapping[str, Any]


def status_of(fleet: Fleet, claims: Sequence[Claim]) -> int:
    """0 accepted; 1 where a node, a pair or an agreed value is not as it should be; 3 where that is not known yet."""
    verdicts = {claim["verdict"] for claim in claims}
    if fleet.drain() or fleet.suspects() or "not reproduced" in verdicts:
        return NOT_ACCEPTED
    return OPEN if fleet.missing or fleet.undecided or "inconclusive" in verdicts else ACCEPTED


def headline(fleet: Fleet, claims: Sequence[Claim], machine: str) -> str:
    """The answer in one sentence."""
    count, drained = len(fleet.hosts), len(fleet.drain())
    nodes = f"{count} node{'' if count == 1 else 's'}"
    said = [f"{drained} of {nodes} to drain" if drained else nodes]
    if suspects := len(fleet.suspects()):
        said.append(f"{suspects} pair{'' if suspects == 1 else 's'} to look at")
    if missed := sum(claim["verdict"] == "not reproduced" for claim in claims):
        said.append(f"{missed} of {len(claims)} agreed values missed")
    if undecided := len(fleet.undecided):
        said.append(f"{undecided} undecided")
    if fleet.missing:
        said.append(f"{fleet.missing} run{'' if fleet.missing == 1 else 's'} still to be made")
    return f"{WORDS[status_of(fleet, claims)]}: {machine}, {', '.join(said)}"


def kind_text(fleet: Fleet, kind: int) -> str:
    """`resnet50, allreduce, 8 ranks on 2 nodes`."""
    spec = fleet.kinds[kind].spec
    ranks, nodes = (
        f"{n} {word}{'' if n == 1 else 's'}" for n, word in ((spec.ranks, "rank"), (len(spec.hosts or ()), "node"))
    )
    text = f"{spec.model.name}, {spec.strategy.name}, {ranks} on {nodes}"
    alike = [
        other for other in fleet.kinds if other.spec.model.name == spec.model.name and other is not fleet.kinds[kind]
    ]
    return f"{text} (kind {kind + 1})" if any(_shape(other.spec) == _shape(spec) for other in alike) else text


def _shape(spec: Any) -> tuple[str, int, int]:
    return spec.strategy.name, spec.ranks, len(spec.hosts or ())


def unlike(fleet: Fleet) -> list[str]:
    """What nodes were found to have that most others have not: software and hardware, a sentence each."""
    of_host: dict[str, dict[str, str]] = {}
    for standing in fleet.standings:
        if len(standing.unit.hosts) == 1:
            found = of_host.setdefault(standing.unit.hosts[0], {})
            for row in standing.unit.valid:
                found |= {key: str(value) for key, value in row.items() if key.startswith("instrument.") and value}
    said = []
    for key in sorted({key for found in of_host.values() for key in found} - set(NOT_COMPARED)):
        counted = Counter(found[key] for found in of_host.values() if key in found)
        for value, _ in counted.most_common()[1:]:
            hosts = [host for host, found in of_host.items() if found.get(key) == value]
            name, most = key.removeprefix("instrument.").replace("_", " "), counted.most_common(1)[0][0]
            said.append(f"{name}: {value} on {_names(hosts)}, {most} on most others")
    return said


def _names(hosts: Sequence[str]) -> str:
    more = len(hosts) - MOST_NAMES
    return ", ".join(hosts[:MOST_NAMES]) + (f" and {more} more" if more > 0 else "")


def facts(fleet: Fleet) -> list[str]:
    """How it was decided."""
    column, margin = fleet.spec.column, f"{100 * fleet.spec.margin:g} %"
    inverse = ", its inverse" if unit_of(column) == "s" else ""
    return [
        f"Speed is {column_label(column).lower()}{inverse}. In each round a node's speed is divided by the median of the others' "
        "that did the same; the interval is Student's, 95 %, of the mean logarithm over the rounds.",
        f"slower, faster: beyond the margin of {margin}, at 5 % over all nodes and pairs together (Holm). same: the 90 % "
        f"interval lies inside the margin. The margin: {fleet.spec.margin_reason}.",
        "To drain: slower than the others; a run of it failed, is invalid or was skipped though others' of the same kind are "
        "valid; all pairs with it slow or failed, two at least; memory errors that could not be corrected, or rows of memory "
        "that are not remapped.",
    ]


HEAD = ("kind", "hosts", "verdict", "ratio", "low", "high", "n", "p", "p_holm", "repeats_needed", "mean", "column", "unit",
        "valid", "missing", *COUNTERS, "drain", "reason")  # fmt: skip


def as_csv(fleet: Fleet) -> str:
    """One line per node or pair and kind of run; `ratio` is its speed over that of the others."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(HEAD)
    drained = fleet.drain()
    for each in fleet.standings:
        change, hosts = each.change, each.unit.hosts
        counted = fleet.counted.get(hosts[0], {}) if len(hosts) == 1 else {}
        values = (
            kind_text(fleet, each.unit.kind), " ".join(hosts), change.verdict, change.ratio, change.low, change.high,
            change.n, change.p, change.p_holm, change.repeats_needed, each.mean, fleet.spec.column,
            unit_of(fleet.spec.column), len(each.unit.valid), each.missing, *(counted.get(name) for name in COUNTERS),
            any(host in drained for host in hosts), "; ".join((*each.failed, *filter(None, [change.reason]))),
        )  # fmt: skip
        writer.writerow(
            ["" if value is None else f"{value:.6g}" if isinstance(value, float) else value for value in values]
        )
    return out.getvalue()


def as_page(fleet: Fleet, claims: Sequence[Claim], machine: str) -> str:
    """One self-contained page."""
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(Path(__file__).parent),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=lambda value: printable(value) if isinstance(value, str) else value,
    )
    rows = [row for standing in fleet.standings for row in standing.unit.rows]
    status = status_of(fleet, claims)
    return environment.get_template("acceptance.html.j2").render(
        headline=headline(fleet, claims, machine),
        tone={ACCEPTED: "good", NOT_ACCEPTED: "bad", OPEN: "doubt"}[status],
        question=fleet.study.question,
        study=fleet.study.name,
        scale=fleet.study.scale,
        measured=_measured(rows),
        valid=sum(row["status"] == "valid" for row in rows),
        planned=len(rows),
        instruments=_instruments(rows),
        drain=fleet.drain(),
        suspects=fleet.suspects(),
        incomplete=list(fleet.incomplete().items()),
        claims=claims,
        kinds=list(_kinds(fleet)),
        head=with_unit("mean", unit_of(fleet.spec.column)),
        column=column_label(fleet.spec.column),
        counters=[(host, [counted.get(name) for name in COUNTERS]) for host, counted in fleet.counted.items() if any(counted.values())],
        asked=len(fleet.counted),
        unlike=unlike(fleet),
        left_out=fleet.study.left_out,
        facts=facts(fleet),
        tones=TONES,
        on_paper=ON_PAPER,
        number=lambda value: "–" if value is None else number(value),
        speed=speed_text,
    )  # fmt: skip


def _kinds(fleet: Fleet) -> Iterator[tuple[str, list[tuple[Standing, dict[str, float] | None]], int]]:
    """Of each kind of run: what it is, its slowest nodes with their drawing, and how many more there are."""
    reach = _reach(fleet)
    for kind in range(len(fleet.kinds)):
        found = [each for each in fleet.standings if each.unit.kind == kind]
        found.sort(key=lambda each: (each.change.ratio is not None, each.change.ratio or 0.0, each.unit.hosts))
        shown = [(each, _bar(each, reach)) for each in found[:MOST_ROWS]]
        yield kind_text(fleet, kind), shown, len(found) - len(shown)


def _reach(fleet: Fleet) -> float:
    ends = [end for each in fleet.standings for end in (each.change.low, each.change.high, each.change.ratio) if end]
    largest = max((abs(math.log(end)) for end in ends), default=0.0)
    return min(WIDEST, max(1.05 * largest, 2 * math.log1p(fleet.spec.margin)))


def _bar(standing: Standing, reach: float) -> dict[str, float] | None:
    """Where ratio and interval lie on a drawing from 0 to 100, and the margin on it; what lies outside is at its edge."""
    change = standing.change
    if change.ratio is None:
        return None

    def place(ratio: float) -> float:
        return 50 + 50 * max(-1.0, min(1.0, math.log(ratio) / reach))

    found = {"middle": place(change.ratio)}
    if change.low is not None and change.high is not None:
        found |= {"low": place(change.low), "high": place(change.high)}
    return found


def _measured(rows: Sequence[Mapping[str, Any]]) -> str:
    times = sorted(str(row["started"])[:16].replace("T", " ") for row in rows if row.get("started"))
    return f"{times[0]} to {times[-1]} UTC" if times else "not yet"


def _instruments(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """What was found on most nodes: processor, accelerator, torch."""
    found = []
    for key in ("cpu", "device_name", "torch"):
        counted = Counter(str(row[f"instrument.{key}"]) for row in rows if row.get(f"instrument.{key}"))
        if counted and (name := counted.most_common(1)[0][0]) != "cpu":
            found.append(f"torch {name}" if key == "torch" else name)
    return found


def write_acceptance(fleet: Fleet, claims: Sequence[Claim], machine: str) -> list[Path]:
    """Write page, table and drain list; returns their paths."""
    folder = acceptance_folder(machine, fleet.study.scale)
    made = {
        "html": as_page(fleet, claims, machine),
        "csv": as_csv(fleet),
        "drain.txt": "".join(f"{host}\n" for host in fleet.drain()),
    }
    files = []
    for suffix, text in made.items():
        files.append(folder / f"{fleet.study.name}.{suffix}")
        write_text(files[-1], text)
    return files
