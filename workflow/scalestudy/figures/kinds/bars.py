"""Any column for each value of a key: a bar with its interval."""

from __future__ import annotations

import pandas as pd

from scalestudy.figures.build import Drawing, chart_over
from scalestudy.figures.catalogue import FigureSpec
from scalestudy.figures.chart import Chart
from scalestudy.spec.study import Study


def chart(study: Study, figure: FigureSpec, rows: pd.DataFrame) -> Chart:
    """`y` for each value of `x`, one bar per series side by side; bars begin at 0."""
    assert figure.x is not None and figure.y is not None
    return chart_over(study, figure, rows, Drawing(figure.y, figure.x, bars=True))
