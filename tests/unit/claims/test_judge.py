"""Each kind of claim can come out every way; what is undecided says why and what would decide it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from scalestudy.claims.fixed import Fixed
from scalestudy.claims.judge import judge
from scalestudy.claims.verdict import Verdict
from scalestudy.spec.study import Run
from tests.unit.claims.made_claims import DIRECTION, Numbers, as_fixed, frame_of, study_with, verdicts

NEEDED = ["run", "configuration", "repeat", "status", "reason", "strategy", "train.epochs", "wall_s"]
"""Columns that a judgement of these claims reads, beside the numbers."""

NOISE = (-0.010, 0.006, 0.000, -0.004, 0.008, 0.002, -0.007, 0.005, 0.001, -0.001)
WILD = (-0.5, 0.4, 0.0, -0.3, 0.5)


def rates(server: float, noise: tuple[float, ...] = NOISE, ring: float = 100.0) -> Numbers:
    """Throughput of the server and of the ring; the server's rounds are spread by `noise`."""

    def numbers(run: Run) -> Mapping[str, Any]:
        if run.spec.strategy.name == "allreduce":
            return {"throughput_samples_per_s": ring}
        return {"throughput_samples_per_s": server * float(np.exp(noise[run.spec.repeat]))}

    return numbers


@pytest.mark.parametrize(
    ("server", "noise", "verdict"),
    [
        (80.0, NOISE, "reproduced"),
        (100.0, NOISE, "not reproduced"),
        (120.0, NOISE, "not reproduced"),
        (95.2, NOISE, "inconclusive"),
        (80.0, WILD, "inconclusive"),
    ],
)
def test_a_direction(tmp_path: Path, server: float, noise: tuple[float, ...], verdict: str) -> None:
    (found,) = verdicts(study_with(tmp_path, DIRECTION), rates(server, noise))
    assert found.verdict == verdict
    assert found.estimate == pytest.approx(server / 100, rel=0.05)


@pytest.mark.parametrize(("base_ranks", "verdict"), [(2, "inconclusive"), (1, "reproduced")])
@pytest.mark.parametrize("column", ["own_efficiency", "own_speedup", "efficiency", "speedup"])
def test_efficiencies_over_unlike_bases_are_not_compared(
    tmp_path: Path, column: str, base_ranks: int, verdict: str
) -> None:
    claim = DIRECTION.replace("throughput_samples_per_s", column)

    def numbers(run: Run) -> Mapping[str, Any]:
        is_server = run.spec.strategy.name == "parameter_server"
        base = 1 if is_server else base_ranks
        return {
            column: 0.5 if is_server else 0.8 + NOISE[run.spec.repeat],
            "baseline_ranks": base,
            "own_baseline_ranks": base,
        }

    (found,) = verdicts(study_with(tmp_path, claim), numbers)
    assert found.verdict == verdict
    if verdict == "inconclusive":
        assert f"`{column}` has bases of 1 and 2 ranks, which do not compare" in found.reason


EQUIVALENCE = DIRECTION.replace("direction", "equivalence").replace("below: 0.95", "within: 0.05")


@pytest.mark.parametrize(
    ("server", "noise", "verdict"),
    [
        (101.0, NOISE, "reproduced"),
        (110.0, NOISE, "not reproduced"),
        (104.8, NOISE, "inconclusive"),
        (100.0, WILD, "inconclusive"),
    ],
)
def test_an_equivalence(tmp_path: Path, server: float, noise: tuple[float, ...], verdict: str) -> None:
    (found,) = verdicts(study_with(tmp_path, EQUIVALENCE), rates(server, noise))
    assert (found.verdict, found.confidence) == (verdict, pytest.approx(0.90))


QUANTITY = """kind: quantity
    column: throughput_samples_per_s
    where: {train.epochs: 1, strategy: parameter_server}
    value: 3
    within: 0.15
    margin_reason: five percent"""


@pytest.mark.parametrize(
    ("server", "noise", "verdict"),
    [
        (3.01, NOISE, "reproduced"),
        (3.50, NOISE, "not reproduced"),
        (3.149, NOISE, "inconclusive"),
        (3.00, WILD, "inconclusive"),
    ],
)
def test_a_quantity(tmp_path: Path, server: float, noise: tuple[float, ...], verdict: str) -> None:
    (found,) = verdicts(study_with(tmp_path, QUANTITY), rates(server, noise))
    assert (found.verdict, found.unit) == (verdict, "samples/s")


