"""The Snakefile reads a `Project` and asks it: which runs, datasets, figures and tables a path or the configuration means."""

from __future__ import annotations

from scalestudy.dag.ask import Ask, code
from scalestudy.dag.driver import before_first_job, read_project

__all__ = ["Ask", "before_first_job", "code", "read_project"]
