"""The project: the configuration of one Snakemake call, its runs, its targets and the resources of its jobs."""

from __future__ import annotations

import shlex
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from scalestudy.dag.job_resources import JobResources
from scalestudy.dag.run_index import RunIndex
from scalestudy.dag.targets import Targets
from scalestudy.site_fault import CHANGES, SITE
from scalestudy.spec import layout
from scalestudy.spec.config import (
    BUDGET,
    DATA_FOLDER,
    FOR_EXECUTOR,
    Config,
    Site,
    changes_of,
    checked,
    read_config,
)
from scalestudy.spec.study import Study
from scalestudy.spec.yamlfile import read_yaml


class Project:
    """The configuration, and the studies of any machine and scale that a path names."""

    def __init__(self, config: Mapping[str, Any], caps: Mapping[str, Any] | None = None) -> None:
        """`caps` are Snakemake's caps on resources."""
        self.begin = time.time()
        self.site = config.get("site")
        site = Path(self.site) if self.site is not None else None
        there = site is not None and site.is_file()
        self.prepares_data = there and checked(Site, read_yaml(str(site))).prepare == "driver"
        """Whether the driver prepares data itself, in place of jobs."""
        self.config: Config = read_config("config/config.yaml", config)
        changes = config.get("set") or ()
        self.changes: list[str] = [changes] if isinstance(changes, str) else list(changes)
        """Settings that hold for every study, as `--config set=…` gives them."""
        self.runs = RunIndex(self.config, changes_of(changes))
        self.targets = Targets(self.runs)
        self.resources = JobResources(self.runs, caps or {})

    @property
    def chosen(self) -> list[Study]:
        """The configured studies that can be expanded."""
        return self.runs.chosen

    @property
    def names(self) -> list[str]:
        """The names of all configured studies, including those with errors that can be targets."""
        return sorted({*(study.name for study in self.chosen), *self.runs.wrong_names})

    @property
    def report(self) -> str:
        """The report of the configured machine and scale."""
        return str(layout.report_file(self.config.folder, self.config.scale))

    @property
    def bulk_option(self) -> str:
        """Where `scalestudy prepare` puts the bulk of data; nothing where the configuration does not say."""
        bulk = self.config.paths.data
        return f"--bulk {shlex.quote(bulk)}" if bulk else ""

    def environment(self) -> dict[str, str]:
        """What the commands of rules, and the executor, read of the configuration; the names are in spec/config.py."""
        found = {DATA_FOLDER: self.config.paths.data or "", **FOR_EXECUTOR}
        if self.site is not None:
            found[SITE] = str(self.site)
        if self.changes:
            found[CHANGES] = "\n".join(self.changes)
        if self.config.budget_gpu_hours is not None:
            found[BUDGET] = str(self.config.budget_gpu_hours)
        return found

    def requested(self, targets: Iterable[str]) -> list[Study]:
        """The studies that are targets as a whole; without a target all are."""
        names = set(targets) or {"all"}
        return [study for study in self.chosen if {"all", study.name} & names]

    def summary_command(self, targets: Iterable[str]) -> str:
        """The command that reports on the studies among the targets; nothing to report on single files."""
        names = [study.name for study in self.requested(targets)]
        if not names:
            return "true"
        config = self.config
        where = f"--machine {config.folder} --scale {config.scale}"
        return f"scalestudy summary {where} --studies {','.join(names)} --since {self.begin}"
