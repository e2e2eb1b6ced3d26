"""One colour and one mark per series in all figures of a study."""

from __future__ import annotations

from collections.abc import Sequence

from scalestudy.figures.groups import Group
from scalestudy.files import canonical_json
from scalestudy.spec.columns import columns_of_runs
from scalestudy.spec.study import Study


def palette(study: Study) -> dict[tuple[str, str], int]:
    """A number for each value of each column that some figure has as its series, in the order of the study.

    A value keeps its number, and so its look, whatever a figure leaves out; two columns share none.
    """
    rows = columns_of_runs(study.runs)
    columns = dict.fromkeys(figure.series or "strategy" for figure in study.figures)
    keys = dict.fromkeys((column, canonical_json(row.get(column))) for column in columns for row in rows)
    return {key: number for number, key in enumerate(keys)}


def styles(study: Study, series: str, groups: Sequence[Group]) -> dict[str, tuple[int, int]]:
    """Colour and mark of each line, by its label: both are those of its value of `series`.

    Further lines of one value, which differ in something else, share its colour and have marks that no value has.
    """
    known, found = palette(study), dict[str, tuple[int, int]]()
    taken, free = set[int](), len(known)
    for group in groups:
        for label, members in group.lines.items():
            if label in found:
                continue
            key = (series, canonical_json(members[0].get(series)))
            colour = known.get(key, len(known) + len(found)) if group.named else len(found)
            mark = colour if colour not in taken else free
            free += mark == free
            taken.add(colour)
            found[label] = (colour, mark)
    return found
