"""Claims judged by the runs of their study: verdict, number, interval, and what would decide what is undecided.

All claims of one study that have a p-value are judged together: a decision needs its p-value, adjusted by Holm's method over
these claims, to be at most 5 %.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pandas as pd

from scalestudy.analysis import claim_words as words
from scalestudy.analysis.claim_facts import judge_exact, judge_published
from scalestudy.analysis.claim_rounds import NotJudged, confidence_of, estimate, is_log
from scalestudy.analysis.inference import ERROR, Estimate, Region, Tested, rounds_needed, together
from scalestudy.analysis.multiplicity import holm
from scalestudy.analysis.verdict import INCONCLUSIVE, NOT_HERE, NOT_REPRODUCED, REPRODUCED, Verdict, verdict_of
from scalestudy.spec.claim_sides import ClaimPart, Row, parts_of, rows_of_claim
from scalestudy.spec.claims import AnyClaim, Direction, Equivalence, Exact, Published, Quantity, Sampled
from scalestudy.spec.emulated import emulated_parts
from scalestudy.spec.study import Study


@dataclass(frozen=True)
class _Tested:
    """A claim with estimates, before all that are judged together are known."""

    claim: Sampled
    verdict: Verdict
    region: Region
    parts: list[ClaimPart]
    found: list[Estimate]
    tested: Tested


def judge(study: Study, frame: pd.DataFrame, fixed: Mapping[str, str]) -> list[Verdict]:
    """A verdict for each claim of a study, in the order of the file.

    `frame` are its rows, one per run; `fixed` the claims' digests when their first runs were made.
    """
    rows = rows_for_claims(study, frame)
    first = [_first(study, claim, rows) for claim in study.claims]
    tested = [each for each in first if isinstance(each, _Tested)]
    adjusted = holm(each.tested.p for each in tested)
    undecided = sum(p > ERROR for p in adjusted)
    final = iter(_decided(study, each, p, undecided) for each, p in zip(tested, adjusted, strict=True))
    verdicts = [next(final) if isinstance(each, _Tested) else each for each in first]
    measured = {row["run"] for row in rows if row["status"] != "missing"}
    return [_with_change(verdict, fixed) if measured & set(verdict.runs) else verdict for verdict in verdicts]


def _with_change(verdict: Verdict, fixed: Mapping[str, str]) -> Verdict:
    """The verdict, marked where its claim is not the one that was fixed before its first run."""
    before = fixed.get(verdict.id)
    if before == verdict.digest:
        return verdict
    how = "declared" if before is None else "changed"
    sentence = f"{verdict.sentence} The claim was {how} after its first run was made."
    return replace(verdict, changed_after_measuring=True, sentence=sentence)


def rows_for_claims(study: Study, frame: pd.DataFrame) -> list[Row]:
    """The rows of the study's rounds as maps, with what is emulated in each."""
    parts = {run.id: emulated_parts(run.spec) for run in study.runs}
    rows: list[dict[str, Any]] = [{str(k): v for k, v in row.items()} for row in frame.to_dict("records")]
    return [{**row, "emulated_parts": parts[row["run"]]} for row in rows]


def _first(study: Study, claim: AnyClaim, rows: Sequence[Row]) -> Verdict | _Tested:
    """A claim's verdict, or its estimates where those of other claims matter for it."""
    empty = verdict_of(claim)
    if study.scale not in claim.scales:
        reason = str(claim.not_testable)
        return replace(empty, verdict=NOT_HERE, reason=reason, sentence=f"Not testable here: {reason}")
    if isinstance(claim, Published):
        return judge_published(study, claim, empty)
    used = rows_of_claim(claim, rows)
    seen = replace(
        empty,
        runs=[row["run"] for row in used],
        emulated_parts=sorted({part for row in used for part in row["emulated_parts"]}),
        disturbed=sum(row.get("disturbed") is True for row in used),
    )
    if isinstance(claim, Exact):
        return judge_exact(study, claim, seen, rows)
    return _tested(study, claim, seen, rows)


def _tested(study: Study, claim: Sampled, verdict: Verdict, rows: Sequence[Row]) -> Verdict | _Tested:
    parts = [part for part in parts_of(claim, rows) if not _skipped(part)]
    if not parts:
        return _not_here(verdict, [row for part in parts_of(claim, rows) for row in part.rows])
    planned = _planned(parts)
    if planned < claim.repeats:
        reason = f"not judgeable at this scale: {words.rounds(planned)} planned, at least {claim.repeats} needed"
        return _inconclusive(verdict, reason, repeats_needed=claim.repeats)
    found = []
    for part in parts:
        try:
            found.append(estimate(claim, part))
        except NotJudged as problem:
            return _inconclusive(verdict, why_not(part.rows, problem), n=0)
    region = region_of(claim)
    return _Tested(claim, verdict, region, parts, found, together(region, found))


def _skipped(part: ClaimPart) -> bool:
    """Whether a side cannot be made here."""
    sides = (part.of, part.against or part.of)
    return any(all(row["status"] == "skipped" for row in side) for side in sides)


def _not_here(verdict: Verdict, rows: Sequence[Row]) -> Verdict:
    reason = next((str(row["reason"]) for row in rows if row["status"] == "skipped"), "its runs cannot be made")
    return replace(verdict, verdict=NOT_HERE, reason=reason, sentence=f"Not testable here: {reason}")


