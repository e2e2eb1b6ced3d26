"""The studies of config/studies/, by name, scale and tag."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from scalestudy.errors import UserError, nearest, raise_all
from scalestudy.spec.base import shown
from scalestudy.spec.config import checked
from scalestudy.spec.expand_study import expand
from scalestudy.spec.layout import STUDIES
from scalestudy.spec.machine import Machine
from scalestudy.spec.machine_axes import NoHosts
from scalestudy.spec.study import Study
from scalestudy.spec.study_file import StudySpec, refuse_study_name
from scalestudy.spec.yamlfile import read_yaml


class NoScale(UserError):
    """The study is not defined at this scale."""


@dataclass
class StudiesFound:
    """The requested studies: those that can be expanded, and the errors of the others."""

    studies: list[Study] = field(default_factory=list)
    wrong: dict[str, UserError] = field(default_factory=dict)
    """By the name of the file without its suffix."""

    def errors(self) -> list[UserError]:
        """Everything that is wrong."""
        return [each for error in self.wrong.values() for each in getattr(error, "errors", [error])]


def read_studies(names: Iterable[str] | None, scale: str, machine: Machine, **options: Any) -> list[Study]:
    """As `find_studies`, with its options; raises UserError with the errors of all studies, or where there is none."""
    outcome = find_studies(names, scale, machine, **options)
    raise_all(outcome.errors())
    if not outcome.studies:
        raise UserError(f"no study has scale `{scale}`", str(options.get("folder", STUDIES)))
    return outcome.studies


def find_studies(
    names: Iterable[str] | None,
    scale: str,
    machine: Machine,
    *,
    folder: Path | str = STUDIES,
    machine_name: str = "local",
    changes: Mapping[str, Any] | None = None,
) -> StudiesFound:
    """The studies of that name (None: all) and scale, expanded; one that is wrong does not hide the others.

    A study without a `mini` or `node` part is left out at that scale, unless its name is given. `changes` hold for
    every study: `repeats`, or a run's dotted key, with a value or a list of values to vary it over. Raises UserError
    where there is no study at all, or none of a given name.
    """
    folder = Path(folder)
    files = {path.stem: path for path in sorted(folder.glob("[!.]*.y*ml"), reverse=True)}
    if not files and names is None:
        raise UserError("there is no study here", str(folder), "add one; docs/reference/study.md has an example")
    study_names = sorted(files) if names is None else list(dict.fromkeys(names))
    unknown = [name for name in study_names if name not in files]
    raise_all([UserError(f"there is no study {shown(name)}", str(folder), nearest(name, files)) for name in unknown])
    outcome = StudiesFound()
    for name in study_names:
        try:
            file = files[name]
            if file.suffix != ".yaml":
                raise UserError("a study's file name ends in `.yaml`", str(file), f"rename it {name}.yaml")
            refuse_study_name(name, str(file))
            document = read_yaml(file)
            spec = checked(StudySpec, document)
            if scale == "paper" or scale in spec.scales:
                study = expand(document, spec, name, scale, machine, machine_name, changes)
                outcome.studies.append(study)
            elif names is not None:
                scales = ["paper", *spec.scales]
                remedy = f"it has {', '.join(scales)}: set --config scale={scales[0]}"
                raise NoScale(f"has no scale `{scale}`", document.where(("scales",)), remedy)
        except UserError as error:
            # Of all studies, one over nodes by name is for machines that name them.
            if names is not None or not isinstance(error, NoHosts):
                outcome.wrong[name] = error
    return outcome
