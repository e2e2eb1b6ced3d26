"""Claims judged by the runs of their study: verdict, number, interval, and the rounds that would decide an open claim.

All claims of one study that have a p-value are judged together: a decision needs its p-value, adjusted by Holm's method over
these claims, to be at most 5 %.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

from scipy.special import ndtri

from scalestudy.claims import words
from scalestudy.claims.basis import basis_of, flip_text, stand_ins_of
from scalestudy.claims.estimate import MeasuredApart, NotJudged, estimate
from scalestudy.claims.fixed import Fixed, with_plan
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
from scalestudy.claims.model import MIN_REPEATS, AnyClaim, Check, Equivalence, Exact, Published, Sampled
from scalestudy.claims.outcome import CONSISTENT, INCONCLUSIVE, INCONSISTENT, NOT_REPRODUCED, REPRODUCED, Verdict
from scalestudy.claims.select import (
    ClaimPart,
    Row,
    chosen,
    configurations,
    parts_of,
    published_number,
    rows_of_claim,
)
from scalestudy.errors import duration
from scalestudy.spec.columns import SPEEDS, is_number, kind_of, matches
from scalestudy.spec.labels import column_label, counted, listed, lower
from scalestudy.spec.study import Study

SAME = 1e-9
"""Relative difference up to which two numbers are the same fact."""
WINDOW_COLUMNS = (*SPEEDS, "step_time_s", "epoch_time_s")
"""Columns that are a mean of the window, or its inverse."""


@dataclass(frozen=True)
class _Estimated:
    """A claim with estimates, before those of the study's other claims are known."""

    claim: Sampled
    verdict: Verdict
    region: Region
    parts: list[ClaimPart]
    look: int
    """Rounds that were looked at."""
    found: list[Estimate]
    tested: Tested
    left_out: list[Any]
    """Values of `each` that this machine does not compare."""

    @property
    def deciding(self) -> Estimate:
        """The estimate that decides."""
        return self.found[self.tested.deciding]

    @property
    def value(self) -> Any:
        """The value of `each` that decides."""
        return self.parts[self.tested.deciding].value


def judge(
    study: Study, rows: Sequence[Row], fixed: Mapping[str, Fixed], others: Sequence[Sequence[Row]] = ()
) -> list[Verdict]:
    """A verdict for each claim of a study, in the order of the file.

    `rows` has one row per run; `fixed` the claims as they were when their first runs were made; `others` the rows of the
    machine's other campaigns, which decide nothing here and tell how much the next may differ.
    """
    first = [_first(study, with_plan(claim, rows, fixed), rows) for claim in study.claims]
    estimated = [each for each in first if isinstance(each, _Estimated)]
    adjusted = holm(each.tested.p for each in estimated)
    undecided = sum(p > ERROR for p in adjusted)
    final = iter(_decided(study, each, p, undecided, others) for each, p in zip(estimated, adjusted, strict=True))
    verdicts = [next(final) if isinstance(each, _Estimated) else each for each in first]
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


def _first(study: Study, claim: AnyClaim, rows: Sequence[Row]) -> Verdict | _Estimated:
    """A claim's verdict, or its estimates where those of other claims matter for it."""
    verdict = Verdict.of(claim)
    if study.scale not in claim.scales:
        return verdict.not_here(str(claim.not_testable))
    if isinstance(claim, Published):
        return judge_published(study, claim, verdict)
    used = rows_of_claim(claim, rows)
    made = {row["run"] for row in used}
    stand_ins = stand_ins_of(claim, [run for run in study.runs if run.id in made], used)
    verdict = replace(
        verdict,
        runs=list(dict.fromkeys(row["run"] for row in used)),
        basis=basis_of(claim, stand_ins),
        stand_ins=stand_ins,
        measured_on=sorted({_place(row) for row in used if row.get("instrument.cpu")}),
        disturbed=sum(row.get("disturbed") is True for row in used),
    )
    if isinstance(claim, Exact):
        return _exact(study, claim, verdict, rows)
    return _estimated(claim, verdict, rows)


def _place(row: Row) -> str:
    """`AMD EPYC, 2 cores`, and the accelerator where there is one."""
    device = row.get("instrument.device_name")
    place = f"{row['instrument.cpu']}, {row.get('instrument.cores')} cores"
    return place if device in (None, "", "cpu") else f"{place}, {device}"


