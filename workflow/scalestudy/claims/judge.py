"""Claims judged by the runs of their study: verdict, number, interval, and the rounds that would decide an open claim.

All claims of one study that have a p-value are judged together: a decision needs its p-value, adjusted by Holm's method over
these claims, to be at most 5 %.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace

import pandas as pd

from scalestudy.claims import words
from scalestudy.claims.basis import basis_of, stand_ins_of
from scalestudy.claims.estimate import MeasuredApart, NotJudged, estimate
from scalestudy.claims.facts import judge_exact, judge_published
from scalestudy.claims.fixed import Fixed, with_plan
from scalestudy.claims.flip import flip_text
from scalestudy.claims.inference import (
    ERROR,
    MIN_CAMPAIGNS,
    POWER,
    Estimate,
    Region,
    Tested,
    holm,
    rounds_needed,
    together,
)
from scalestudy.claims.model import AnyClaim, Equivalence, Exact, Published, Sampled
from scalestudy.claims.select import ClaimPart, Row, parts_of, rows_of_claim
from scalestudy.claims.verdict import INCONCLUSIVE, NOT_REPRODUCED, REPRODUCED, Verdict, absence
from scalestudy.spec.study import Study


@dataclass(frozen=True)
class _Tested:
    """A claim with estimates, before those of the study's other claims are known."""

    claim: Sampled
    verdict: Verdict
    region: Region
    parts: list[ClaimPart]
    look: int
    """Rounds that were looked at."""
    found: list[Estimate]
    tested: Tested


def judge(
    study: Study, frame: pd.DataFrame, fixed: Mapping[str, Fixed], others: Iterable[pd.DataFrame] = ()
) -> list[Verdict]:
    """A verdict for each claim of a study, in the order of the file.

    `frame` holds its rows, one per run; `fixed` the claims as they were when their first runs were made; `others` the rows of
    the machine's other campaigns, which decide nothing here and tell how much the next may differ.
    """
    rows = rows_for_claims(frame)
    first = [_first(study, with_plan(claim, rows, fixed), rows) for claim in study.claims]
    tested = [each for each in first if isinstance(each, _Tested)]
    adjusted = holm(each.tested.p for each in tested)
    undecided = sum(p > ERROR for p in adjusted)
    campaigns = [rows_for_claims(each) for each in others]
    final = iter(_decided(study, each, p, undecided, campaigns) for each, p in zip(tested, adjusted, strict=True))
    verdicts = [next(final) if isinstance(each, _Tested) else each for each in first]
    measured = {row["run"] for row in rows if row["status"] != "missing"}
    return [_with_change(verdict, fixed) if measured & set(verdict.runs) else verdict for verdict in verdicts]


def _with_change(verdict: Verdict, fixed: Mapping[str, Fixed]) -> Verdict:
    """The verdict, marked where its claim is not the one that was fixed before its first run."""
    before = fixed.get(verdict.id)
    if before is not None and before.digest == verdict.digest:
        return verdict
    how = "declared" if before is None else "changed"
    sentence = f"{verdict.sentence} The claim was {how} after its first run was made."
    return replace(verdict, changed_after_measuring=True, sentence=sentence)


def rows_for_claims(frame: pd.DataFrame) -> list[Row]:
    """The rows of the study's rounds as maps."""
    return [{str(key): value for key, value in row.items()} for row in frame.to_dict("records")]


def _first(study: Study, claim: AnyClaim, rows: Sequence[Row]) -> Verdict | _Tested:
    """A claim's verdict, or its estimates where those of other claims matter for it."""
    verdict = Verdict.of(claim)
    if study.scale not in claim.scales:
        return verdict.not_here(str(claim.not_testable))
    if isinstance(claim, Published):
        return judge_published(study, claim, verdict)
    used = rows_of_claim(claim, rows)
    made = {row["run"]: row.get("instrument.device_name") for row in used}
    stand_ins = stand_ins_of(claim, [run for run in study.runs if run.id in made], set(made.values()))
    verdict = replace(
        verdict,
        runs=list(made),
        basis=basis_of(claim, stand_ins),
        stand_ins=stand_ins,
        measured_on=sorted({_place(row) for row in used if row.get("instrument.cpu")}),
        disturbed=sum(row.get("disturbed") is True for row in used),
    )
    if isinstance(claim, Exact):
        return judge_exact(study, claim, verdict, rows)
    return _tested(claim, verdict, rows)


