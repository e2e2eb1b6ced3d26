"""When the runs would run, by study: the schedule behind the makespan, as a figure."""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from matplotlib.figure import Figure

from scalestudy.cluster.plan.planned import Plan, PlannedJob
from scalestudy.cluster.plan.show import QUEUEING
from scalestudy.errors import UserError
from scalestudy.figures import style
from scalestudy.files import write_with

EXPECTED_HIGH = 2
LANE_IN, LEAST_BAND_IN, MOST_BAND_IN = 0.06, 0.16, 0.42
"""Inches: a lane where there is room, and the band of a study."""
GAP_IN = 0.08
LONG_H = 72.0
"""From this many hours on the axis is in days."""
SUFFIXES = (".svg", ".pdf", ".png")
Bars = list[tuple[int, float, float]]


def draw(plan: Plan, out: Path) -> None:
    """Write the Gantt figure: a band per study, in it a bar per job, at the high end of what is expected."""
    if out.suffix not in SUFFIXES:
        raise UserError(f"`{out.suffix}` is not a kind of figure", str(out), f"valid: {', '.join(SUFFIXES)}")
    jobs = [job for job in plan.submitted if job.seconds[EXPECTED_HIGH] > 0]
    studies = list(dict.fromkeys(row.study for row in plan.rows if any(job in jobs for job in row.jobs)))
    hours = max(plan.makespan_s[EXPECTED_HIGH] / 3600, 1e-9)
    unit, per_h = ("Days", 1 / 24) if hours >= LONG_H else ("Hours", 1.0)
    bands = {study: _lanes(plan, [job for job in jobs if job.study == study]) for study in studies}
    heights = {study: _height(bars) for study, bars in bands.items()}
    total = sum(heights.values()) + GAP_IN * max(1, len(studies))
    with style.styled():
        figure = Figure(figsize=(2 * style.PANEL_WIDTH, total + 0.75), layout="constrained")
        axes = figure.add_subplot()
        top, places = GAP_IN / 2, []
        for number, study in enumerate(studies):
            lane = heights[study] / (1 + max(lane for lane, _, _ in bands[study]))
            for row, start, length in bands[study]:
                # The edge keeps a job visible that is too short for this axis.
                axes.barh(
                    top + (row + 0.5) * lane, length * per_h, left=start * per_h, height=0.7 * lane,
                    color=style.COLOURS[0], edgecolor=style.COLOURS[0], linewidth=0.3,
                )  # fmt: skip
            places.append(top + heights[study] / 2)
            top += heights[study] + GAP_IN
            if number < len(studies) - 1:
                axes.axhline(top - GAP_IN / 2, color="#C8C8C8", linewidth=0.5)
        axes.set_ylim(total, 0)
        axes.set_yticks(places, [f"{study} ({len(bands[study])})" for study in studies])
        axes.tick_params(axis="y", length=0)
        axes.grid(visible=False, axis="y")
        axes.set_xlim(0, 1.02 * hours * per_h)
        axes.set_xlabel(f"{unit} since the start, high end of what is expected; {QUEUEING}")
        axes.set_title(f"{plan.machine_name}, {plan.scale}: {len(jobs)} jobs, a bar each", loc="left")
        write_with(out, partial(figure.savefig, dpi=200, metadata=style.METADATA[out.suffix[1:]]))


def _height(bars: Bars) -> float:
    lanes = 1 + max(lane for lane, _, _ in bars)
    return min(MOST_BAND_IN, max(LEAST_BAND_IN, lanes * LANE_IN))


def _lanes(plan: Plan, jobs: Sequence[PlannedJob]) -> Bars:
    """Each job's lane, start and length in hours; no two bars of a lane overlap."""
    begun = plan.begun[EXPECTED_HIGH]
    placed: Bars = []
    free: list[tuple[float, int]] = []
    used = 0
    for job in sorted(jobs, key=lambda job: begun[job.seen.id]):
        start, length = begun[job.seen.id], job.seconds[EXPECTED_HIGH]
        if free and free[0][0] <= start:
            lane = heapq.heappop(free)[1]
        else:
            lane, used = used, used + 1
        heapq.heappush(free, (start + length, lane))
        placed.append((lane, start / 3600, length / 3600))
    return placed
