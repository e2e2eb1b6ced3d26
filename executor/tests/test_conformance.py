"""Snakemake's own tests of executor plugins."""

from __future__ import annotations

from typing import Any

import pytest
from snakemake.common import tests as of_snakemake

from running import SITE
from snakemake_executor_plugin_multinode import ExecutorSettings

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("cluster")]


class TestConformance(of_snakemake.TestWorkflowsLocalStorageBase):
    """A workflow with files in folders, and one with groups."""

    __test__ = True
    latency_wait = 10

    def get_executor(self) -> str:
        """The name in profiles."""
        return "multinode"

    def get_executor_settings(self) -> Any:
        """A site file that names the batch system, and nothing else."""
        return ExecutorSettings(site=SITE)
