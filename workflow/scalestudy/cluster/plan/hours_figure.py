"""GPU hours of each study of a plan, from P10 to P90, as a figure on a page."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, NullLocator

from scalestudy.figures import style
from scalestudy.report.document import Box

BAND = 0.21
"""Inches of a study."""
AXIS = 0.5
"""Inches below the studies: ticks and label."""
ABOVE, MOST = 0.25, 8.0
"""Inches above them, for the legend, and inches that all studies have at most, so that one page holds them."""
LOG_FROM = 30.0
"""From this ratio of the largest to the smallest value on, the axis is logarithmic."""


@dataclass(frozen=True)
class HoursOf:
    """One study: percentiles of what it takes, and what its jobs request."""

    name: str
    p10: float
    p50: float
    p90: float
    requested: float


def height(studies: Sequence[HoursOf]) -> float:
    """Inches that the figure needs."""
    return min(BAND * len(studies), MOST) + AXIS + ABOVE


def draw(studies: Sequence[HoursOf], unit: str, figure: Figure, box: Box) -> None:
    """A bar from P10 to P90 for each study, with a mark at P50 and one at what is requested."""
    left, bottom, width, tall = box
    names = max(style.text_width(study.name, style.FONT) for study in studies) + 0.12
    page_width, page_height = figure.get_size_inches()
    axes = figure.add_axes(
        ((left + names) / page_width, (bottom + AXIS) / page_height,
         (width - names - 0.1) / page_width, (tall - AXIS - ABOVE) / page_height)
    )  # fmt: skip
    places = range(len(studies))
    bars = axes.barh(
        places, [study.p90 - study.p10 for study in studies], left=[study.p10 for study in studies], height=0.5,
        color=style.COLOURS[4], edgecolor=style.COLOURS[0], linewidth=0.6, zorder=2,
    )  # fmt: skip
    (middle,) = axes.plot(
        [study.p50 for study in studies], places, linestyle="none", marker="|", markersize=8, markeredgewidth=1.6,
        color=style.INK, zorder=3,
    )  # fmt: skip
    (requested,) = axes.plot(
        [study.requested for study in studies], places, linestyle="none", marker="D", markersize=3.4,
        color=style.COLOURS[1], zorder=3,
    )  # fmt: skip
    axes.set_yticks(list(places), [study.name for study in studies])
    axes.set_ylim(len(studies) - 0.4, -0.6)
    axes.tick_params(axis="y", length=0)
    axes.grid(visible=False, axis="y")
    least = min(study.p10 for study in studies if study.p10 > 0) if any(study.p10 > 0 for study in studies) else 0.0
    most = max(max(study.p90, study.requested) for study in studies)
    if least > 0 and most / least > LOG_FROM:
        axes.set_xscale("log")
        axes.set_xlim(least / 1.6, most * 1.6)
        axes.xaxis.set_minor_locator(NullLocator())
    else:
        axes.set_xlim(0, most * 1.05 or 1)
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.6g}"))
    axes.set_xlabel(unit)
    axes.legend(
        [bars, middle, requested], ["P10 to P90", "P50", "every job takes its whole walltime"],
        loc="lower left", bbox_to_anchor=(0, 1), ncols=3, borderaxespad=0.2, handletextpad=0.5,
    )  # fmt: skip
