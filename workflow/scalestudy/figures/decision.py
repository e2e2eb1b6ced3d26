"""Whether a setting pays: pairs of runs that differ in nothing else, and what their difference says."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Literal

from scalestudy.analysis.identity import varied_columns
from scalestudy.analysis.rounding import with_interval
from scalestudy.analysis.stats import CONFIDENCE, FEWEST
from scalestudy.claims.inference import ERROR, Estimate, Region, holm
from scalestudy.figures.groups import Row, by
from scalestudy.files import canonical_json
from scalestudy.spec.columns import on_logarithms
from scalestudy.spec.labels import column_label, number, unit_of, value_text
from scalestudy.spec.study import Study

Verdict = Literal["more", "less", "same", "undecided"]
RELATIVE_MARGIN = 0.05
ABSOLUTE_MARGIN = 0.01


def sentences(study: Study, rows: Sequence[Row], key: str, column: str, margin: float | None = None) -> list[str]:
    """One sentence for each value of `key` but its first, in each combination of what else is varied.

    Runs of one repeat share their seed and are compared with each other: by their ratios, for times, rates and sizes, else
    by their differences. It is judged against the margin, and all sentences of a table together
    (Holm), so that a table of equals holds a false verdict in at most 5 %.
    """
    found = [(change, _differences(before, after, column)) for change, before, after in _changes(study, rows, key)]
    log = on_logarithms(column)
    margin = margin or (RELATIVE_MARGIN if log else ABSOLUTE_MARGIN)
    compared = [Estimate(tuple(differences)) if len(differences) >= FEWEST else None for _, differences in found]
    verdicts = iter(judged([each for each in compared if each is not None], math.log1p(margin) if log else margin))
    limit, count = f"{number(100 * margin)} %" if log else number(margin), len(compared) - compared.count(None)
    said = []
    for (change, differences), comparison in zip(found, compared, strict=True):
        text = _too_few(len(differences))
        if comparison is not None:
            verdict, p = next(verdicts)
            text = _sentence(column, comparison, verdict, limit) + _corrected(p, count)
        said.append(f"{change}: {text}")
    return said


def judged(found: Iterable[Estimate], margin: float) -> list[tuple[Verdict, float]]:
    """For each of several differences that are compared together its verdict and its p, adjusted by Holm's method.

    Of two contrary hypotheses, beyond the margin (two-sided) and within it (two one-sided tests), the one with the smaller p
    is judged: exactly one is true, so that no error is spent on choosing.
    """
    beyond, within = Region(-margin, margin), Region(-margin, margin, one_sided=True)
    tests = [(one, beyond.p_outside(one), within.p_inside(one)) for one in found]
    adjusted = holm(min(outside, inside) for _, outside, inside in tests)
    return [
        ("undecided" if p > ERROR else "same" if inside < outside else "more" if one.median > 0 else "less", p)
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
        where = "".join(value_text(study, name, group[0].get(name), named=True) + ", " for name in others)
        first, *rest = by(group, key).values()
        for after in rest:
            words = " instead of ".join(value_text(study, key, one[0].get(key), named=True) for one in (after, first))
            found.append(((f"{where[:-2]}: " if where else "") + words, first, after))
    return found


def _differences(before: Sequence[Row], after: Sequence[Row], column: str) -> list[float]:
    """`after` less `before`, of logarithms where the column has them, for each repeat that has both."""
    old, new = _by_repeat(before, column), _by_repeat(after, column)
    return [new[repeat] - old[repeat] for repeat in new if repeat in old]


def _by_repeat(rows: Sequence[Row], column: str) -> dict[int, float]:
    known = {}
    for row in rows:
        value = row.get(column)
        if row["status"] == "valid" and value is not None and math.isfinite(value):
            if not on_logarithms(column):
                known[row["repeat"]] = float(value)
            elif value > 0:
                known[row["repeat"]] = math.log(value)
    return known


def _sentence(column: str, found: Estimate, verdict: Verdict, limit: str) -> str:
    """`faster; Training time changes by -12.0 ± 1.3 % (margin 5 %, 5 pairs)`."""
    values = found.value, *found.interval(CONFIDENCE)
    if on_logarithms(column):
        change = with_interval(*(100 * math.expm1(value) for value in values)) + " %"
    else:
        change = with_interval(*values)
    sign = "+" if found.median > 0 else ""
    label = column_label(column)
    return f"{word(column, verdict)}; {label} changes by {sign}{change} (margin {limit}, {found.n} pairs)"


def word(column: str, verdict: Verdict) -> str:
    """A verdict in the word that suits the column: faster or slower for times and rates, else better or worse."""
    if verdict in ("same", "undecided"):
        return verdict
    good, bad = ("faster", "slower") if unit_of(column) in ("s", "samples/s") else ("better", "worse")
    return good if (verdict == "less") == lower_is_better(column) else bad


def _corrected(p: float, comparisons: int) -> str:
    shown = "p < 0.001" if p < 0.001 else f"p = {number(p, 2)}"
    return f", {shown}" + (f" corrected for {comparisons} comparisons" if comparisons > 1 else "")


def _too_few(pairs: int) -> str:
    if pairs == 0:
        return "nothing to compare yet"
    few = "1 pair of runs decides" if pairs == 1 else f"{pairs} pairs of runs decide"
    return f"{few} nothing; repeat it {FEWEST} times or more"


def lower_is_better(column: str) -> bool:
    """Times, losses, stalls, costs and what is taken from the machine."""
    return unit_of(column) in ("s", "device h", "B", "MiB", "J") or column in ("loss", "data_stall", "cost")
