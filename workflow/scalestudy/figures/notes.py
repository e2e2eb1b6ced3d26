"""Notes on a figure or table: numbers of runs, kinds of number, emulation, missing runs with their reasons; captions."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from scalestudy.analysis.scaling import Base
from scalestudy.analysis.stats import CENSORED, with_interval
from scalestudy.claims.model import MIN_REPEATS
from scalestudy.errors import UserError
from scalestudy.figures.chart import Chart, Line, Panel
from scalestudy.files import canonical_json
from scalestudy.spec.columns import MAX_TESTED_FACTOR, VOLATILE, is_number
from scalestudy.spec.labels import counted, listed, number
from scalestudy.spec.run import INFINITE, emulated_parts, is_compute_emulated

if TYPE_CHECKING:
    from scalestudy.spec.step_times import PublishedStepTime

Row = Mapping[str, Any]
DISTURBED = "†"
"""Marks a mean that includes disturbed runs: other processes used the host during them."""
MAX_REASON = 110
MAX_VALUES = 3

INSTRUMENT = {
    "cpu": "processor",
    "cores": "cores",
    "memory_gib": "memory (GiB)",
    "device_name": "device",
    "torch": "torch",
    "nccl": "NCCL",
    "mpi": "MPI",
    "driver": "driver",
    "python": "Python",
    "system": "system",
    "allocator": "allocator",
    "huge_pages": "transparent huge pages",
    "governor": "governor",
    "clock": "clock",
    "decoder": "images by",
    "code": "measuring code",
}
"""Parts of the instrument, in words."""
STATED = {
    "network": "The network is emulated: links between nodes have a stated rate",
    "storage": "Storage is emulated: reads wait for a stated rate and latency",
    "page cache": "The page cache is emulated: it holds no more than a stated size of the data",
}


def repeats(lines: Iterable[Line]) -> str:
    """`n = 3 runs per point (dots); whiskers: 95 % interval of the mean`."""
    measured = [line for line in lines if line.role in ("series", "band", "bar", "part")]
    counts = sorted({point.n for line in measured for point in line.points})
    if not counts:
        return ""
    text = f"n = {' to '.join(map(str, dict.fromkeys((counts[0], counts[-1]))))} run{'' if counts == [1] else 's'} per "
    roles = {line.role for line in measured}
    if "part" in roles:
        return f"{text}bar; arithmetic means"
    if counts[-1] < MIN_REPEATS:
        return f"{text}point{' (dots)' if counts[-1] > 1 else ''}: too few for an interval"
    few = f" (from {MIN_REPEATS} runs on)" if counts[0] < MIN_REPEATS else ""
    drawn = "point; band" if "band" in roles else "point (dots); whiskers"
    return f"{text}{drawn}: 95 % interval of the mean{few}"


def extrapolated(rows: Iterable[Row], lines: Iterable[Line]) -> list[str]:
    """Notes where any point is not measured: extrapolated, with the factor from window to training, predicted, reported."""
    points = [point for line in lines if line.role in ("series", "bar") for point in line.points]
    kinds, note_texts = {point.kind for point in points}, []
    if "extrapolated" in kinds:
        own = max((point.own for point in points if point.own is not None), default=None)
        unsure = "" if own is None else f", which alone is uncertain by up to ±{number(100 * own, 2)} %"
        note_texts.append(f"Extrapolated: the full training, from a measured window{unsure}")
    if "predicted" in kinds:
        note_texts.append("Predicted: before the first step, not measured")
    if "reported" in kinds:
        note_texts.append("Reported by the program, not measured")
    valid = [row for row in rows if row["status"] == "valid"]
    given = [float(row["extrapolation_factor"]) for row in valid if is_number(row.get("extrapolation_factor"))]
    if "extrapolated" in kinds and given:
        ends = dict.fromkeys(f"{float(f'{value:.2g}'):,.10g}" for value in (min(given), max(given)))
        untested = max(given) > MAX_TESTED_FACTOR
        beyond = f"; beyond {MAX_TESTED_FACTOR:,.0f} the interval is not known" if untested else ""
        note_texts.append(f"From window to whole training: a factor of {' to '.join(ends)}{beyond}")
    return note_texts


def bases(shown: Sequence[tuple[str, Base]]) -> list[str]:
    """What efficiencies are relative to, with its absolute rate: one note for each workload, by its panel's title."""
    several = len({title for title, _ in shown}) > 1
    return [f"{title}: {_base(base)}" if several and title else _base(base) for title, base in dict.fromkeys(shown)]


