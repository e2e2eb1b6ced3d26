"""What a rule asks for and the scheduler is not told: said, each name once, and never dropped in silence."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Collection, Mapping
from typing import Any

from snakemake_executor_plugin_multinode.resources import known, known_names
from snakemake_executor_plugin_multinode.schedulers import Request, Scheduler


class PassedOver:
    """Warns of resources that change nothing."""

    def __init__(self, scheduler: Scheduler, not_for_us: Collection[str], warn: Callable[[str], None]) -> None:
        self.scheduler, self.not_for_us, self.warn = scheduler, not_for_us, warn
        self._said: set[str] = set()

    def look(self, rule: str, resources: Mapping[str, Any]) -> None:
        """Warn of names that mean nothing here. Those which the workflow uses for itself are no matter of this executor."""
        for name, value in resources.items():
            if value is None or known(name) or name in self.not_for_us:
                continue
            near = difflib.get_close_matches(name, sorted(known_names()), n=1, cutoff=0.8)
            hint = (
                f"did you mean `{near[0]}`?" if near else f"if that is meant so: --multinode-workflow-resources {name}"
            )
            self._once(name, f"{rule}: the resource `{name}` is unknown to this executor and is ignored; {hint}")

    def check(self, rule: str, request: Request) -> None:
        """Warn of what this scheduler's submit line has no place for."""
        for name, remedy in self.scheduler.passed_over(request):
            self._once(name, f"{rule}: the resource `{name}` is not passed on; {remedy}")

    def _once(self, name: str, text: str) -> None:
        if name not in self._said:
            self._said.add(name)
            self.warn(text)
