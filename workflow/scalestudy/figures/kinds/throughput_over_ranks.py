"""Samples per second over the number of ranks."""

from __future__ import annotations

import pandas as pd

from scalestudy.figures.build import Drawing, chart_over
from scalestudy.figures.catalogue import FigureSpec
from scalestudy.figures.chart import Chart
from scalestudy.spec.study import Study


def chart(study: Study, figure: FigureSpec, rows: pd.DataFrame) -> Chart:
    """Log over log, with ideal scaling from the fastest series at the smallest rank count."""
    return chart_over(study, figure, rows, Drawing("throughput_samples_per_s", "ranks", True, True, "throughput"))