def _base(base: Base) -> str:
    rate = with_interval(base.rate.mean, base.rate.low, base.rate.high)
    pooled = "of all series at their fewest ranks, as no run is without exchange"
    alone = "without exchange" if base.kind == "single" else pooled
    names = listed((name.replace("_", " ") for name in base.strategies), 4)
    how = f"mean of {counted(base.rate.n, 'run')} {alone} ({names})"
    where = "one rank" if base.ranks == 1 else f"{base.ranks} ranks"
    return f"Base: {rate} samples/s on {where} (N₀ = {base.ranks}), {how}"


def _measured_apart(valid: Sequence[Row]) -> list[str]:
    """The note where rows of several periods of measuring stand side by side."""
    periods = Counter(row["period"] for row in valid if row["period"] > 0)
    if len(periods) < 2:
        return []
    days = {number: min(str(row["started"])[:10] for row in valid if row["period"] == number) for number in periods}
    named = [f"{days[number]} ({counted(periods[number], 'run')})" for number in sorted(periods)]
    return [f"Measured apart: {listed(named, 4)}; a change of the machine in between cannot be told from an effect"]


def emulated(rows: Iterable[Row]) -> str:
    """What of the runs is emulated: by which published step times, and what stays real."""
    rows, sentences = list(rows), []
    if waiting := [row for row in rows if _accelerator(row) not in ("", INFINITE)]:
        sentences.append(f"Emulated compute waits for published step times ({_step_times(waiting)}); {_real(waiting)}")
    if instant := [row for row in rows if _accelerator(row) == INFINITE]:
        sentences.append(f"emulated:infinite computes in no time; {_real(instant)}")
    return ". ".join([*sentences, *(STATED[part] for part in emulated_parts(rows) if part in STATED)])


def by_construction(rows: Iterable[Row], published: Iterable[Mapping[str, str]]) -> str:
    """The note where emulated numbers stand beside published ones of the same models, which they repeat."""
    models = {row.get("model") or None for row in published}
    beside = [row for row in rows if row["status"] == "valid" and _accelerator(row) not in ("", INFINITE)]
    beside = [row for row in beside if row.get("model") in models or None in models]
    sources = dict.fromkeys(used.source.partition(",")[0] for row in beside for used in _published(row))
    if not sources:
        return ""
    return (
        "Emulated points agree with published ones by construction: the emulated accelerator waits for the step time "
        f"published in {listed(sources, 3)}; only what comes on top of it was measured"
    )


def _accelerator(row: Row) -> str:
    """The accelerator that is emulated, empty where compute is real."""
    return str(row["device"]).removeprefix("emulated:") if is_compute_emulated(row) else ""


def _published(row: Row) -> tuple[PublishedStepTime, ...]:
    """The rows of step_times.csv that a run waited for; none where the table no longer has them."""
    from scalestudy.spec.step_times import published_rows

    try:
        return published_rows(str(row["model"]), _accelerator(row), int(row["batch.per_rank"]))
    except (UserError, KeyError, TypeError, ValueError):
        return ()


def _step_times(rows: Sequence[Row]) -> str:
    """`resnet50 on p100, batch 16 from 32 and 64`."""
    names: dict[str, None] = {}
    for row in rows:
        name = f"{row.get('model')} on {_accelerator(row)}"
        if batches := [used.batch for used in _published(row)]:
            name += f", batch {int(row['batch.per_rank'])}"
            name += f" from {' and '.join(map(str, batches))}" if batches != [int(row["batch.per_rank"])] else ""
        names[name] = None
    return "; ".join([*list(names)[:MAX_VALUES], *(["and others"] if len(names) > MAX_VALUES else [])])


def _real(rows: Sequence[Row]) -> str:
    """What else these runs do, and whether it is real."""
    made = [row for row in rows if "synthetic" in (row.get("data.source"), row.get("loader.mode"))]
    real = ["loading"] if len(made) < len(rows) else []
    real += ["exchange"] if any((row.get("ranks") or 1) > 1 for row in rows) else []
    phrases = [f"{' and '.join(real)} {'is' if len(real) == 1 else 'are'} real"] if real else []
    if made:
        everywhere = len(made) == len(rows)
        phrases.append("data is made in memory, nothing is loaded" if everywhere else "some data is made in memory")
    return ", ".join(phrases)


def missing(rows: Sequence[Row]) -> str:
    """`2 of 18 runs missing: 1 invalid (loss not finite), 1 skipped (…)`."""
    absent = [row for row in rows if row["status"] != "valid"]
    if not absent:
        return ""
    parts = []
    for status, word in (("invalid", "invalid"), ("skipped", "skipped"), ("missing", "not run")):
        reasons = Counter(" ".join(str(row["reason"]).split()) for row in absent if row["status"] == status)
        if reasons:
            told = [reason for reason, _ in reasons.most_common() if reason not in ("", "no result yet")]
            why = [text if len(text) <= MAX_REASON else text[: MAX_REASON - 1].rstrip() + "…" for text in told]
            parts.append(f"{reasons.total()} {word}" + (f" ({listed(why, 2)})" if why else ""))
    return f"{len(absent)} of {len(rows)} runs missing: {', '.join(parts)}"


