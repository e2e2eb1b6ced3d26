"""Traced steps over time, in rows of each rank: what runs beside what, and what nothing hides."""

from __future__ import annotations

from dataclasses import replace

import pandas as pd

from scalestudy.figures.build import finished
from scalestudy.figures.catalogue import FigureSpec
from scalestudy.figures.chart import Axis, Chart, Panel, Track
from scalestudy.figures.groups import Row, by, grouped, selected
from scalestudy.figures.notes import not_yet
from scalestudy.measure.timers import STEP, TRACED
from scalestudy.spec.columns import is_number
from scalestudy.spec.labels import counted, number, quantity
from scalestudy.spec.layout import run_folder
from scalestudy.spec.study import Study

MAX_STEPS, MAX_RANKS = 3, 4
LOOKS = dict(zip(TRACED, (4, 0, 1, 2, 6, 5), strict=True))
"""Of each row, as the same part has it in a figure of kind `stacked`."""
SHARES = "Numbers: share of the time of the steps that are drawn"


def chart(study: Study, figure: FigureSpec, rows: pd.DataFrame, machine: str) -> Chart:
    """A panel per configuration, of its run whose traced steps have the median length. All panels last equally long."""
    runs, panels, sentences = selected(rows, figure.where), list[Panel](), list[str]()
    groups = grouped(study, figure, runs)
    for group in groups:
        for label, members in group.lines.items():
            for repeats in by(members, "configuration").values():
                title = label if len(groups) == 1 else f"{group.title}, {label}"
                traced = [row for row in repeats if row["status"] == "valid" and is_number(row.get("traced_step_s"))]
                if not traced:
                    why = not_yet(repeats) or "No valid run was traced"
                    panels.append(Panel(title, Axis("Time", "s"), Axis(""), (), blank=why))
                    continue
                shown = sorted(traced, key=lambda row: float(row["traced_step_s"]))[len(traced) // 2]
                table = pd.read_parquet(run_folder(machine, str(shown["run"])) / "timeline.parquet")
                panels.append(_panel(title, table))
                sentences.append(_what_hides_what(title, shown, len(traced)))
    last = max((panel.x.limits[1] for panel in panels if panel.x.limits), default=0.0)
    panels = [panel if panel.blank else replace(panel, x=replace(panel.x, limits=(0.0, last))) for panel in panels]
    return finished(figure, runs, groups, panels, *sentences, SHARES if sentences else "")


def _panel(title: str, table: pd.DataFrame) -> Panel:
    """Up to MAX_STEPS steps of up to MAX_RANKS ranks, in seconds since the first of them began."""
    steps = table[table["row"] == STEP].sort_values("begin_s").groupby("rank").head(MAX_STEPS)
    ranks = sorted(steps["rank"].unique())[:MAX_RANKS]
    steps = steps[steps["rank"].isin(ranks)]
    begin_s, end_s = float(steps["begin_s"].min()), float(steps["end_s"].max())
    tracks, rows = [], [row for row in LOOKS if row in set(table["row"])]
    for rank in ranks:
        own = steps[steps["rank"] == rank]
        whole_s = float((own["end_s"] - own["begin_s"]).sum())
        drawn = table[(table["rank"] == rank) & (table["begin_s"] < float(own["end_s"].max()))]
        for row in rows:
            bounds = drawn.loc[drawn["row"] == row, ["begin_s", "end_s"]].to_numpy()
            spans = tuple((begin - begin_s, end - begin_s) for begin, end in bounds.tolist())
            share = float((bounds[:, 1] - bounds[:, 0]).sum()) / whole_s
            begins, beside = row == rows[0], "< 1 %" if 0 < share < 0.005 else f"{100 * share:.0f} %"
            tracks.append(Track(f"rank {rank}: {row}" if begins else row, spans, LOOKS[row], beside, begins))
    starts = steps.loc[steps["rank"] == ranks[0], "begin_s"].tolist()
    x, divided_at = Axis("Time", "s", limits=(0.0, end_s - begin_s)), tuple(start - begin_s for start in starts)
    return Panel(title, x, Axis("Rows of each rank"), (), tracks=tuple(tracks), divided_at=divided_at)


def _what_hides_what(title: str, shown: Row, runs: int) -> str:
    clauses = [f"{title} (the median of {counted(runs, 'run')})"]
    if is_number(shown.get("exchange_hidden")):
        bare = (quantity(float(shown[column]), "s") for column in ("bare_transfer_s", "bare_wait_s"))
        clauses += [f"computation hides {number(100 * shown['exchange_hidden'], 2)} % of the exchange",
                    "of a step nothing hides {} of exchange and {} of waiting for a rank".format(*bare)]  # fmt: skip
    if is_number(shown.get("step_time_s")):
        slower = shown["traced_step_s"] / shown["step_time_s"]
        clauses.append(f"a traced step takes {number(slower, 3)} times one of the window")
    return f"{clauses[0]}: {'; '.join(clauses[1:])}"