def _planned(parts: Sequence[ClaimPart]) -> int:
    """The fewest rounds that any configuration of the sides is planned with."""
    rows = [row for part in parts for row in part.rows]
    counts = Counter(row["configuration"] for row in _once(rows))
    return min(counts.values())


def _once(rows: Sequence[Row]) -> list[Row]:
    return list({row["run"]: row for row in rows}.values())


def why_not(rows: Sequence[Row], problem: object) -> str:
    """Why there is no number: runs without a result, invalid runs, or runs that do not measure it."""
    rows = _once(rows)
    missing = [row for row in rows if row["status"] == "missing"]
    invalid = [row for row in rows if row["status"] == "invalid"]
    if missing:
        return f"not run: {len(missing)} of {len(rows)} runs have no result"
    if invalid:
        return f"run invalid: {len(invalid)} of {len(rows)} runs: {invalid[0]['reason']}"
    return f"not judgeable at this scale: {problem}"


def region_of(claim: Sampled) -> Region:
    """Where the number of a claim must lie for it to hold."""
    if isinstance(claim, Equivalence):
        assert claim.within is not None
        bounds = (1 / (1 + claim.within), 1 + claim.within) if is_log(claim) else (-claim.within, claim.within)
        return Region(*bounds, one_sided=True)
    if isinstance(claim, Quantity):
        assert claim.value is not None and claim.within is not None
        return Region(claim.value - claim.within, claim.value + claim.within)
    assert isinstance(claim, Direction)
    return Region(
        -math.inf if claim.above is None else claim.above,
        math.inf if claim.below is None else claim.below,
    )


def _decided(study: Study, each: _Tested, p_holm: float, undecided: int) -> Verdict:
    """The verdict of a claim with estimates, now that the other p-values are known."""
    deciding = each.found[each.tested.deciding]
    confidence = confidence_of(each.claim)
    low, high = deciding.interval(confidence)
    verdict = replace(
        each.verdict,
        verdict=(REPRODUCED if each.tested.holds else NOT_REPRODUCED) if p_holm <= ERROR else INCONCLUSIVE,
        estimate=deciding.value,
        low=low,
        high=high,
        confidence=confidence,
        n=deciding.n,
        p=each.tested.p,
        p_holm=p_holm,
    )
    if p_holm > ERROR:
        verdict = _undecided(each, deciding, verdict, ERROR / max(1, undecided))
    return replace(verdict, sentence=_sentence(study, each, deciding, verdict))


def _undecided(each: _Tested, deciding: Estimate, verdict: Verdict, error: float) -> Verdict:
    """How many rounds would decide, from the spread seen, and what those would take that are not there yet."""
    alone = " alone, and not together with the study's other claims" if each.tested.p <= ERROR else ""
    needed = rounds_needed(each.region, deciding, error / len(each.found))
    reason = f"decided{alone}" if alone else "interval too wide"
    if needed is None:
        more = "no number of rounds up to 1,000 would decide it"
        if deciding.own:
            more += "; the number's own error does not shrink with rounds"
        return replace(verdict, reason=f"{reason}: {more}")
    seconds, device_hours = _cost(each.parts, needed - deciding.n)
    cost = f"{words.duration(seconds)}" + (f", {device_hours:.2g} GPU h" if device_hours else "")
    reason = f"{reason}: about {words.rounds(needed)} would decide it, {needed - deciding.n} more, {cost}"
    return replace(verdict, reason=reason, repeats_needed=needed, cost_s=seconds, cost_device_hours=device_hours)


def _cost(parts: Sequence[ClaimPart], rounds: int) -> tuple[float, float]:
    """Wall time in seconds and GPU hours of so many more rounds of all configurations, as long as those that were made."""
    rows = [row for row in _once([row for part in parts for row in part.rows]) if row["status"] == "valid"]
    seconds = hours = 0.0
    by_configuration: dict[str, list[Row]] = {}
    for row in rows:
        by_configuration.setdefault(row["configuration"], []).append(row)
    for members in by_configuration.values():
        walls = [float(row["wall_s"]) for row in members if row["wall_s"] is not None]
        walls = [wall for wall in walls if math.isfinite(wall)]
        wall = rounds * math.fsum(walls) / len(walls) if walls else 0.0
        first = members[0]
        seconds += wall
        if first.get("instrument.device_name") not in (None, "", "cpu"):
            hours += wall * float(first["ranks"]) / 3600
    return seconds, hours


def _sentence(study: Study, each: _Tested, deciding: Estimate, verdict: Verdict) -> str:
    claim = each.claim
    number = words.interval_text(verdict.estimate, verdict.low, verdict.high, verdict.unit)
    part = each.parts[each.tested.deciding]
    head = f"{verdict.verdict.capitalize()}{words.emulated_text(verdict.emulated_parts)}"
    said = f"{head}: {words.number_text(claim)}{words.sides_text(study, claim, part.value)}"
    said += f" is {number}; required: {verdict.threshold}; {words.rounds(deciding.n)}"
    if verdict.disturbed:
        said += f", {verdict.disturbed} of {len(verdict.runs)} runs disturbed by other work"
    return said + (f". {verdict.reason[0].upper()}{verdict.reason[1:]}" if verdict.reason else "") + "."


def _inconclusive(verdict: Verdict, reason: str, **more: Any) -> Verdict:
    sentence = f"Inconclusive{words.emulated_text(verdict.emulated_parts)}: {reason}."
    return replace(verdict, verdict=INCONCLUSIVE, reason=reason, sentence=sentence, **more)
