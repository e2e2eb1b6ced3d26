"""What jobs ask their scheduler for, and in which order they go."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any

from scalestudy.cluster.plan.expected import TimeEstimate
from scalestudy.cluster.resources import Planner, Resources
from scalestudy.dag.run_index import RunIndex
from scalestudy.errors import UserError
from scalestudy.spec.config import read_machine


class JobResources:
    """Resources of runs and datasets, each worked out once; `caps` are those of Snakemake's `--resources`."""

    def __init__(self, runs: RunIndex, caps: Mapping[str, Any]) -> None:
        self.runs, self.caps = runs, caps
        self._planners: dict[str, Planner] = {}
        self._datasets: dict[str, tuple[Resources, TimeEstimate]] = {}

    def planner(self, machine: str) -> Planner:
        """What the runs on a machine ask for and are expected to take."""
        if machine not in self._planners:
            self._planners[machine] = Planner(machine, read_machine(machine))
        return self._planners[machine]

    def of_run(self, machine: str, run: str) -> Resources:
        """What a run's job requests."""
        return self.planner(machine).of(self.runs.run(machine, run))[0]

    def of_dataset(self, dataset: str) -> tuple[Resources, TimeEstimate]:
        """What preparing a dataset requests, and what it is expected to take."""
        if dataset not in self._datasets:
            spec = self.runs.run_with(dataset).spec
            self._datasets[dataset] = self.planner(self.runs.config.folder).of_dataset(spec)
        return self._datasets[dataset]

    def gpu_slots(self, machine: str, run: str) -> int:
        """All devices of a run, for `--resources gpu_slots=N`: a cap on what runs at the same time."""
        found = self.of_run(machine, run)
        slots, cap = found.gpus_held, self.caps.get("gpu_slots")
        if isinstance(cap, int) and slots > cap:
            raise UserError(f"a run needs {slots} devices, more than gpu_slots={cap}", run, "raise the cap")
        return slots

    def priority(self, machine: str, run: str) -> int:
        """Study by study, in each round by round, and within a round in the order that the seed draws.

        So the first figure comes early, drift hits all configurations, and what a run leaves behind (a warm cache, a hot
        processor) does not always meet the same next one.
        """
        planned = self.runs.planned(machine, run)
        return 1_000_000 - 10_000 * min(planned.study, 90) - min(planned.place, 9_999)

    @property
    def jobs_at_once(self) -> int | None:
        """How many measured runs the driver lets run at the same time; None for any number."""
        caps = [self.caps.get("_nodes"), self.caps.get("measure")]
        known = [cap for cap in caps if isinstance(cap, int) and 0 < cap < sys.maxsize]
        return min(known) if known else None
