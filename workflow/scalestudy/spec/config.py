"""config/config.yaml, and the command line's `--config`, as one frozen model; and the project's folders."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

from pydantic import AfterValidator, Field

from scalestudy.errors import UserError, nearest, raise_problems
from scalestudy.files import expanded
from scalestudy.site_fault import CHANGES, SITE, Lackable, in_job
from scalestudy.spec.base import NAME, KeyPath, Name, Scale, Spec, parse, printable, refused, shown
from scalestudy.spec.layout import MACHINES, folder_name, machine_and_campaign
from scalestudy.spec.machine import AUTO, Machine
from scalestudy.spec.run import LauncherName
from scalestudy.spec.yamlfile import YamlDocument, dotted, read_yaml, setting
from snakemake_executor_plugin_multinode.site import Site as SiteOfJobs
from snakemake_executor_plugin_multinode.site import words_of


def _expanded(folder: str) -> str:
    if "$" in (path := str(expanded(folder))):
        raise refused(f"`{folder}` names a variable that is not set", "set it, or name a folder")
    return path


class Paths(Spec):
    """Where files are stored that need not be in results/."""

    data: Annotated[str, AfterValidator(_expanded)] | None = None
    """Folder for the bulk of prepared data, often scratch; unset: next to each manifest in results/data/."""


class Config(Spec):
    """Choice of studies, scale and machine."""

    studies: Literal["all"] | Annotated[tuple[Name, ...], Field(min_length=1)] = "all"
    """Names of studies in config/studies/, or `all`."""
    scale: Scale = "mini"
    """`mini` (2 cores, minutes), `node` (one GPU server), `paper` (as published)."""
    machine: Name = "local"
    """Name of a file in config/machines/ and of the folder in results/. `auto`: this one, with a file written if needed."""
    campaign: Name | None = None
    """Measures the same runs again and keeps the earlier ones, in results/<machine>+<campaign>/. Unset: results/<machine>/."""
    budget_gpu_hours: Annotated[float, Field(gt=0)] | None = None
    """GPU hours that the driver's jobs may use or reserve in all; what would exceed it is refused. Unset: no limit."""
    paths: Paths = Paths()
    """Where files are stored that need not be in results/."""

    @property
    def folder(self) -> str:
        """Name of the folder in results/ that holds the runs."""
        return folder_name(self.machine, self.campaign)


class Site(SiteOfJobs, Spec):
    """Settings of one site: profiles/<profile>/site.yaml."""

    data_roots: dict[str, str] = {}
    """Data that the site already has: source name to folder."""
    scratch: str | None = None
    """Folder on a node's own disk, for staged copies; `$VARIABLES` are those of the job. Unset: `$TMPDIR`."""
    lacks: tuple[Lackable, ...] = ()
    """What no node of the site has: runs that need it are skipped. In a job, anything else that is missing is a fault of
    the site: the job is tried once more, then fails, and no result is written."""
    staged_gib: Annotated[float, Field(gt=0)] | None = None
    """Space for staged copies there, GiB; the oldest unused ones are removed. Unset: the free space."""
    launcher: LauncherName = "auto"
    """How a job reaches its other nodes; `auto`: what the scheduler of the job has, else ssh."""
    environment: tuple[str, ...] = ()
    """Variables for processes on other nodes, beside those of proxies, CUDA, NCCL, UCX, libfabric, MPI and object stores;
    `NAME*` stands for all that begin so."""
    srun_options: tuple[str, ...] = ()
    """Further options of `srun`, such as `--mpi=none`."""
    srun_mpi: Annotated[str, Field(pattern=r"^[a-z0-9_]+$")] | None = None
    """In jobs of Slurm, MPI ranks are started by `srun --mpi=` with this PMI, such as `pmix`. Unset: by mpirun."""
    hosts: tuple[str, ...] = ()
    """Names of the nodes, where no scheduler provides them; the first is the one where commands are started."""
    prepare: Literal["job", "driver"] = "job"
    """Where data is prepared: by a job per dataset, in a queue of CPU nodes where there is one, or by the driver, whose host
    may be the one with internet."""


