"""When the runs would run, by study: the schedule behind the makespan, as a figure."""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from matplotlib.figure import Figure
from matplotlib.patches import Patch

from scalestudy.cluster.plan import Plan, PlannedJob
from scalestudy.cluster.show import QUEUEING
from scalestudy.errors import UserError
from scalestudy.figures import style
from scalestudy.files import write_with

EXPECTED_HIGH = 2
LANE_IN = 0.09
MOST_HEIGHT_IN = 9.0
SUFFIXES = (".svg", ".pdf", ".png")


def draw(plan: Plan, out: Path) -> None:
    """Write the Gantt figure: a bar per run at the high end of what is expected, a colour per study."""
    if out.suffix not in SUFFIXES:
        raise UserError(f"`{out.suffix}` is no kind of figure", str(out), f"valid: {', '.join(SUFFIXES)}")
    jobs = [job for job in plan.submitted if job.seconds[EXPECTED_HIGH] > 0]
    studies = list(dict.fromkeys(row.study for row in plan.rows if any(job in jobs for job in row.jobs)))
    hours = max(plan.makespan_s[EXPECTED_HIGH] / 3600, 1e-9)
    with style.styled():
        rows, lanes = _lanes(plan, jobs, studies)
        height = min(MOST_HEIGHT_IN, 1.4 + LANE_IN * lanes)
        figure = Figure(figsize=(2 * style.PANEL_WIDTH, height), layout="constrained")
        axes = figure.add_subplot()
        for study, lane, start, length in rows:
            colour = style.COLOURS[studies.index(study) % len(style.COLOURS)]
            axes.barh(lane, length, left=start, height=0.8, color=colour, linewidth=0)
        axes.set_ylim(lanes, -1)
        axes.set_yticks([])
        axes.set_xlim(0, 1.02 * hours)
        axes.set_xlabel(f"Hours since the start, high end of what is expected; {QUEUEING}")
        axes.set_title(f"{plan.machine_name}, {plan.scale}: {len(jobs)} jobs", loc="left")
        handles = [Patch(color=style.COLOURS[i % len(style.COLOURS)], label=name) for i, name in enumerate(studies)]
        if handles:
            figure.legend(handles=handles, loc="outside lower left", ncols=min(4, len(handles)))
        write_with(out, partial(figure.savefig, dpi=200, metadata=style.METADATA[out.suffix[1:]]))


def _lanes(
    plan: Plan, jobs: Sequence[PlannedJob], studies: Sequence[str]
) -> tuple[list[tuple[str, int, float, float]], int]:
    """Each job's study, lane, start and length in hours; within a study no two bars of a lane overlap."""
    begun, placed, base = plan.begun[EXPECTED_HIGH], [], 0
    for study in studies:
        own = sorted((job for job in jobs if job.study == study), key=lambda job: begun[job.seen.id])
        free: list[tuple[int, int]] = []
        used = 0
        for job in own:
            start, length = begun[job.seen.id], job.seconds[EXPECTED_HIGH]
            if free and free[0][0] <= start:
                lane = heapq.heappop(free)[1]
            else:
                lane, used = used, used + 1
            heapq.heappush(free, (start + length, lane))
            placed.append((study, base + lane, start / 3600, length / 3600))
        base += used + 1
    return placed, base
