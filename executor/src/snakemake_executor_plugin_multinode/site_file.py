"""The site file: which batch system, asked in which words, and the software of jobs."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml
from snakemake_interface_common.exceptions import WorkflowError

from snakemake_executor_plugin_multinode.schedulers import Scheduler, detected_kind, has_pbs, scheduler_of
from snakemake_executor_plugin_multinode.software import Software, read_software


def chosen_scheduler(site: Path | None, note: Any) -> Scheduler:
    """The batch system that the site names, or the one of this host. WorkflowError, with a sentence, if there is none."""
    settings = _section(site)
    found = detected_kind() if settings.get("kind") in (None, "pbs") else None
    if "kind" not in settings:
        if found is None:
            raise WorkflowError("no batch system found: neither sbatch nor qsub is in PATH. On a login node they are")
        settings = {**settings, "kind": found}
    elif settings["kind"] == "pbs" and found == "slurm" and not has_pbs():
        # Slurm's wrappers have a qsub that drops all but the last `-l`; what is written for PBS means nothing to Slurm.
        note(
            f"`scheduler.kind` is {settings['kind']}, but this host has sbatch: Slurm is used, without `request` and `options`"
        )
        settings = {key: value for key, value in settings.items() if key not in ("request", "options")} | {
            "kind": "slurm"
        }
    try:
        scheduler = scheduler_of(settings)
    except ValueError as error:
        raise WorkflowError(f"{site}: {error}" if site else str(error)) from None
    if missing := scheduler.missing_commands():
        raise WorkflowError(f"the commands of {settings['kind']} are not in PATH: {', '.join(missing)}")
    return scheduler


def software_of(site: Path | None) -> Software:
    """The software that the site's jobs run with. WorkflowError, with a sentence, where its keys are wrong."""
    try:
        return read_software(_site_file(site))
    except ValueError as error:
        raise WorkflowError(f"{site}: {error}") from None


def _section(site: Path | None) -> Mapping[str, Any]:
    """The section `scheduler` of a site file."""
    section = _site_file(site).get("scheduler", {})
    if not isinstance(section, dict):
        raise WorkflowError(f"multinode-site: {site}: `scheduler` must be a map")
    return section


def _site_file(site: Path | None) -> Mapping[str, Any]:
    if site is None:
        return {}
    try:
        data = yaml.safe_load(site.read_text(encoding="utf-8"))
    except OSError as error:
        raise WorkflowError(
            f"multinode-site: {site}: {error.strerror}. Fix this, then run the same command again"
        ) from None
    except RecursionError:
        raise WorkflowError(f"multinode-site: {site}: is nested too deep") from None
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise WorkflowError(f"multinode-site: {site}: not readable as YAML: {' '.join(str(error).split())}") from None
    if not isinstance(data, dict):
        raise WorkflowError(f"multinode-site: {site}: must be a map with a section `scheduler`")
    return data