def read_config(file: Path | str, overrides: Mapping[str, Any] | None = None) -> Config:
    """The configuration of one command: file below, `--config` on top."""
    document = read_yaml(file)
    given = dict(overrides or {})
    # Keys of the site, and changes of studies, belong to commands, not to the selection.
    changes_of(given.pop("set", None))
    given.pop("site", None)
    data = {**document.data, **given}
    if isinstance(data.get("studies"), str) and data["studies"] != "all":
        data["studies"] = data["studies"].split(",")
    value, problems = parse(Config, data)

    def where(path: KeyPath) -> str:
        """Snakemake does not tell which keys come from a profile's `configfile`."""
        return f"--config or configfile: {dotted(path)}" if path[0] in given else document.where(path)

    raise_problems(problems, where)
    assert value is not None
    if value.machine != AUTO:
        return value
    from scalestudy.spec.auto_machine import auto_machine

    return value.model_copy(update={"machine": auto_machine()})


M = TypeVar("M", bound=Spec)


def checked(model: type[M], document: YamlDocument) -> M:
    """The document's data as `model`; errors name file and line, in the order of the file."""
    value, problems = parse(model, document.data)
    raise_problems(sorted(problems, key=lambda problem: document.line(problem.path)), document.where)
    assert value is not None
    return value


def read_machine(name: str, folder: Path | str = MACHINES) -> Machine:
    """The machine of that name; of a folder of results that names a campaign too, its machine."""
    machine, campaign = machine_and_campaign(name)
    machine_names = sorted(path.stem for path in Path(folder).glob("*.yaml"))
    if machine not in machine_names:
        raise UserError(f"there is no machine `{machine}`", f"{folder}", nearest(machine, machine_names))
    if campaign is not None and not re.fullmatch(NAME, campaign):
        remedy = "use lower-case letters, digits and `_`, starting with a letter"
        raise UserError(f"`{printable(campaign)}` cannot be the name of a campaign", name, remedy)
    return checked(Machine, read_yaml(Path(folder) / f"{machine}.yaml"))


LOCAL_SITE = Path("profiles/local/site.yaml")


def read_site(file: str | None = None) -> Site:
    """The site of a file; unset: of the one that the profile names through `SCALESTUDY_SITE`.

    Outside of a workflow and of a job, `scalestudy try` for one, the paths of profiles/local hold; else the site is empty.
    """
    named = file or os.environ.get(SITE)
    if not named and (not LOCAL_SITE.is_file() or in_job()):
        return Site()
    document = read_yaml(named or LOCAL_SITE)
    # As the executor reads them: `00123` and `1:30:00` are words of a submit line, not numbers.
    words = words_of(Path(document.file).read_text(encoding="utf-8"))
    words = {key: words[key] for key in SiteOfJobs.model_fields if key in words and document.data.get(key) is not None}
    site = checked(Site, replace(document, data={**document.data, **words}))
    return site if named else Site(data_roots=site.data_roots, scratch=site.scratch, staged_gib=site.staged_gib)


BUDGET = "MULTINODE_BUDGET_GPU_HOURS"
"""Environment variable by which the executor, which is made after the Snakefile was read, learns `budget_gpu_hours`."""
FOR_EXECUTOR = {"MULTINODE_FOLDER": ".scalestudy"}
"""Environment variable that gives the executor the folder of its records, which a driver without it locks as well."""


def changes_of(given: object) -> dict[str, Any]:
    """`["repeats=5", "train.epochs=10"]`, or one of these alone, by dotted key. UserError where it is something else."""
    texts = [given] if isinstance(given, str) else [] if given is None else given
    if not isinstance(texts, (list, tuple)) or not all(isinstance(text, str) for text in texts):
        remedy = "write `set=KEY=VALUE`, or a list of these"
        raise UserError(f"must be settings of studies, not {shown(given)}", "set", remedy)
    return dict(setting(text, "set") for text in texts)


def changes_of_call() -> dict[str, Any]:
    """Those of the Snakemake call that started this command; none outside one."""
    return changes_of(os.environ.get(CHANGES, "").splitlines())
