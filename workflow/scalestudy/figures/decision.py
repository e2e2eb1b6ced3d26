"""Whether a setting pays: pairs of runs that differ in nothing else, and what their difference says."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Literal

from scalestudy.analysis.stats import CONFIDENCE, FEWEST, with_interval
from scalestudy.analysis.workload import varied_columns
from scalestudy.claims.inference import ERROR, Estimate, Region, holm
from scalestudy.figures.catalogue import TableSpec
from scalestudy.figures.groups import Row, by
from scalestudy.files import canonical_json
from scalestudy.spec.columns import RATE_UNITS, on_logarithms
from scalestudy.spec.labels import column_label, number, unit_of, value_text
from scalestudy.spec.study import Study

Verdict = Literal["more", "less", "same", "undecided"]
RELATIVE_MARGIN = 0.05
ABSOLUTE_MARGIN = 0.01


def sentences(study: Study, rows: Sequence[Row], table: TableSpec) -> list[str]:
    """One sentence for each value of the table's key `decide` but its first, in each combination of what else is varied.

    Runs of one repeat share their seed and are compared with each other: by their ratios, for times, rates and sizes, else
    by their differences. It is judged against the margin, and all sentences of a table together
    (Holm), so that a table of equals holds a false verdict in at most 5 %. `scalestudy compare` adjusts no *same*: its gate
    claims it of all configurations at once, and here each sentence is read by itself.
    """
    assert table.decide is not None
    column, log = table.values[0], on_logarithms(table.values[0])
    margin = table.margin or (RELATIVE_MARGIN if log else ABSOLUTE_MARGIN)
    limit = f"{number(100 * margin)} %" if log else number(margin)
    changes = _changes(study, rows, table.decide)
    found = [(change, _differences(before, after, column)) for change, before, after in changes]
    compared = [Estimate(tuple(differences)) for _, differences in found if len(differences) >= FEWEST]
    verdicts = iter(_judged(compared, math.log1p(margin) if log else margin))
    together = f" corrected for {len(compared)} comparisons" if len(compared) > 1 else ""
    said = []
    for change, differences in found:
        if len(differences) >= FEWEST:
            estimate, verdict, p = next(verdicts)
            shown = "p < 0.001" if p < 0.001 else f"p = {number(p, 2)}"
            text = f"{_word(column, verdict)}; {_changed(column, estimate)} (margin {limit}, {estimate.n} pairs), {shown}{together}"
        elif differences:
            few = "1 pair of runs decides" if len(differences) == 1 else f"{len(differences)} pairs of runs decide"
            text = f"{few} nothing; repeat it {FEWEST} times or more"
        else:
            text = "nothing to compare yet"
        said.append(f"{change}: {text}")
    return said


def _judged(found: Iterable[Estimate], margin: float) -> list[tuple[Estimate, Verdict, float]]:
    """For each of several differences that are compared together its verdict and its p, adjusted by Holm's method.

    Of two contrary hypotheses, beyond the margin (two-sided) and within it (two one-sided tests), the one with the smaller p
    is judged: exactly one is true, so that no error is spent on choosing.
    """
    beyond, within = Region(-margin, margin), Region(-margin, margin, one_sided=True)
    tests = [(one, beyond.p_outside(one), within.p_inside(one)) for one in found]
    adjusted = holm(min(outside, inside) for _, outside, inside in tests)
    return [
        (one, "undecided" if p > ERROR else "same" if inside < outside else "more" if one.median > 0 else "less", p)
        for (one, outside, inside), p in zip(tests, adjusted, strict=True)
    ]


def _changes(study: Study, rows: Sequence[Row], key: str) -> list[tuple[str, list[Row], list[Row]]]:
    """Each change of the key that is looked at: in words, the rows before and those after."""
    others = [name for name in varied_columns(study) if name != key and len(by(rows, name)) > 1]
    groups: dict[str, list[Row]] = {}
    for row in rows:
        groups.setdefault(canonical_json([row.get(name) for name in others]), []).append(row)
    found = []
    for group in groups.values():
        where = ", ".join(value_text(study, name, group[0].get(name), named=True) for name in others)
        first, *rest = by(group, key).values()
        for after in rest:
            words = " instead of ".join(value_text(study, key, one[0].get(key), named=True) for one in (after, first))
            found.append((f"{where}: {words}" if where else words, first, after))
    return found


def _differences(before: Sequence[Row], after: Sequence[Row], column: str) -> list[float]:
    """`after` less `before`, of logarithms where the column has them, for each repeat that has both."""
    old, new = _by_repeat(before, column), _by_repeat(after, column)
    return [new[repeat] - old[repeat] for repeat in new if repeat in old]


def _by_repeat(rows: Sequence[Row], column: str) -> dict[int, float]:
    known, log = {}, on_logarithms(column)
    for row in rows:
        value = row.get(column)
        if row["status"] == "valid" and value is not None and math.isfinite(value) and (value > 0 or not log):
            known[row["repeat"]] = math.log(value) if log else float(value)
    return known


def _changed(column: str, found: Estimate) -> str:
    """`Training time changes by -12.0 ± 1.3 %`."""
    values = found.value, *found.interval(CONFIDENCE)
    if on_logarithms(column):
        change = with_interval(*(100 * math.expm1(value) for value in values)) + " %"
    else:
        change = with_interval(*values)
    return f"{column_label(column)} changes by {'+' if found.median > 0 else ''}{change}"


def _word(column: str, verdict: Verdict) -> str:
    """A verdict in the word that suits the column: faster or slower for times and rates, else better or worse.

    Less is better of times, losses, stalls and what is taken from the machine.
    """
    if verdict in ("same", "undecided"):
        return verdict
    less_is_better = unit_of(column) in ("s", "B", "MiB", "J") or column in ("loss", "data_stall")
    good, bad = ("faster", "slower") if unit_of(column) in ("s", *RATE_UNITS) else ("better", "worse")
    return good if (verdict == "less") == less_is_better else bad