EXACT = """kind: exact
    where: {train.epochs: 1}
    checks:
      - {column: status, of: {strategy: allreduce}, equals: skipped}
      - {column: staged_bytes, of: {strategy: parameter_server}, equals: 0}"""


@pytest.mark.parametrize(
    ("ring", "staged", "verdict"),
    [
        ("skipped", 0.0, "reproduced"),
        ("valid", 0.0, "not reproduced"),
        ("skipped", 5.0, "not reproduced"),
        ("missing", 0.0, "inconclusive"),
        ("skipped", float("nan"), "inconclusive"),
    ],
)
def test_an_exact_claim(tmp_path: Path, ring: str, staged: float, verdict: str) -> None:
    def numbers(run: Run) -> Mapping[str, Any]:
        return {"status": ring} if run.spec.strategy.name == "allreduce" else {"staged_bytes": staged}

    (found,) = verdicts(study_with(tmp_path, EXACT), numbers)
    assert found.verdict == verdict


PUBLISHED = """kind: published
    column: training_time_s
    reference: [times]
    of: {ranks: 1}
    against: {ranks: 128}
    value: 101
    within: 0.5
    margin_reason: whole numbers"""


@pytest.mark.parametrize(("time", "verdict"), [("10100", "consistent"), ("10200", "inconsistent")])
def test_a_published_table_is_consistent_or_not_and_never_reproduced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, time: str, verdict: str
) -> None:
    folder = tmp_path / "config/reference"
    folder.mkdir(parents=True)
    (folder / "times.csv").write_text(f"ranks,training_time_s\n1,{time}\n128,100\n4,\n")
    monkeypatch.chdir(tmp_path)
    (found,) = verdicts(study_with(tmp_path, PUBLISHED), lambda run: {"status": "missing"})
    assert (found.verdict, found.n, found.p) == (verdict, 1, None)
    assert f"= {float(time) / 100:g}; required: 101 ± 0.5" in found.sentence


SLOPE = """kind: quantity
    column: training_time_s
    over: train.epochs
    where: {strategy: allreduce}
    value: 1
    within: 0.05
    margin_reason: proportional"""


@pytest.mark.parametrize(("power", "verdict"), [(1.01, "reproduced"), (0.8, "not reproduced")])
def test_a_slope_on_logarithms_is_the_power_of_the_axis(tmp_path: Path, power: float, verdict: str) -> None:
    def numbers(run: Run) -> Mapping[str, Any]:
        noise = 1 + 0.01 * NOISE[run.spec.repeat] * run.spec.train.epochs
        return {"training_time_s": 7 * run.spec.train.epochs**power * noise}

    (found,) = verdicts(study_with(tmp_path, SLOPE), numbers)
    assert (found.verdict, found.estimate) == (verdict, pytest.approx(power, abs=0.01))


def test_the_ratio_of_two_slopes_compares_what_is_added_per_unit_of_the_axis(tmp_path: Path) -> None:
    text = """kind: equivalence
    column: training_time_s
    over: train.epochs
    where: {strategy: allreduce}
    of: {train.epochs: [4, 8]}
    against: {train.epochs: [1, 2]}
    within: 0.1
    margin_reason: the same increase"""

    def numbers(run: Run) -> Mapping[str, Any]:
        epochs = run.spec.train.epochs
        return {"training_time_s": 100 + (10 + NOISE[run.spec.repeat]) * epochs + (90 if epochs > 2 else 0)}

    (found,) = verdicts(study_with(tmp_path, text), numbers)
    assert (found.verdict, found.estimate) == ("reproduced", pytest.approx(1.0, abs=1e-6))


def test_a_share_of_a_difference_is_taken_round_by_round(tmp_path: Path) -> None:
    text = """kind: direction
    column: setup_s
    per: wall_s
    compare: share
    where: {strategy: allreduce}
    of: {train.epochs: 2}
    against: {train.epochs: 1}
    above: 0.5
    margin_reason: more than half"""

    def numbers(run: Run) -> Mapping[str, Any]:
        more = run.spec.train.epochs - 1
        return {"setup_s": 1 + 3 * more * (1 + NOISE[run.spec.repeat]), "wall_s": 10 + 4 * more}

    (found,) = verdicts(study_with(tmp_path, text), numbers)
    assert (found.verdict, found.estimate) == ("reproduced", pytest.approx(0.75, abs=0.01))


