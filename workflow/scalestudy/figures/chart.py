"""What a figure shows, before it is drawn: panels, lines, points, axes and notes. Plain data."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class Point:
    """One value with its interval, in the column's own unit."""

    x: float
    y: float
    low: float | None = None
    high: float | None = None
    n: int = 1
    kind: Literal["measured", "extrapolated", "predicted", "reported", "published", "derived"] = "measured"
    repeats: tuple[float, ...] = ()
    """The single values that the mean is of."""
    emulated: tuple[str, ...] = ()
    """Parts of the system that were emulated in any of them."""
    disturbed: int = 0
    """How many of them were disturbed by other processes."""
    own: float | None = None
    """Half the interval that extrapolation gives a single value, as a share of it; the largest of the repeats."""


@dataclass(frozen=True)
class Line:
    """Points that belong together. `style` picks colour and dash, `mark` the marker; a `band` has its interval shaded.

    Not `connected`: places on the horizontal axis have no order that a line could follow. A `bar` stands on the axis; a
    `part` stands on the part before it.
    """

    label: str
    points: tuple[Point, ...]
    role: Literal["series", "band", "bar", "part", "published", "ideal"] = "series"
    style: int = 0
    mark: int | None = None
    """Unset: as `style`."""
    connected: bool = True


@dataclass(frozen=True)
class Track:
    """A row of a timeline: begins and ends on the horizontal axis, and what stands at its right end."""

    label: str
    spans: tuple[tuple[float, float], ...]
    style: int
    beside: str = ""
    begins: bool = False
    """It is the first row of a group, which a line sets apart."""


@dataclass(frozen=True)
class Axis:
    """One axis: what it says, the unit of its values, and how it is divided."""

    label: str
    unit: str = ""
    log: bool = False
    ticks: tuple[float, ...] = ()
    """Places that get a tick; empty: chosen when drawn."""
    categories: tuple[str, ...] = ()
    """Names of the places 0, 1, 2, …; empty: a number axis."""
    limits: tuple[float, float] | None = None
    """Ends that the axis does not go beyond."""


@dataclass(frozen=True)
class Panel:
    """One pair of axes. `shaded_from`: from this x on, ranks share cores, `shaded_why` says how. No lines: `blank` says why."""

    title: str
    x: Axis
    y: Axis
    lines: tuple[Line, ...]
    shaded_from: float | None = None
    shaded_why: str = ""
    blank: str = ""
    mark: tuple[float, str] | None = None
    """A place on the horizontal axis that a thin line marks, and what it says."""
    tracks: tuple[Track, ...] = ()
    """Rows of a timeline, in place of lines."""
    divided_at: tuple[float, ...] = ()
    """Where thin lines divide them."""


@dataclass(frozen=True)
class Chart:
    """One figure. `notes` follow its caption; `sources` are the full references of published numbers."""

    title: str
    panels: tuple[Panel, ...]
    notes: tuple[str, ...] = ()
    sources: tuple[str, ...] = ()

    @property
    def lines(self) -> list[Line]:
        """All lines of all panels."""
        return [line for panel in self.panels for line in panel.lines]