def censored(rows: Sequence[Row], column: str) -> str:
    """The note where configurations are not drawn because runs ended before they had reached the column's value."""
    ended = sum(row["status"] == "valid" and row.get(f"{column}_kind") == CENSORED for row in rows)
    left_out = f"Configurations with runs that ended without reaching it are not drawn: {counted(ended, 'run')}"
    return left_out if ended else ""


def not_yet(rows: Sequence[Row]) -> str:
    """Why a panel without any valid run is blank; empty where there is one."""
    if not rows or any(row["status"] == "valid" for row in rows):
        return ""
    return "No valid run yet: " + missing(rows).partition(": ")[2]


def trust(rows: Sequence[Row]) -> list[str]:
    """Disturbance, drift, periods and instruments that differ, among valid rows."""
    valid = [row for row in rows if row["status"] == "valid"]
    note_texts = []
    if count := sum(bool(row["disturbed"]) for row in valid):
        share = f"({count} of {len(valid)})"
        note_texts.append(f"{DISTURBED}: includes disturbed runs {share}: other processes used the host during them")
    if drifted := [row for row in valid if row["drifted"]]:
        worst = max(drifted, key=lambda row: abs(row["drift"]))
        percent = with_interval(*(100 * worst[name] for name in ("drift", "drift_low", "drift_high")))
        of_all = f"by {percent} % from the mean of all rounds, over all configurations"
        note_texts.append(f"Drift: in round {worst['round'] + 1} throughput differs {of_all}")
    note_texts += _measured_apart(valid)
    if mixed := _differing(valid):
        note_texts.append(f"Instruments mixed: {listed(mixed, 4)}")
    return note_texts


def _differing(rows: Sequence[Row]) -> list[str]:
    """What the instruments of these rows differ in."""
    differences = []
    for key in sorted({key for row in rows for key in row if key.startswith("instrument.")}):
        name = key.removeprefix("instrument.")
        # Of runs without switches of libraries, the environment is empty.
        known = [row for row in rows if row[key] or name == "environment"]
        used = [row for row in known if not (name == "device_name" and is_compute_emulated(row))]
        if name == "data" and len({(_form(row), row[key]) for row in used}) == len(set(map(_form, used))):
            continue  # what differs is the data that the study varies
        values, word = sorted({str(row[key] or "none") for row in used}), INSTRUMENT.get(name, name)
        if len(values) > 1 and name not in VOLATILE:
            several = f"{len(values)} kinds of {word}"
            differences.append(f"{word} {' / '.join(values)}" if len(values) <= MAX_VALUES else several)
    return differences


def _form(row: Row) -> str:
    """The form of a run's data, which its dataset is made from."""
    return canonical_json({key: value for key, value in row.items() if key.startswith("data.")})


# The figure in words


def title_of(chart: Chart) -> str:
    """The figure's title, or y over x."""
    return chart.title or _axes(chart.panels[0])


def caption(chart: Chart) -> str:
    """One line: what is drawn, n, the whiskers, the marks."""
    axes = dict.fromkeys(_axes(panel) for panel in chart.panels if panel.lines or panel.tracks)
    return "; ".join(filter(None, [*axes, repeats(chart.lines), *_marks(chart.lines)]))


def caption_file(chart: Chart) -> str:
    """Title and caption in one line, then a line for each note and each source of published numbers."""
    first = " ".join(f"{text}." for text in (chart.title, caption(chart)) if text)
    return "\n".join([first, *(f"{note}." for note in chart.notes), *chart.sources]) + "\n"


def _axes(panel: Panel) -> str:
    return f"{panel.y.label} over {panel.x.label.lower()}" if panel.x.label else panel.y.label


def _marks(lines: Iterable[Line]) -> list[str]:
    """Meaning of the marks that are drawn."""
    points = [point for line in lines if line.role not in ("published", "ideal") for point in line.points]
    kinds = [kind for kind in ("extrapolated", "predicted") if any(point.kind == kind for point in points)]
    emulated = dict.fromkeys(part for point in points for part in point.emulated)
    return [
        *([f"hollow: {' or '.join(kinds)}"] if kinds else []),
        *([f"dot inside: {', '.join(emulated)} emulated"] if emulated else []),
        *([f"{DISTURBED}: with disturbed runs"] if any(point.disturbed for point in points) else []),
    ]