def test_a_claim_over_each_value_fails_by_the_one_that_contradicts_it(tmp_path: Path) -> None:
    text = DIRECTION.replace("where: {train.epochs: 1}", "where: {train.epochs: [1, 2]}\n    each: train.epochs")

    def numbers(run: Run) -> Mapping[str, Any]:
        return rates(80.0 if run.spec.train.epochs == 1 else 130.0)(run)

    (found,) = verdicts(study_with(tmp_path, text), numbers)
    assert (found.verdict, found.estimate) == ("not reproduced", pytest.approx(1.3, rel=0.01))
    assert "train epochs 2" in found.sentence or "epochs 2" in found.sentence


def test_of_several_configurations_the_best_is_taken(tmp_path: Path) -> None:
    text = DIRECTION.replace("where: {train.epochs: 1}", "take: most")

    def numbers(run: Run) -> Mapping[str, Any]:
        return {"throughput_samples_per_s": rates(80.0)(run)["throughput_samples_per_s"] * run.spec.train.epochs}

    (found,) = verdicts(study_with(tmp_path, text), numbers)
    assert (found.verdict, found.estimate) == ("reproduced", pytest.approx(0.8, rel=0.01))


def test_rounds_are_paired_so_that_a_disturbed_round_costs_no_precision(tmp_path: Path) -> None:
    def numbers(run: Run) -> Mapping[str, Any]:
        disturbed = 1 + abs(WILD[run.spec.repeat])
        return {"throughput_samples_per_s": rates(90.0)(run)["throughput_samples_per_s"] / disturbed}

    (found,) = verdicts(study_with(tmp_path, DIRECTION), numbers)
    assert found.verdict == "reproduced"
    assert found.high is not None and found.low is not None and found.high - found.low < 0.03


def test_runs_of_unlike_rounds_are_not_compared(tmp_path: Path) -> None:
    def numbers(run: Run) -> Mapping[str, Any]:
        odd = run.spec.repeat % 2 == 1
        if odd == (run.spec.strategy.name == "allreduce"):
            return {"status": "invalid", "reason": "a window too short"}
        return rates(80.0)(run)

    (found,) = verdicts(study_with(tmp_path, DIRECTION, repeats=10), numbers)
    assert found.reason == "run invalid: 10 of 20 runs: a window too short"


@pytest.mark.parametrize(
    ("status", "reason", "said"),
    [
        ("missing", "no result yet", "not run: 5 of 10 runs have no result"),
        ("invalid", "too short", "run invalid: 5 of 10 runs: too short"),
        ("valid", "", "not judgeable at this scale: no valid run has a `throughput_samples_per_s`"),
    ],
)
def test_a_claim_without_its_runs_is_inconclusive_and_says_why(
    tmp_path: Path, status: str, reason: str, said: str
) -> None:
    def numbers(run: Run) -> Mapping[str, Any]:
        ring = run.spec.strategy.name == "allreduce"
        return rates(80.0)(run) if ring else {"status": status, "reason": reason}

    (found,) = verdicts(study_with(tmp_path, DIRECTION), numbers)
    assert (found.verdict, found.reason) == ("inconclusive", said)
    assert len(found.runs) == 10


def test_what_is_not_installed_here_cannot_be_tested_here(tmp_path: Path) -> None:
    def numbers(run: Run) -> Mapping[str, Any]:
        ring = run.spec.strategy.name == "allreduce"
        return rates(80.0)(run) if ring else {"status": "skipped", "reason": "no server is installed"}

    (found,) = verdicts(study_with(tmp_path, DIRECTION), numbers)
    assert (found.verdict, found.reason) == ("not testable here", "no server is installed")


def test_fewer_planned_rounds_than_a_claim_needs_are_said_before_anything_is_computed(tmp_path: Path) -> None:
    (found,) = verdicts(study_with(tmp_path, DIRECTION, scale="mini"), rates(80.0))
    assert found.verdict == "inconclusive"
    assert found.reason == "not judgeable at this scale: 2 rounds planned, at least 3 needed"
    assert found.repeats_needed == 3


def test_a_scale_that_cannot_judge_a_claim_says_why(tmp_path: Path) -> None:
    text = DIRECTION + "\n    scales: [paper]\n    not_testable: two cores are too few"
    (found,) = verdicts(study_with(tmp_path, text, scale="mini"), rates(80.0))
    assert (found.verdict, found.reason) == ("not testable here", "two cores are too few")