def _undecided(verdict: Verdict, rows: Sequence[Row], planned: int, problem: object) -> Verdict:
    """Why `rows` of `planned` runs give no number: no result, an invalid run, or the `problem`."""
    missing = [row for row in rows if row["status"] == "missing"]
    invalid = [row for row in rows if row["status"] == "invalid"]
    if missing:
        return verdict.not_run(len(missing), planned)
    if invalid:
        reason = f"run invalid: {len(invalid)} of {planned} runs: {invalid[0]['reason']}"
        return verdict.inconclusive(reason, n=0)
    return verdict.inconclusive(f"not judgeable at this scale: {problem}", n=0)


# Facts: what holds in every run, and arithmetic on published rows


def _exact(study: Study, claim: Exact, verdict: Verdict, rows: Sequence[Row]) -> Verdict:
    """Reproduced where every run of every check has the value; one run with another value decides against it."""
    check_texts, absent, held, repeats, is_all_here = [], {}, True, set(), True
    for check in claim.checks:
        values, runs = [], chosen(rows, claim.where, check.of)
        is_all_here = is_all_here and bool(runs)
        for row in runs:
            repeats.add(row["repeat"])
            value = _fact(row, check.column)
            if value is None:
                absent[row["run"]] = row
            else:
                values.append(value)
        agreeing = sum(_agrees(value, check.equals) for value in values)
        held = held and agreeing == len(values)
        check_texts.append(_check_text(study, check, agreeing, values))
    if held and not is_all_here:
        return verdict.not_here("this machine does not have its runs")
    if held and absent:
        without = list(absent.values())
        if all(row["status"] == "skipped" for row in without):
            return verdict.not_here(str(without[0]["reason"]))
        problem = f"{len(without)} of {len(verdict.runs)} runs do not have the value"
        return _undecided(verdict, without, len(verdict.runs), problem)
    outcome = REPRODUCED if held else NOT_REPRODUCED
    return verdict.decided(outcome, f"{'; '.join(check_texts)}; {counted(len(repeats), 'round')}", n=len(repeats))


def _fact(row: Row, column: str) -> Any:
    """A run's value in a column; None where it has none."""
    if row["status"] == "missing" or (column not in ("status", "reason") and row["status"] != "valid"):
        return None
    value = row.get(column)
    return None if isinstance(value, float) and math.isnan(value) else value


def _agrees(value: Any, target: Any) -> bool:
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        numbers = [one for one in (target if isinstance(target, list) else [target]) if isinstance(one, (int, float))]
        return any(math.isclose(value, one, rel_tol=SAME, abs_tol=SAME) for one in numbers)
    return matches(value, target)


def _check_text(study: Study, check: Check, agreeing: int, values: Sequence[Any]) -> str:
    where = words.side_text(study, check.of)
    targets = check.equals if isinstance(check.equals, list) else [check.equals]
    agreement = f"{agreeing} of {len(values)} runs{f' with {where}' if where else ''} have `{check.column}`"
    other = sorted({str(value) for value in values if not _agrees(value, check.equals)})[:3]
    return f"{agreement} {' or '.join(map(str, targets))}" + (f", others have {', '.join(other)}" if other else "")


def judge_published(study: Study, claim: Published, verdict: Verdict) -> Verdict:
    """Whether published rows agree with the document's statement of them, within its rounding."""
    value = published_number(claim)
    if claim.value is not None:  # the ends of a rounding are within it
        holds = abs(value - claim.value) < (1 + SAME) * (claim.within or 0.0)
    else:
        holds = value > claim.above if claim.above is not None else value < (claim.below or 0.0)
    unit = f" {verdict.unit}" if verdict.unit else ""
    number = f"{words.compared_text(study, claim)} = {words.plain(value)}{unit}; required: {verdict.threshold}{unit}"
    return verdict.decided(CONSISTENT if holds else INCONSISTENT, f"by the published rows, {number}", estimate=value)


# Numbers with an interval


