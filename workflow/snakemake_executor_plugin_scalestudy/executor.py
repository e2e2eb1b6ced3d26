"""The executor as Snakemake sees it."""

from __future__ import annotations

from typing import Any

from snakemake_interface_common.exceptions import WorkflowError
from snakemake_interface_executor_plugins.executors.base import SubmittedJobInfo
from snakemake_interface_executor_plugins.executors.remote import RemoteExecutor
from snakemake_interface_executor_plugins.jobs import JobExecutorInterface


class Executor(RemoteExecutor):
    """Submits; nothing yet."""

    def __post_init__(self) -> None:
        raise WorkflowError("the executor `scalestudy` cannot submit jobs yet")

    def run_job(self, job: JobExecutorInterface) -> None:
        """Not yet."""

    async def check_active_jobs(self, active_jobs: list[SubmittedJobInfo]) -> Any:
        """Not yet."""
        for info in active_jobs:
            yield info

    def cancel_jobs(self, active_jobs: list[SubmittedJobInfo]) -> None:
        """Not yet."""