def test_what_would_decide_an_undecided_claim_is_said_with_its_cost(tmp_path: Path) -> None:
    study = study_with(tmp_path, DIRECTION)
    (found,) = verdicts(study, lambda run: {**rates(80.0, WILD)(run), "wall_s": 30.0})
    assert found.repeats_needed is not None and found.repeats_needed > 5
    # A round is two runs of 30 s each.
    assert found.cost_s == pytest.approx(found.repeats_needed * 60)
    assert found.cost_device_hours == 0.0
    (on_gpu,) = verdicts(
        study,
        lambda run: {**rates(80.0, WILD)(run), "wall_s": 36.0, "instrument.device_name": "a GPU"},
    )
    assert on_gpu.cost_device_hours == pytest.approx(found.repeats_needed * 0.02)
    assert f"{found.repeats_needed} rounds of a new campaign would decide it with a probability of 80 %" in found.reason
    assert "GPU h" in on_gpu.reason


@pytest.mark.parametrize("apart", ["period", "instrument.torch", "instrument.cpu"])
def test_sides_that_were_measured_apart_are_not_compared(tmp_path: Path, apart: str) -> None:
    """Three rounds are enough; of five, two and then three have a side that was measured at another time or elsewhere."""

    def numbers(last: int) -> Numbers:
        return lambda run: {
            **rates(80.0)(run),
            apart: "2" if run.spec.repeat < last and run.spec.strategy.name == "allreduce" else "1",
        }

    study = study_with(tmp_path, DIRECTION)
    (some,), (most,) = verdicts(study, numbers(2)), verdicts(study, numbers(3))
    assert (some.verdict, some.n) == ("reproduced", 3)
    assert (most.verdict, most.estimate) == ("inconclusive", None)
    assert most.reason == "measured apart: in 3 of 5 rounds the sides have unlike periods or instruments"


def test_a_verdict_names_what_it_was_measured_on(tmp_path: Path) -> None:
    place = {"instrument.cpu": "AMD EPYC", "instrument.cores": "2", "instrument.device_name": "H100"}
    (found,) = verdicts(study_with(tmp_path, DIRECTION), lambda run: {**rates(80.0)(run), **place})
    assert found.measured_on == ["AMD EPYC, 2 cores, H100"]


def test_shares_that_tie_have_the_error_of_their_steps(tmp_path: Path) -> None:
    """Of 360 samples: a difference of one sample in each round may be less than half of one; one of ten is none by chance."""
    text = DIRECTION.replace("throughput_samples_per_s", "accuracy").replace("below: 0.95", "below: -0.0014")

    def numbers(fewer: int) -> Numbers:
        return lambda run: {"accuracy": (340 - fewer * (run.spec.strategy.name == "parameter_server")) / 360}

    study = study_with(tmp_path, text)
    (one,), (none,) = verdicts(study, numbers(1)), verdicts(study, numbers(0))
    assert (one.verdict, one.high) == ("inconclusive", pytest.approx(-1 / 360 + 1.96 / 360 / 6**0.5, rel=1e-3))
    assert "all runs have the same `accuracy`" in none.reason


def test_later_rounds_decide_nothing_before_the_next_planned_look(tmp_path: Path) -> None:
    text = DIRECTION + "\n    looks: [3, 6]"
    first = as_fixed(study_with(tmp_path, text, repeats=3))

    def of_rounds(repeats: int, made: int) -> Verdict:
        study = study_with(tmp_path, text, repeats=repeats)
        numbers = rates(80.0)
        return verdicts(
            study, lambda run: numbers(run) if run.spec.repeat < made else {"status": "missing"}, fixed=first
        )[0]

    assert [of_rounds(3, 3).n, of_rounds(6, 5).n, of_rounds(6, 6).n, of_rounds(10, 10).n] == [3, 3, 6, 6]
    assert of_rounds(6, 2).reason == "not run: 2 of 6 runs have no result"
    assert (of_rounds(6, 6).confidence, of_rounds(6, 6).changed_after_measuring) == (pytest.approx(0.975), False)
    assert "6 rounds of this campaign, look 2 of 2" in of_rounds(10, 10).sentence