def _estimated(claim: Sampled, verdict: Verdict, rows: Sequence[Row]) -> Verdict | _Estimated:
    every = parts_of(claim, rows)
    parts = [part for part in every if not _is_skipped(claim, part)]
    left_out = [part.value for part in every if _is_skipped(claim, part)]
    if not parts:
        reasons = (str(row["reason"]) for part in every for row in part.rows if row["status"] == "skipped")
        return verdict.not_here(next(reasons, "this machine does not have its runs"))
    planned = min(Counter(row["configuration"] for row in _once(parts)).values())
    needed = max(MIN_REPEATS, claim.looks[0])
    if planned < needed:
        reason = f"not judgeable at this scale: {counted(planned, 'round')} planned, at least {needed} needed"
        return verdict.inconclusive(reason, repeats_needed=needed)
    missing = [row["repeat"] for row in _once(parts) if row["status"] == "missing"]
    complete = _rounds(parts).index(min(missing)) if missing else planned
    look = max((look for look in claim.looks if look <= complete), default=claim.looks[0])
    parts = _before(parts, look)
    if look > complete:
        return _undecided(verdict, _once(parts), len(_once(parts)), "not complete")
    estimates = []
    for part in parts:
        try:
            estimates.append(estimate(claim, part))
        except MeasuredApart as problem:
            return verdict.inconclusive(f"measured apart: {problem}", n=0)
        except NotJudged as problem:
            used = _once([part])
            return _undecided(verdict, used, len(used), problem)
    region = Region(*claim.bounds, one_sided=isinstance(claim, Equivalence))
    return _Estimated(claim, verdict, region, parts, look, estimates, together(region, estimates), left_out)


def _is_skipped(claim: Sampled, part: ClaimPart) -> bool:
    """Whether this machine has no runs of a side, the same ones on both, or a single point of a slope."""
    if len({configurations(side) for side in part.sides}) < len(part.sides):
        return True
    fewest = 1 if claim.over is None else 2
    return any(
        len(configurations(side)) < fewest or all(row["status"] == "skipped" for row in side) for side in part.sides
    )


def _rounds(parts: Sequence[ClaimPart]) -> list[int]:
    """The repeats of a claim's runs; those that its `where` leaves out are none of its rounds."""
    return sorted({row["repeat"] for row in _once(parts)})


def _before(parts: Sequence[ClaimPart], look: int) -> list[ClaimPart]:
    """The rows of the rounds up to a look: later ones decide nothing before the next."""
    rounds = _rounds(parts)[:look]
    seen = [[tuple(row for row in side if row["repeat"] in rounds) for side in part.sides] for part in parts]
    return [ClaimPart(part.value, tuple(sides)) for part, sides in zip(parts, seen, strict=True)]


def _once(parts: Sequence[ClaimPart]) -> list[Row]:
    """The rows of all parts, each run once."""
    return list({row["run"]: row for part in parts for row in part.rows}.values())


def _decided(
    study: Study, each: _Estimated, p_holm: float, undecided: int, campaigns: Sequence[Sequence[Row]]
) -> Verdict:
    """The verdict of a claim with estimates, now that the other p-values are known."""
    deciding = each.deciding
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
        verdict = _with_rounds(each, verdict, ERROR / max(1, undecided))
    return verdict.decided(outcome, _finding(study, each, verdict))


def _with_next(verdict: Verdict, each: _Estimated, campaigns: Iterable[Sequence[Row]]) -> Verdict:
    """The verdict with the interval for the next campaign, by Student's prediction interval, once there are enough."""
    levels = [each.deciding.median]  # on logarithms where the claim is
    for rows in campaigns:
        for part in _before(parts_of(each.claim, rows), each.look):
            if part.value == each.value:
                with suppress(NotJudged):
                    levels.append(estimate(each.claim, part).median)
    if len(levels) < MIN_CAMPAIGNS:
        return replace(verdict, campaigns=len(levels))
    low, high = Estimate(tuple(levels), log=each.claim.is_log, of_next=True).interval(1 - ERROR)
    return replace(verdict, campaigns=len(levels), next_low=low, next_high=high)


def _with_rounds(each: _Estimated, verdict: Verdict, error: float) -> Verdict:
    """The verdict with the rounds of a new campaign that would decide it, from the spread so far, and their cost."""
    reason = "interval too wide"
    if each.tested.p <= ERROR:
        reason = "decided alone, and not together with the study's other claims"
    needed = rounds_needed(each.region, each.deciding, error / len(each.found))
    share = _share_of_windows(each)
    windows = (
        "" if share is None else f"; longer windows would lessen the variance of rounds by at most {100 * share:.0f} %"
    )
    if needed is None:
        own = "; the number's own error does not shrink with rounds" if each.deciding.own else ""
        return replace(verdict, reason=f"{reason}: no number of rounds up to 1,000 would decide it{own}{windows}")
    seconds, device_hours = _cost(each.parts, needed)
    cost = duration(seconds) + (f", {device_hours:.2g} GPU h" if device_hours else "")
    would = f"{counted(needed, 'round')} of a new campaign would decide it with a probability of {100 * POWER:.0f} %"
    return replace(verdict, reason=f"{reason}: {would}, {cost}{windows}", repeats_needed=needed)


