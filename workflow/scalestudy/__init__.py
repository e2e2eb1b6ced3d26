"""scalestudy: a reproducible evaluation of distributed deep-learning training."""

from scalestudy.program.reporting import report as report

__version__ = "0.1.0"
