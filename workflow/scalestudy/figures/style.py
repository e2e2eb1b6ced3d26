"""One look for all figures: readable in grey, at one column's width, and the same bytes whenever drawn."""

from __future__ import annotations

import io
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, cast

import matplotlib as mpl
from matplotlib.figure import Figure

from scalestudy.figures.chart import Line
from scalestudy.files import write_with

PANEL_WIDTH = 3.4
"""Inches: one column of a two-column paper."""

FONT = 8.0

# Okabe and Ito (2008), ordered so that neighbours differ in lightness too; yellow is too pale for thin lines.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#E69F00", "#000000")
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "<")
DASHES: tuple[Any, ...] = (
    "solid",
    (0, (6, 1.2)),
    (0, (4, 1, 1, 1)),
    (0, (1, 0.9)),
    (0, (7, 1, 1, 1, 1, 1)),
    (0, (2.5, 0.8)),
)
HATCHES = ("", "////", "\\\\\\\\", "xxxx", "----", "++++", "||||")
PUBLISHED = "#5A5A5A"
PUBLISHED_MARKERS = ("x", "+", "1", "2")
PUBLISHED_DASHES: tuple[Any, ...] = ((0, (3, 2.2)), (0, (1.5, 1.8)), (0, (5, 2, 1.5, 2)))
IDEAL = "#B8B8B8"
INK = "#222222"
QUIET = "#5A5A5A"
SHADE = "#EFEFEF"
HOLLOW = ("extrapolated", "predicted")
"""Kinds of number with open marks."""
PREDICTED_DASH = (0, (1, 1.6))

GREY = "#777777"
RC: dict[str, Any] = {
    "font.family": "DejaVu Sans",
    "font.size": FONT,
    "axes.titlesize": FONT,
    "axes.edgecolor": GREY,
    "axes.linewidth": 0.6,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.axisbelow": True,
    "axes.grid": True,
    "grid.color": "#E4E4E4",
    "grid.linewidth": 0.5,
    # Labels are a user's text, not formulas: a lone dollar sign must not end a figure.
    "text.parse_math": False,
    **{f"{axis}tick.{key}": value for axis in "xy" for key, value in {
        "color": GREY, "labelcolor": INK, "labelsize": FONT - 0.5, "major.size": 2.5, "major.width": 0.6,
    }.items()},
    "lines.linewidth": 1.3,
    "lines.markersize": 4.6,
    "legend.frameon": False,
    "legend.fontsize": FONT - 0.5,
    "legend.labelspacing": 0.3,
    "legend.handlelength": 2.6,
    "legend.columnspacing": 1.2,
    "hatch.linewidth": 0.5,
    # Text as outlines: a reader's browser need not have the font.
    "svg.fonttype": "path",
    "svg.hashsalt": "scalestudy",
    "pdf.fonttype": 42,
}  # fmt: skip

METADATA: dict[str, dict[str, Any]] = {
    "svg": {"Date": None, "Creator": "scalestudy"},
    "pdf": {"CreationDate": None, "ModDate": None, "Creator": "scalestudy"},
    "png": {"Software": "scalestudy"},
}


@contextmanager
def styled() -> Iterator[None]:
    """Matplotlib's defaults with this project's on top, whatever the user's matplotlibrc says."""
    with mpl.rc_context():
        mpl.rcdefaults()
        mpl.rcParams.update(cast(Any, RC))
        yield


def save(figure: Figure, svg: Path) -> list[Path]:
    """Write SVG, PDF and PNG side by side, each whole or not at all."""
    files = []
    for suffix, metadata in METADATA.items():
        file = svg.with_suffix(f".{suffix}")
        write_with(file, partial(figure.savefig, format=suffix, dpi=200, metadata=metadata))
        files.append(file)
    return files


def svg_bytes(figure: Figure) -> bytes:
    """The figure as SVG, for a page."""
    out = io.BytesIO()
    figure.savefig(out, format="svg", metadata=METADATA["svg"])
    return out.getvalue()


def line_look(line: Line) -> dict[str, Any]:
    """Colour, dash and marker of a line; open markers where none of it was measured in full."""
    if line.role == "ideal":
        return {"color": IDEAL, "linewidth": 1.0, "linestyle": "solid", "marker": "none"}
    if line.role == "published":
        return {
            "color": PUBLISHED,
            "linewidth": 0.9,
            "linestyle": PUBLISHED_DASHES[line.style % len(PUBLISHED_DASHES)],
            "marker": PUBLISHED_MARKERS[line.style % len(PUBLISHED_MARKERS)],
            "markersize": 5,
            "markeredgewidth": 1.2,
        }
    colour, mark = _colour_and_mark(line)
    kinds = {point.kind for point in line.points}
    return {
        "color": colour,
        "linestyle": PREDICTED_DASH if kinds == {"predicted"} else DASHES[mark % len(DASHES)],
        "marker": MARKERS[mark % len(MARKERS)],
        "markerfacecolor": "white" if kinds and kinds <= set(HOLLOW) else colour,
        "markeredgecolor": colour,
        "markeredgewidth": 1.1,
    }


def _colour_and_mark(line: Line) -> tuple[str, int]:
    return COLOURS[line.style % len(COLOURS)], line.style if line.mark is None else line.mark


def bar_look(line: Line, hollow: bool = False) -> dict[str, Any]:
    """Face, edge and hatching of a bar; its hatching tells it apart in grey, and from others of its colour."""
    colour, mark = _colour_and_mark(line)
    return {
        "facecolor": "white" if hollow else colour,
        "edgecolor": colour if hollow else "white",
        "hatch": HATCHES[mark % len(HATCHES)],
        "linewidth": 0.9 if hollow else 0.4,
    }
