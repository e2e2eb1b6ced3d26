"""What jobs would download: said before anything is submitted, and brought beforehand by `scalestudy fetch`."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError
from pathlib import Path
from typing import Any

from scalestudy.dag.project import Project
from scalestudy.dag.rules import end
from scalestudy.data.catalogue import FashionMNIST
from scalestudy.errors import UserError
from scalestudy.spec.config import Site, checked
from scalestudy.spec.layout import manifest_file, result_file
from scalestudy.spec.study import Run
from scalestudy.spec.yamlfile import read_yaml
from scalestudy.strategies import horovod_build


@dataclass(frozen=True)
class Download:
    """One thing that a job would download."""

    what: str
    fetch: Callable[[], Path]
    """Brings it to a folder that jobs look into. Raises UserError or Skipped."""


def _fetch_fashion_mnist() -> Path:
    from scalestudy.data.sources import fashion_mnist

    return fashion_mnist.fetch_for_jobs()


FASHION_MNIST = Download("Fashion-MNIST (31 MB)", _fetch_fashion_mnist)
HOROVOD = Download("the sources of Horovod, and the tools of its build (60 MB)", horovod_build.fetch_sources)


def of_runs(runs: Iterable[Run], machine: str, site: Site) -> list[Download]:
    """What the jobs of runs that are not finished would download."""
    left = [run for run in runs if not result_file(machine, run.id).exists()]
    data = {run.dataset: run.spec.data for run in left if not manifest_file(run.dataset).exists()}
    build = any(run.spec.strategy.needs_build for run in left) and not _is_built(machine)
    return list(_downloads(data.values(), build, site))


def of_jobs(jobs: Iterable[Any], project: Project, site: Site) -> list[Download]:
    """What Snakemake's jobs would download."""
    rules = [(job.rule.name, job.wildcards) for job in jobs]
    in_jobs = () if site.prepare == "driver" else ("dataset",)
    data = [project.runs.run_with(wildcards.dataset).spec.data for rule, wildcards in rules if rule in in_jobs]
    return list(_downloads(data, any(rule == "horovod" for rule, _ in rules), site))


def _downloads(data: Iterable[Any], build: bool, site: Site) -> Iterator[Download]:
    if fashion := [spec for spec in data if isinstance(spec, FashionMNIST)]:
        from scalestudy.data.sources import fashion_mnist

        if not all(fashion_mnist.is_fetched(spec, site) for spec in fashion):
            yield FASHION_MNIST
    if build and not horovod_build.are_fetched() and not _is_compiled():
        yield HOROVOD


def _is_compiled() -> bool:
    try:
        return horovod_build.found() is not None
    except PackageNotFoundError:  # a driver without torch cannot know
        return False


def _is_built(machine: str) -> bool:
    return Path(f"results/{machine}/builds/horovod.json").exists()


def fetch_command(project: Project) -> str:
    """What brings it beforehand."""
    names = [] if project.config.studies == "all" else [study.name for study in project.chosen]
    where = [] if project.site is None else ["--profile", str(Path(project.site).parent)]
    return shlex.join(["scalestudy", "fetch", *names, *where, "--config", f"scale={project.config.scale}"])


def say_downloads(workflow: Any, project: Project) -> None:
    """Where jobs are about to be submitted: say what they would download; end where their nodes have no internet."""
    if workflow.local_exec:
        return
    site = Site() if project.site is None else checked(Site, read_yaml(project.site))
    wanted = of_jobs(workflow.dag.needrun_jobs(), project, site)
    if not wanted:
        return
    named = ", and ".join(each.what for each in wanted)
    remedy = f"on a host with internet: {fetch_command(project)}"
    if site.internet is False:
        end(UserError(f"jobs would download {named}, and `internet: false`", str(project.site), remedy))
    sys.stderr.write(
        f"scalestudy: notice: jobs will download {named}; where nodes have no internet, stop here, and {remedy}\n"
    )
