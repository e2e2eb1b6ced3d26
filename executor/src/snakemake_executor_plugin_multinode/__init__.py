"""Snakemake jobs on PBS, Grid Engine and Slurm: multi-node, adopted after a restart, continued after a walltime."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from snakemake_interface_executor_plugins.settings import CommonSettings, ExecutorSettingsBase

from snakemake_executor_plugin_multinode.executor import Executor

__version__ = "0.1.0"
__all__ = ["Executor", "ExecutorSettings", "common_settings"]


@dataclass
class ExecutorSettings(ExecutorSettingsBase):
    """`--multinode-…` on the command line, `multinode-…` in a profile."""

    site: Path | None = field(
        default=None,
        metadata={
            "help": "YAML file whose section `scheduler` says how jobs are submitted; "
            "without it the batch system of this host is used with its own request",
            "type": Path,
        },
    )
    folder: Path | None = field(
        default=None,
        metadata={
            "help": "Folder for the records of jobs, in the working directory; default: $MULTINODE_FOLDER, which a "
            "workflow may set, or else .multinode",
            "type": Path,
        },
    )
    budget_gpu_hours: float | None = field(
        default=None,
        metadata={
            "help": "GPU hours that all jobs of this folder may use; a submission beyond it is refused",
            "type": float,
        },
    )
    give_up_min: float = field(
        default=30.0,
        metadata={
            "help": "Minutes for which a scheduler must have said that a job cannot run as things are before that is "
            "reported: nodes that are down come back. Also the minutes after which a job fails that a limit on the jobs of a "
            "user keeps out, while no other job of this driver is in the queue",
            "type": float,
        },
    )


common_settings = CommonSettings(
    non_local_exec=True,
    implies_no_shared_fs=False,
    job_deploy_sources=False,
    pass_default_storage_provider_args=True,
    pass_default_resources_args=True,
    pass_envvar_declarations_to_cmd=False,  # the job script exports them, quoted
    auto_deploy_default_storage_provider=False,
    init_seconds_before_status_checks=0,
    pass_group_args=True,
)
