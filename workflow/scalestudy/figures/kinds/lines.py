"""Any column over any other."""

from __future__ import annotations

import pandas as pd

from scalestudy.figures.build import Drawing, chart_over
from scalestudy.figures.catalogue import FigureSpec
from scalestudy.figures.chart import Chart
from scalestudy.spec.study import Study


def chart(study: Study, figure: FigureSpec, rows: pd.DataFrame) -> Chart:
    """`y` over `x`, as the study names them, and what was predicted of it."""
    assert figure.x is not None and figure.y is not None
    return chart_over(study, figure, rows, Drawing(figure.y, figure.x, prediction=figure.prediction))
