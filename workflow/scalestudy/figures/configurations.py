"""What configurations are called: the words of the study that has them."""

from __future__ import annotations

from dataclasses import dataclass

from scalestudy.analysis.identity import varied_columns
from scalestudy.analysis.recorded import Recorded
from scalestudy.errors import UserError
from scalestudy.spec.columns import columns_of
from scalestudy.spec.config import SCALES, read_machine
from scalestudy.spec.labels import value_text
from scalestudy.spec.layout import STUDIES
from scalestudy.spec.machine import Machine
from scalestudy.spec.read_study import find_studies
from scalestudy.spec.study import Run, Study


@dataclass(frozen=True)
class Name:
    """A configuration in the words of one study. Names sort by study, then in the order of measurement."""

    study: str
    title: str
    scale: str
    text: str


OTHER = "other"
"""Stands for the study of runs that no study has."""


def configuration_names(machine_name: str, study: str | None = None) -> dict[str, Name]:
    """Names by configuration, of one study or of all, at all scales; of several studies that share one, the first's.

    Empty where there are no studies here, as when results of others are read.
    """
    if study is None and not any(STUDIES.glob("*.yaml")):
        return {}
    try:
        machine = read_machine(machine_name)
    except UserError:
        machine = Machine()  # of another project
    found: dict[str, Name] = {}
    for scale in SCALES:
        # Studies that are wrong, or have no such scale, name nothing.
        for each in find_studies(None if study is None else [study], scale, machine).studies:
            keys = varied_columns(each)
            for run in each.runs:
                found.setdefault(run.configuration, Name(each.name, each.title, scale, _text(each, keys, run)))
    return found


def _text(study: Study, keys: list[str], run: Run) -> str:
    row = columns_of(run.spec)
    said = [value_text(study, key, row.get(key), named=True) for key in keys if row.get(key) not in ([], {}, ())]
    return ", ".join(said) or study.title


def fallback_name(run: Recorded) -> Name:
    """What a run that no study has is called: its slug, and the configuration's digits."""
    slug = run.run.rpartition("-")[0].rpartition(".r")[0]
    return Name(OTHER, "Runs of no study here", "", f"{slug} ({run.configuration})")
