"""README.md, the pins and the source agree."""

from __future__ import annotations

import re
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
import yaml

import snakemake_executor_plugin_multinode as plugin
from snakemake_executor_plugin_multinode import executor, resources
from snakemake_executor_plugin_multinode.schedulers import scheduler_of
from snakemake_executor_plugin_multinode.schedulers.pbs import Pbs
from snakemake_executor_plugin_multinode.schedulers.scheduler import Request, values_of
from snakemake_executor_plugin_multinode.schedulers.sge import Sge
from snakemake_executor_plugin_multinode.schedulers.slurm import Slurm
from snakemake_executor_plugin_multinode.site import Container, SchedulerSettings, Site

PROJECT = Path(__file__).resolve().parents[1]
README = (PROJECT / "README.md").read_text(encoding="utf-8")
SOURCES = sorted((PROJECT / "src").rglob("*.py"))
BLOCKS: list[dict[str, Any]] = [yaml.safe_load(text) for text in re.findall(r"```yaml\n(.*?)```", README, re.DOTALL)]


@pytest.mark.parametrize("kind", ["slurm", "pbs", "sge"])
def test_the_site_files_of_the_readme_are_taken(kind: str) -> None:
    (site,) = [block for block in BLOCKS if block.get("scheduler", {}).get("kind") == kind]
    Site.model_validate(site)
    request = Request("a", Path("/a.sh"), Path("/a.log"), 1, 1, 1, 4, 8000, 60, None)
    assert scheduler_of(site["scheduler"]).submit_command(request)[-1] == "/a.sh"


def test_the_built_in_requests_are_those_of_the_readme() -> None:
    (shown,) = [block for block in BLOCKS if set(block) == {"slurm", "pbs", "sge"}]
    assert shown == {kind.kind: kind.default_request for kind in (Slurm, Pbs, Sge)}


def test_every_option_variable_key_resource_and_value_is_in_the_readme() -> None:
    options = [f"`--multinode-{field.name.replace('_', '-')} " for field in fields(plugin.ExecutorSettings)]
    variables = sorted(set(re.findall(r"MULTINODE_[A-Z_]+", "".join(file.read_text() for file in SOURCES))))
    names = [
        *resources.COUNTS,
        *resources.WORDS,
        *resources.ALIASES.values(),
        *Site.model_fields,
        "chain_state",
        "hosts",
        "slurm_extra",
        "pbs_extra",
        "sge_extra",
        *SchedulerSettings.model_fields,
        *Container.model_fields,
    ]
    missing = [word for word in [*options, *variables] if word not in README]
    missing += [name for name in names if f"`{name}`" not in README]
    values = values_of(
        Request("a", Path("/a.sh"), Path("/a.log"), 1, 1, 1, 1, 1, 1, None), SchedulerSettings(kind="slurm")
    )
    listed = README.partition("A name in braces is a value: `")[2].partition("`")[0].split()
    assert missing == []
    assert sorted(listed) == sorted(values)
    assert {executor.FOLDER_VARIABLE, executor.BUDGET_VARIABLE} <= set(variables)