def test_from_three_campaigns_on_a_verdict_says_where_the_next_is_expected(tmp_path: Path) -> None:
    study = study_with(tmp_path, DIRECTION)
    frames = [frame_of(study, rates(level)) for level in (70.0, 80.0, 90.0)]
    missing = frame_of(study, lambda run: {"status": "missing"})
    (two,) = judge(study, frames[1], as_fixed(study), [frames[0], missing])
    (three,) = judge(study, frames[1], as_fixed(study), [frames[0], frames[2]])
    assert (two.campaigns, two.next_low, two.estimate) == (2, None, three.estimate)
    # ln 0.7, 0.8, 0.9: mean -0.22839, s 0.12575; t(0.975, 2) = 4.302653, times √(4/3)
    assert (three.next_low, three.next_high) == (pytest.approx(0.4260, abs=1e-3), pytest.approx(1.4866, abs=3e-3))
    assert (three.between_rounds, three.between_campaigns) == (
        pytest.approx(0.0065, abs=1e-3),
        pytest.approx(0.1257, abs=1e-3),
    )
    assert "5 rounds of this campaign, and by 3 campaigns the next from 0.426 to 1.49" in three.sentence


def test_more_repeats_do_not_change_the_plan_of_a_claim_that_was_fixed(tmp_path: Path) -> None:
    before = as_fixed(study_with(tmp_path, DIRECTION, repeats=5))
    (after,) = verdicts(study_with(tmp_path, DIRECTION, repeats=10), rates(80.0), fixed=before)
    assert (after.n, after.digest, after.changed_after_measuring) == (5, before["c0"].digest, False)
    assert as_fixed(study_with(tmp_path, DIRECTION, repeats=10))["c0"].digest != before["c0"].digest


def test_a_time_that_is_extrapolated_beyond_the_tested_factor_is_not_judged(tmp_path: Path) -> None:
    study = study_with(tmp_path, DIRECTION.replace("throughput_samples_per_s", "training_time_s"))

    def numbers(factor: float) -> Numbers:
        return lambda run: {
            "training_time_s": rates(90.0)(run)["throughput_samples_per_s"],
            "extrapolation_factor": factor,
        }

    (tested,), (beyond,) = verdicts(study, numbers(999.0)), verdicts(study, numbers(2000.0))
    assert (tested.verdict, beyond.verdict) == ("reproduced", "inconclusive")
    assert "extrapolated beyond the tested factor of 1,000" in beyond.reason


def test_an_extrapolated_number_brings_its_own_error(tmp_path: Path) -> None:
    text = DIRECTION.replace("throughput_samples_per_s", "training_time_s")

    def numbers(run: Run) -> Mapping[str, Any]:
        time = rates(90.0)(run)["throughput_samples_per_s"]
        return {"training_time_s": time, "training_time_s_low": time * 0.9, "training_time_s_high": time * 1.1}

    study = study_with(tmp_path, text)
    (certain,) = verdicts(study, lambda run: {"training_time_s": numbers(run)["training_time_s"]})
    (found,) = verdicts(study, numbers)
    assert (certain.verdict, found.verdict) == ("reproduced", "inconclusive")
    assert "own error does not shrink" in found.reason


def test_stand_ins_with_their_values_and_disturbed_runs_are_in_the_verdict(tmp_path: Path) -> None:
    text = DIRECTION + "\n    stand_ins: [One rank stands for eight]"
    study_text = text.replace("where: {", 'where: {device: "emulated:infinite", ')
    folder = tmp_path / "studies"
    with pytest.raises(Exception, match="no run of this study has `device`"):
        study_with(folder, study_text)
    file = folder / "s.yaml"
    base = (
        'base: {device: "emulated:infinite", model: resnet50, loader: {storage: {mib_per_s: 5}, memory_limit_mib: 13.5}, '
        "data: {source: synthetic_jpeg, samples: 64}, "
        "faults: [{kind: slow_decode, seconds: 0.2}]}"
    )
    file.write_text(f"{base}\n{file.read_text()}")
    from scalestudy.spec.machine import Machine
    from scalestudy.spec.read_study import read_studies

    study = read_studies(["s"], "paper", Machine(), folder=folder)[0]
    (found,) = verdicts(study, lambda run: {**rates(80.0)(run), "disturbed": run.spec.repeat == 0})
    assert (found.basis, found.disturbed) == ("with stand-ins", 2)
    assert found.stand_ins == [
        "Computing takes no time",
        "A storage of 5 MiB/s with 0 ms per request is emulated",
        "A page cache of 13.5 MiB is emulated",
        "A fault is injected: slow decode seconds 0.2",
        "One rank stands for eight",
    ]
    assert found.sentence.startswith("Reproduced with stand-ins: throughput: parameter server ÷ ring all-reduce")
    assert found.sentence.endswith(" One rank stands for eight.")
    assert "2 of 10 runs disturbed by other work" in found.sentence