def _place(row: Row) -> str:
    """`AMD EPYC, 2 cores`, and the accelerator where there is one."""
    device = row.get("instrument.device_name")
    place = f"{row['instrument.cpu']}, {row.get('instrument.cores')} cores"
    return place if device in (None, "", "cpu") else f"{place}, {device}"


def _tested(claim: Sampled, verdict: Verdict, rows: Sequence[Row]) -> Verdict | _Tested:
    every = parts_of(claim, rows)
    parts = [part for part in every if not _is_skipped(part)]
    if not parts:
        reasons = (str(row["reason"]) for part in every for row in part.rows if row["status"] == "skipped")
        return verdict.not_here(next(reasons, "this machine does not have its runs"))
    planned = min(Counter(row["configuration"] for row in _once(parts)).values())
    needed = max(claim.repeats, claim.looks[0])
    if planned < needed:
        return verdict.too_few_planned(planned, needed, repeats_needed=needed)
    missing = (row["repeat"] for row in _once(parts) if row["status"] == "missing")
    complete = min(missing, default=planned)
    look = max((look for look in claim.looks if look <= complete), default=claim.looks[0])
    parts = [_before(part, look) for part in parts]
    if look > complete:
        return verdict.inconclusive(absence(_once(parts), len(_once(parts)), "not complete"), n=0)
    found = []
    for part in parts:
        try:
            found.append(estimate(claim, part))
        except MeasuredApart as problem:
            return verdict.inconclusive(f"measured apart: {problem}", n=0)
        except NotJudged as problem:
            used = _once([part])
            return verdict.inconclusive(absence(used, len(used), problem), n=0)
    region = Region(*claim.bounds, one_sided=isinstance(claim, Equivalence))
    return _Tested(claim, verdict, region, parts, look, found, together(region, found))


def _is_skipped(part: ClaimPart) -> bool:
    """Whether this machine has no runs of a side, or the same ones on both."""
    sides = (part.of, part.against or part.of)
    return part.of == part.against or any(all(row["status"] == "skipped" for row in side) for side in sides)


def _before(part: ClaimPart, look: int) -> ClaimPart:
    """The rows of the rounds up to a look: later ones decide nothing before the next."""
    of, against = (
        None if side is None else tuple(row for row in side if row["repeat"] < look) for side in (part.of, part.against)
    )
    return ClaimPart(part.value, of or (), against)


def _once(parts: Sequence[ClaimPart]) -> list[Row]:
    """The rows of all parts, each run once."""
    return list({row["run"]: row for part in parts for row in part.rows}.values())


def _levels(each: _Tested, campaigns: Iterable[Sequence[Row]]) -> Iterator[float]:
    """The deciding number of this campaign and of those others that have it, logarithms where the claim is on them."""
    deciding = each.tested.deciding
    yield each.found[deciding].median
    for rows in campaigns:
        for part in parts_of(each.claim, rows):
            if part.value == each.parts[deciding].value:
                with suppress(NotJudged):
                    yield estimate(each.claim, _before(part, each.look)).median


