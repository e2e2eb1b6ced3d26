"""What a batch system says about its cluster: nodes, queues, limits, accounts. A file per system; nothing is submitted."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from scalestudy.cluster.doctor.facts import pbs, sge, slurm
from scalestudy.cluster.doctor.facts.model import ClusterFacts, Commands

SYSTEMS = {"slurm": slurm.facts, "pbs": pbs.facts, "sge": sge.facts}


def facts_of(kind: str, run: Callable[[Sequence[str], float], Any] | None = None) -> ClusterFacts:
    """What the batch system of this kind says. What gives no answer is a note; nothing is raised."""
    from snakemake_executor_plugin_multinode.schedulers.command import run_command

    return SYSTEMS[kind](Commands(run or run_command))