@pytest.mark.parametrize(
    ("origin", "device", "column", "basis"),
    [
        ("document", "cpu", "throughput_samples_per_s", "with stand-ins"),
        ("document", "NVIDIA A100", "throughput_samples_per_s", "measured"),
        ("document", "cpu", "accuracy", "measured"),
        ("ours", "cpu", "throughput_samples_per_s", "measured"),
    ],
)
def test_cores_stand_for_gpus_where_a_document_speaks_of_speed(
    tmp_path: Path, origin: str, device: str, column: str, basis: str
) -> None:
    text = DIRECTION.replace("throughput_samples_per_s", column) + f"\n    origin: {origin}"
    (found,) = verdicts(
        study_with(tmp_path, text),
        lambda run: {column: 0.5, "instrument.device_name": device, "repeat": run.spec.repeat},
    )
    assert (found.basis, found.origin) == (basis, origin)


@pytest.mark.parametrize(("server", "verdict"), [(80.0, "passed"), (100.0, "failed")])
def test_a_number_that_follows_from_a_setting_is_an_instrument_check(
    tmp_path: Path, server: float, verdict: str
) -> None:
    (found,) = verdicts(study_with(tmp_path, DIRECTION + "\n    follows_from: train.epochs"), rates(server))
    assert (found.basis, found.verdict) == ("instrument check", verdict)
    assert found.sentence.startswith(f"{verdict.capitalize()}: throughput: ")


def test_claims_that_are_judged_together_are_decided_together(tmp_path: Path) -> None:
    def numbers(run: Run) -> Mapping[str, Any]:
        return rates(93.0, (-0.02, 0.01, 0.004, 0.015, -0.009))(run)

    (alone,) = verdicts(study_with(tmp_path, DIRECTION), numbers)
    several = verdicts(study_with(tmp_path, *[DIRECTION] * 12), numbers)
    assert alone.p == pytest.approx(several[0].p)
    assert alone.verdict == "reproduced"
    assert {found.verdict for found in several} == {"inconclusive"}
    assert "decided alone, and not together with the study's other claims" in several[0].reason


@pytest.mark.slow
def test_at_most_5_percent_of_studies_without_any_difference_decide_a_claim(tmp_path: Path) -> None:
    no_margin = [DIRECTION.replace("below: 0.95", "below: 1"), DIRECTION.replace("below: 0.95", "above: 1")]
    other = [text.replace("train.epochs: 1", f"train.epochs: {epochs}") for text in no_margin for epochs in (2, 4, 8)]
    study = study_with(tmp_path, *other)
    draw = np.random.default_rng(0)
    frame = frame_of(study, lambda run: {})[NEEDED]
    decided = 0
    for _ in range(200):
        frame["throughput_samples_per_s"] = np.exp(draw.normal(0, 0.05, len(frame)))
        decided += any(each.verdict != "inconclusive" for each in judge(study, frame, {}))
    assert decided <= 10


def test_a_claim_that_was_changed_or_declared_after_its_first_run_is_marked(tmp_path: Path) -> None:
    study = study_with(tmp_path, DIRECTION)
    (before,) = verdicts(study, rates(80.0))
    (changed,) = verdicts(study, rates(80.0), fixed={"c0": Fixed("another")})
    (declared,) = verdicts(study, rates(80.0), fixed={})
    (not_run,) = verdicts(study, lambda run: {"status": "missing"}, fixed={})
    marks = [each.changed_after_measuring for each in (before, changed, declared, not_run)]
    assert marks == [False, True, True, False]
    assert changed.sentence.endswith("The claim was changed after its first run was made.")
    assert declared.sentence.endswith("The claim was declared after its first run was made.")


def test_a_digest_is_that_of_what_decides_a_claim(tmp_path: Path) -> None:
    (claim,) = study_with(tmp_path, DIRECTION).claims
    (cited,) = study_with(tmp_path, DIRECTION.replace("what matters", "what counts")).claims
    (moved,) = study_with(tmp_path, DIRECTION.replace("0.95", "0.96")).claims
    assert claim.digest == cited.digest
    assert claim.digest != moved.digest


def test_runs_that_have_a_number_are_not_judged_without_those_that_have_none(tmp_path: Path) -> None:
    def numbers(run: Run) -> Mapping[str, Any]:
        first = run.spec.repeat == 0 and run.spec.strategy.name == "allreduce"
        return {} if first else rates(80.0)(run)

    (found,) = verdicts(study_with(tmp_path, DIRECTION), numbers)
    assert found.verdict == "inconclusive"
    assert found.reason == (
        "not judgeable at this scale: 1 valid run without `throughput_samples_per_s`, and the others are a selection"
    )
