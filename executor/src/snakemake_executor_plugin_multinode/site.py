"""The site file: how jobs are submitted, and the software that they run with."""

from __future__ import annotations

import difflib
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

import yaml
from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, ValidationError

ANY = "any"
"""Key of `environments` for every number of ranks on a node that has no key of its own."""
NULLS = ("", "~", "null")


def checked_word(value: str, what: str) -> str:
    """Return one word of a submit line. ValueError for several words, and for an option."""
    if not value or value.startswith("-") or any(c.isspace() or ord(c) < 32 or ord(c) == 127 for c in value):
        raise ValueError(f"{what} {value!r} must be one word that does not begin with a dash")
    return value


def _unset(value: Any) -> Any:
    return None if value in NULLS else value


def _words(value: Any) -> Any:
    """Split text as a shell does."""
    if not isinstance(value, str):
        return value
    try:
        return tuple(shlex.split("" if value in NULLS else value))
    except ValueError as error:
        raise ValueError(f"{value!r} has a quote without an end: {error}") from None


Text = Annotated[str, Field(pattern=r"^[^\x00-\x1f\x7f]+$")]
Word = Annotated[Text, AfterValidator(lambda value: checked_word(value, "the name"))]
Words = Annotated[tuple[str, ...], BeforeValidator(_words)]
"""A list of words, or text that is split as a shell does."""
Ranks = Annotated[str, Field(pattern=r"^([1-9][0-9]{0,5}|any)$")]


class SiteModel(BaseModel):
    """A frozen part of a site file; unknown keys are errors."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class SchedulerSettings(SiteModel):
    """How jobs are submitted at one site."""

    kind: Literal["slurm", "sge", "pbs"]
    """Batch system."""
    account: Annotated[Word | None, BeforeValidator(_unset)] = None
    """`-A` of each job. A project of PBS or Grid Engine goes into `options`: `-P name`."""
    queue: Annotated[Word | None, BeforeValidator(_unset)] = None
    """Queue or partition of jobs that name none."""
    request: Annotated[Text | None, BeforeValidator(_unset)] = None
    """Template of the resource request, in place of the built-in one; the executor's README has the notation."""
    options: Words = ()
    """Further words of the submit line."""
    setup: Annotated[tuple[str, ...], BeforeValidator(lambda value: () if value in NULLS else value)] = ()
    """Shell commands at the start of every job, such as `. .venv/bin/activate`."""
    environments: dict[Ranks, Word] = {}
    """Grid Engine: the parallel environment by ranks on a node; `any` stands for all other numbers."""


class Container(SiteModel):
    """An image that the commands of jobs run in, on every node."""

    image: Text
    """File, from the project's folder, or address such as `docker://…`."""
    command: Text = "apptainer"
    """`apptainer` or `singularity`, with its folder where it is not in PATH."""
    options: Words = ("--nv",)
    """Options of `apptainer exec`; `--nv` brings NVIDIA's driver into the image, `--rocm` AMD's."""
    bind: tuple[str, ...] = ()
    """Folders that jobs see besides the project's; `$VARIABLES` are those of the job."""
    python: Text = "python3"
    """The image's Python, with Snakemake and all that jobs need."""


class Site(SiteModel):
    """Scheduler and software of a site. Other keys of the file belong to the workflow."""

    model_config = ConfigDict(extra="ignore")

    modules: tuple[Text, ...] = ()
    """Modules that each job loads first, in this order."""
    conda: Annotated[Text | None, BeforeValidator(_unset)] = None
    """Name or folder of a conda environment that each job activates; its Python is that of the jobs."""
    container: Container | None = None
    """Unset: jobs run without a container."""
    scheduler: SchedulerSettings | None = None
    """How jobs are submitted. Unset: they are not."""


def words_of(text: str) -> Any:
    """Read YAML with every scalar as the text that is written: `00123` and `1:30:00` are words of a submit line."""
    return yaml.load(text, Loader=yaml.BaseLoader)


def read_site(file: Path | None) -> Site:
    """Read a site file; an empty site without one. ValueError names file, line and key."""
    if file is None:
        return Site()
    try:
        text = file.read_text(encoding="utf-8")
        data = words_of(text)
    except OSError as error:
        raise ValueError(f"{file}: {error.strerror}. Fix this, then run the same command again") from None
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise ValueError(f"{file}: not readable as YAML: {' '.join(str(error).split())}") from None
    if not isinstance(data, Mapping):
        raise ValueError(f"{file}: must be a map with a section `scheduler`")
    try:
        return Site.model_validate(data)
    except ValidationError as error:
        problems = [_problem(item, text) for item in error.errors(include_url=False)]
        raise ValueError("; ".join(f"{file}:{problem}" for problem in problems)) from None


def _problem(item: Any, text: str) -> str:
    """Line, key and sentence of one error."""
    what = item["msg"].removeprefix("Value error, ")
    if item["type"] == "extra_forbidden":
        section, key = item["loc"]
        valid = SchedulerSettings if section == "scheduler" else Container
        what = f"unknown key; {nearest(key, list(valid.model_fields))}"
    path: list[str] = []
    line, node = 1, yaml.compose(text, Loader=yaml.BaseLoader)
    for part in item["loc"]:
        children: dict[Any, Any] = {}
        if isinstance(node, yaml.MappingNode):
            children = {key.value: (key, value) for key, value in node.value}
        elif isinstance(node, yaml.SequenceNode):
            children = {number: (value, value) for number, value in enumerate(node.value)}
        if part in children:  # others are names of validators, and missing keys
            key, node = children[part]
            path.append(str(part))
            line = key.start_mark.line + 1
    return f"{line}: `{'.'.join(path)}`: {what}"


def nearest(word: str, valid: list[str]) -> str:
    """Return a remedy for a wrong word: the nearest valid one, or all of them."""
    near = difflib.get_close_matches(word, valid, n=1)
    return f"did you mean `{near[0]}`?" if near else "valid: " + ", ".join(valid)