def _with_next(verdict: Verdict, each: _Tested, campaigns: Iterable[Sequence[Row]]) -> Verdict:
    """The verdict with the interval for the next campaign, by Student's prediction interval, once there are enough."""
    levels = tuple(_levels(each, campaigns))
    if len(levels) < MIN_CAMPAIGNS:
        return replace(verdict, campaigns=len(levels))
    found = Estimate(levels, log=each.claim.is_log, of_next=True)
    low, high = found.interval(1 - ERROR)
    rounds = each.found[each.tested.deciding]
    # A campaign's level varies by its rounds as well: variances are those of the one-way random-effects model.
    between = math.sqrt(max(0.0, found.spread**2 - rounds.spread**2 / rounds.n))
    return replace(
        verdict,
        campaigns=found.n,
        next_low=low,
        next_high=high,
        between_rounds=rounds.spread,
        between_campaigns=between,
    )


def _decided(study: Study, each: _Tested, p_holm: float, undecided: int, campaigns: Sequence[Sequence[Row]]) -> Verdict:
    """The verdict of a claim with estimates, now that the other p-values are known."""
    deciding = each.found[each.tested.deciding]
    # Two one-sided tests at 5 % decide an equivalence, and show as an interval of 90 %.
    confidence = 1 - ERROR * (2 if each.region.one_sided else 1) / deciding.looks
    low, high = deciding.interval(confidence)
    verdict = replace(
        each.verdict,
        estimate=deciding.value,
        low=low,
        high=high,
        confidence=confidence,
        n=deciding.n,
        p=each.tested.p,
        p_holm=p_holm,
        apart=deciding.apart,
        look=each.claim.looks.index(each.look) + 1,
        looks=list(each.claim.looks),
    )
    verdict = _with_next(verdict, each, campaigns)
    outcome = INCONCLUSIVE
    if p_holm <= ERROR:
        outcome = REPRODUCED if each.tested.holds else NOT_REPRODUCED
        flips = flip_text(each.claim, each.parts[each.tested.deciding])
        verdict = replace(verdict, stand_ins=[*verdict.stand_ins, *flips])
    else:
        verdict = _with_rounds(each, deciding, verdict, ERROR / max(1, undecided))
    said = words.finding_text(study, each.claim, verdict, each.parts[each.tested.deciding].value)
    return verdict.decided(outcome, said)


def _with_rounds(each: _Tested, deciding: Estimate, verdict: Verdict, error: float) -> Verdict:
    """The verdict with the rounds of a new campaign that would decide it, from the spread so far, and their cost."""
    reason = "interval too wide"
    if each.tested.p <= ERROR:
        reason = "decided alone, and not together with the study's other claims"
    needed = rounds_needed(each.region, deciding, error / len(each.found))
    if needed is None:
        own = "; the number's own error does not shrink with rounds" if deciding.own else ""
        return replace(verdict, reason=f"{reason}: no number of rounds up to 1,000 would decide it{own}")
    seconds, device_hours = _cost(each.parts, needed)
    cost = f"{words.duration(seconds)}" + (f", {device_hours:.2g} GPU h" if device_hours else "")
    reason = f"{reason}: {words.rounds(needed)} of a new campaign would decide it with a probability of {100 * POWER:.0f} %, {cost}"
    return replace(verdict, reason=reason, repeats_needed=needed, cost_s=seconds, cost_device_hours=device_hours)


def _cost(parts: Sequence[ClaimPart], rounds: int) -> tuple[float, float]:
    """Wall time in seconds and GPU hours of so many rounds of all configurations, each as long as its runs so far."""
    seconds = hours = 0.0
    by_configuration: dict[str, list[Row]] = {}
    for row in _once(parts):
        if row["status"] == "valid":
            by_configuration.setdefault(row["configuration"], []).append(row)
    for members in by_configuration.values():
        walls = [float(row["wall_s"]) for row in members if row["wall_s"] is not None]
        walls = [wall for wall in walls if math.isfinite(wall)]
        wall = rounds * math.fsum(walls) / len(walls) if walls else 0.0
        seconds += wall
        if members[0].get("instrument.device_name") not in (None, "", "cpu"):
            hours += wall * float(members[0]["ranks"]) / 3600
    return seconds, hours
