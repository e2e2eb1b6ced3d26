"""Names of configurations, in the words of the study that has them."""

from __future__ import annotations

from dataclasses import dataclass

from scalestudy.analysis.recorded import Recorded
from scalestudy.analysis.workload import varied_columns
from scalestudy.errors import UserError
from scalestudy.figures.words import configuration_text
from scalestudy.spec.columns import columns_of
from scalestudy.spec.config import SCALES, read_machine
from scalestudy.spec.layout import STUDIES
from scalestudy.spec.machine import Machine
from scalestudy.spec.read_study import find_studies


@dataclass(frozen=True)
class Name:
    """A configuration in the words of one study."""

    study: str
    scale: str
    text: str


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
                text = configuration_text(each, keys, columns_of(run.spec)) or each.title
                found.setdefault(run.configuration, Name(each.name, scale, text))
    return found


def fallback_name(run: Recorded) -> Name:
    """Name of a run that no study has: its slug, and the configuration's digits."""
    slug = run.run.rpartition("-")[0].rpartition(".r")[0]
    return Name("other", "", f"{slug} ({run.configuration})")