def _share_of_windows(each: _Estimated) -> float | None:
    """Bound the part of the rounds' variance that is scatter within windows; None where the number is no mean of a window.

    Scatter that is alike in spells counts, by `window_half_width`; its quantile is taken for the normal one.
    """
    claim, spread = each.claim, each.deciding.spread
    if claim.column not in WINDOW_COLUMNS or claim.per or claim.over or not (claim.is_log and spread):
        return None
    variance = 0.0
    for side in each.parts[each.tested.deciding].sides:
        halves = [row["window_half_width"] for row in side if is_number(row.get("window_half_width"))]
        if not halves:
            return None
        variance += math.fsum(half**2 for half in halves) / len(halves) / float(ndtri(0.975)) ** 2
    return min(1.0, variance / spread**2)


def _cost(parts: Sequence[ClaimPart], rounds: int) -> tuple[float, float]:
    """Estimate wall time in seconds and GPU hours of so many rounds, by the rounds so far that have only valid runs."""
    rows = _once(parts)
    broken = {row["repeat"] for row in rows if row["status"] != "valid"}
    timed = [row for row in rows if row["repeat"] not in broken and is_number(row["wall_s"])]
    of_devices = [row for row in timed if row.get("instrument.device_name") not in (None, "", "cpu")]
    rounds_made = max(1, len({row["repeat"] for row in timed}))
    seconds = math.fsum(row["wall_s"] for row in timed)
    hours = math.fsum(row["wall_s"] * row["ranks"] for row in of_devices) / 3600
    return rounds / rounds_made * seconds, rounds / rounds_made * hours


def _one_after_the_other(part: ClaimPart) -> bool:
    """Whether the last run of one configuration began before the first of another: then a slow hour is not in both."""
    starts: dict[str, list[str]] = {}
    for row in part.rows:
        if row["status"] == "valid" and row.get("started"):
            starts.setdefault(row["configuration"], []).append(row["started"])
    return len(starts) > 1 and min(map(max, starts.values())) < max(map(min, starts.values()))


def _reported(each: _Estimated) -> str:
    """The columns of a claim that programs reported, in words; empty where all were measured."""
    rows, columns = _once(each.parts), filter(None, (each.claim.column, each.claim.per))
    reported_columns = [column for column in columns if any(kind_of(row, column) == "reported" for row in rows)]
    return " and ".join(map(lower, map(column_label, reported_columns)))


def _finding(study: Study, each: _Estimated, verdict: Verdict) -> str:
    """The number of a judged claim with its sides, limit, rounds and reason."""
    number = words.interval_text(verdict.estimate, verdict.low, verdict.high, verdict.unit)
    text = f"{words.compared_text(study, each.claim, each.value)} = {number}; required: {verdict.threshold}"
    text += f", the least favourable of {len(each.found)}" if len(each.found) > 1 else ""
    if each.left_out:
        text += f"; not compared here: {listed(words.side_text(study, {str(each.claim.each): one}) for one in each.left_out)}"
    if named := _reported(each):
        text += f"; {named} reported by the program"
    text += f"; {counted(verdict.n or 0, 'round')} of this campaign"
    if verdict.next_low is not None:
        next_one = f"{verdict.next_low:.3g} to {verdict.next_high:.3g}"
        text += f", {verdict.campaigns} campaigns predict {next_one} for the next"
    text += f", {verdict.apart} far from the others" if verdict.apart else ""
    text += f", look {verdict.look} of {len(verdict.looks)}" if len(verdict.looks) > 1 else ""
    if verdict.disturbed:
        text += f", {verdict.disturbed} of {len(verdict.runs)} runs disturbed by other work"
    if _one_after_the_other(each.parts[each.tested.deciding]):
        text += ", all runs of one configuration made before those of another"
    return text + (f". {verdict.reason[0].upper()}{verdict.reason[1:]}" if verdict.reason else "")
