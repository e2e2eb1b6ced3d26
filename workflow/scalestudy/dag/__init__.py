"""What the rules of Snakemake ask: which runs, datasets, figures and tables a path or the configuration stands for.

The Snakefile reads a `Project` and makes `Rules` of it; rules take their inputs, params and resources from there.
"""

from __future__ import annotations

from scalestudy.dag.driver import (
    calm_driver,
    fix_claims,
    forget_planned_params,
    keep_outputs,
    own_folder,
    read_project,
    say_left_out,
    stop_runs_on_sigterm,
)
from scalestudy.dag.rules import Rules, code

__all__ = [
    "Rules",
    "calm_driver",
    "code",
    "fix_claims",
    "forget_planned_params",
    "keep_outputs",
    "own_folder",
    "read_project",
    "say_left_out",
    "stop_runs_on_sigterm",
]
