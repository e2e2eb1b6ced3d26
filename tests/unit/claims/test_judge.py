"""Each kind of claim can come out every way; what is undecided says why and what would decide it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from scalestudy.claims.judge import judge
from scalestudy.claims.outcome import Verdict
from scalestudy.spec.machine import Machine
from scalestudy.spec.read_study import read_studies
from scalestudy.spec.study import Run, Study
from tests.conftest import ROOT
from tests.unit.claims.made_claims import CLAIM, DIRECTION, STUDY, Numbers, as_fixed, rows_of, study_with, verdicts

NOISE = (-0.010, 0.006, 0.000, -0.004, 0.008, 0.002, -0.007, 0.005, 0.001, -0.001)
WILD = (-0.5, 0.4, 0.0, -0.3, 0.5)


def rates(server: float, noise: tuple[float, ...] = NOISE) -> Numbers:
    """Throughput of the server and of the ring; the server's rounds are spread by `noise`."""

    def numbers(run: Run) -> Mapping[str, Any]:
        if run.spec.strategy.name == "allreduce":
            return {"throughput_samples_per_s": 100.0}
        return {"throughput_samples_per_s": server * float(np.exp(noise[run.spec.repeat]))}

    return numbers


EQUIVALENCE = DIRECTION.replace("direction", "equivalence").replace("below: 0.95", "within: 0.05")
QUANTITY = """kind: quantity
    column: throughput_samples_per_s
    where: {train.epochs: 1, strategy: parameter_server}
    value: 80
    within: 4
    margin_reason: five percent"""


@pytest.mark.parametrize(
    ("claim", "server", "noise", "verdict"),
    [
        (DIRECTION, 80.0, NOISE, "reproduced"),
        (DIRECTION, 100.0, NOISE, "not reproduced"),
        (DIRECTION, 95.2, NOISE, "inconclusive"),
        (DIRECTION, 80.0, WILD, "inconclusive"),
        (EQUIVALENCE, 101.0, NOISE, "reproduced"),
        (EQUIVALENCE, 110.0, NOISE, "not reproduced"),
        (EQUIVALENCE, 104.8, NOISE, "inconclusive"),
        (QUANTITY, 80.2, NOISE, "reproduced"),
        (QUANTITY, 93.0, NOISE, "not reproduced"),
        (QUANTITY, 83.95, NOISE, "inconclusive"),
    ],
)
def test_each_kind_comes_out_every_way(
    tmp_path: Path, claim: str, server: float, noise: tuple[float, ...], verdict: str
) -> None:
    (found,) = verdicts(study_with(tmp_path, claim), rates(server, noise))
    assert (found.verdict, found.confidence) == (verdict, pytest.approx(0.90 if claim == EQUIVALENCE else 0.95))


EXACT = """kind: exact
    where: {train.epochs: 1}
    checks:
      - {column: status, of: {strategy: allreduce}, equals: skipped}
      - {column: staged_bytes, of: {strategy: parameter_server}, equals: 0}"""


@pytest.mark.parametrize(
    ("ring", "server", "verdict"),
    [
        ("skipped", {"staged_bytes": 0.0}, "reproduced"),
        ("valid", {"staged_bytes": 0.0}, "not reproduced"),
        ("skipped", {"staged_bytes": 5.0}, "not reproduced"),
        ("missing", {"staged_bytes": 0.0}, "not run"),
        ("skipped", {"staged_bytes": float("nan")}, "inconclusive"),
        ("skipped", {"status": "skipped", "reason": "no disk"}, "not testable here"),
    ],
)
def test_an_exact_claim(tmp_path: Path, ring: str, server: Mapping[str, Any], verdict: str) -> None:
    (found,) = verdicts(study_with(tmp_path, EXACT), lambda run: {"status": ring} if _ring(run) else server)
    assert found.verdict == verdict


PUBLISHED = """kind: published
    column: training_time_s
    reference: [times]
    of: {ranks: 1}
    against: {ranks: 128}
    value: 101
    within: 0.5
    margin_reason: whole numbers"""


AROUND = "value: 101\n    within: 0.5"


@pytest.mark.parametrize(
    ("time", "limit", "verdict"),
    [
        ("10100", AROUND, "consistent"),
        ("10200", AROUND, "inconsistent"),
        ("200", "value: 1.95\n    within: 0.05", "consistent"),  # a rounding holds its ends
        ("200", "value: 1.94\n    within: 0.05", "inconsistent"),
        ("200", "above: 2", "inconsistent"),
    ],
)
def test_a_published_table_is_consistent_or_not_and_never_reproduced(
    here: Path, time: str, limit: str, verdict: str
) -> None:
    folder = here / "config/reference"
    folder.mkdir(parents=True)
    (folder / "times.csv").write_text(f"ranks,training_time_s\n1,{time}\n128,100\n4,\n")
    (found,) = verdicts(study_with(here, PUBLISHED.replace(AROUND, limit)), lambda run: {"status": "missing"})
    assert (found.verdict, found.n, found.p) == (verdict, 1, None)
    assert f"= {float(time) / 100:g}; required: {found.threshold}" in found.sentence


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


SLOPES = """kind: equivalence
    column: memory_mib
    over: train.epochs
    where: {strategy: allreduce}
    of: {train.epochs: [4, 8]}
    against: {train.epochs: [1, 2]}
    within: 0.1
    margin_reason: a tenth"""
FLAT = SLOPES.replace("over: train.epochs", "over: wall_s")


@pytest.mark.parametrize(
    ("claim", "power", "verdict", "said"),
    [
        (SLOPES, 1, "reproduced", "= 1.00000 ["),
        (SLOPES, 2, "not reproduced", "= 4.0000 ["),  # (64 - 16) / 4 over (4 - 1) / 1
        (SLOPES, -1, "inconclusive", "`memory_mib` does not grow over `train.epochs`"),
        (FLAT, 1, "inconclusive", "all runs have the same place on the axis"),
    ],
)
def test_two_slopes_are_compared_by_their_ratio(
    tmp_path: Path, claim: str, power: int, verdict: str, said: str
) -> None:
    def numbers(run: Run) -> Mapping[str, Any]:
        noise = NOISE[run.spec.repeat] / 10 if run.spec.train.epochs > 2 else 0.0
        return {"memory_mib": 100 + run.spec.train.epochs**power * (1 + noise)}

    (found,) = verdicts(study_with(tmp_path, claim), numbers)
    assert found.verdict == verdict and said in found.sentence, found.sentence


PARTS = """kind: exact
    checks:
      - {column: status, of: {ranks: 1}, equals: valid}
      - {column: status, of: {ranks: 8}, equals: valid}"""
ONE_POINT = SLOPE.replace("train.epochs\n", "ranks\n").replace("where: {", "where: {train.epochs: 1, ")
ONE_SIDE = ONE_POINT.replace("over: ranks", "of: {ranks: {to: machine}}\n    against: {ranks: 1}")


def study_on(folder: Path, cores: int, claim: str) -> Study:
    """The study with this claim over as many ranks as a machine has cores."""
    text = STUDY.format(repeats=3) + CLAIM.format(id="c", text=claim)
    text = text.replace("vary:", "vary:\n  ranks: {to: machine}").replace("parameter_server", "ring")
    (folder / "s.yaml").write_text(text)
    return read_studies(["s"], "paper", Machine(device="cpu", cores_per_node=cores), folder=folder)[0]


def test_half_of_the_checks_a_slope_of_one_point_and_two_equal_sides_are_not_testable_here(tmp_path: Path) -> None:
    facts = study_on(tmp_path, 2, PARTS)
    for study in (facts, study_on(tmp_path, 1, ONE_POINT), study_on(tmp_path, 1, ONE_SIDE)):
        (found,) = verdicts(study, lambda run: {"training_time_s": 1.0})
        assert (found.verdict, found.reason) == ("not testable here", "this machine does not have its runs")
    (wrong,) = verdicts(facts, lambda run: {"status": "invalid", "reason": "too short"})
    assert wrong.verdict == "not reproduced"


SHARE = """kind: direction
    column: setup_s
    per: wall_s
    compare: share
    where: {strategy: allreduce}
    of: {train.epochs: 2}
    against: {train.epochs: 1}
    above: 0.5
    margin_reason: more than half"""


def test_a_share_of_a_difference_is_taken_round_by_round_where_the_whole_is_larger(tmp_path: Path) -> None:
    """Of two epochs that take less time than one, set-up is no cause of taking longer."""

    def numbers(longer: int) -> Numbers:
        def of_run(run: Run) -> Mapping[str, Any]:
            more = longer * (run.spec.train.epochs - 1)
            return {"setup_s": 9 + 3 * more * (1 + NOISE[run.spec.repeat]), "wall_s": 20 + 4 * more}

        return of_run

    study = study_with(tmp_path, SHARE)
    (found,), (none,) = verdicts(study, numbers(1)), verdicts(study, numbers(-1))
    assert (found.verdict, found.estimate) == ("reproduced", pytest.approx(0.75, abs=0.01))
    assert none.verdict == "inconclusive" and "`wall_s` is not larger in every round" in none.reason


def _ring(run: Run) -> bool:
    return run.spec.strategy.name == "allreduce"


@pytest.mark.parametrize(
    ("numbers", "verdict", "said"),
    [
        (lambda run: {"status": "missing"}, "not run", "5 of 10 runs have no result"),
        (
            lambda run: {"status": "invalid", "reason": "too short"},
            "inconclusive",
            "run invalid: 5 of 10 runs: too short",
        ),
        (
            lambda run: {"status": "skipped", "reason": "no server is installed"},
            "not testable here",
            "no server is installed",
        ),
        (
            lambda run: {"throughput_samples_per_s": 0.0},
            "inconclusive",
            "not judgeable at this scale: `throughput_samples_per_s` is not above zero, and has no ratio",
        ),
        (lambda run: {}, "inconclusive", "not judgeable at this scale: no valid run has a `throughput_samples_per_s`"),
        (
            lambda run: {} if run.spec.repeat == 0 else rates(80.0)(run),
            "inconclusive",
            "not judgeable at this scale: 1 valid run without `throughput_samples_per_s`, and the others are a selection",
        ),
    ],
)
def test_a_claim_without_its_numbers_is_not_decided_and_says_why(
    tmp_path: Path, numbers: Numbers, verdict: str, said: str
) -> None:
    (found,) = verdicts(study_with(tmp_path, DIRECTION), lambda run: rates(80.0)(run) if _ring(run) else numbers(run))
    assert (found.verdict, found.reason, len(found.runs)) == (verdict, said, 10)


def test_a_scale_with_too_few_rounds_or_without_the_claim_says_so(tmp_path: Path) -> None:
    elsewhere = DIRECTION + "\n    scales: [paper]\n    not_testable: two cores are too few"
    few, left_out = verdicts(study_with(tmp_path, DIRECTION, elsewhere, scale="mini"), rates(80.0))
    assert (few.verdict, few.reason, few.repeats_needed) == (
        "inconclusive",
        "not judgeable at this scale: 2 rounds planned, at least 3 needed",
        3,
    )
    assert (left_out.verdict, left_out.reason) == ("not testable here", "two cores are too few")


def test_efficiencies_over_unlike_bases_are_not_compared(tmp_path: Path) -> None:
    study = study_with(tmp_path, DIRECTION.replace("throughput_samples_per_s", "efficiency"))

    def numbers(ranks: int) -> Numbers:
        return lambda run: {
            "efficiency": 0.8 + NOISE[run.spec.repeat] if _ring(run) else 0.5,
            "baseline_ranks": ranks if _ring(run) else 1,
        }

    (same,), (unlike,) = verdicts(study, numbers(1)), verdicts(study, numbers(2))
    assert (same.verdict, unlike.verdict) == ("reproduced", "inconclusive")
    assert "`efficiency` has bases of 1 and 2 ranks, which do not compare" in unlike.reason


EACH = DIRECTION.replace("where: {train.epochs: 1}", "where: {train.epochs: [1, 2]}\n    each: train.epochs")


def test_of_each_value_the_one_against_decides_and_of_several_configurations_the_best_is_taken(tmp_path: Path) -> None:
    most = DIRECTION.replace("where: {train.epochs: 1}", "take: most")

    def numbers(run: Run) -> Mapping[str, Any]:
        rate = rates(80.0 if run.spec.train.epochs == 1 else 130.0)(run)["throughput_samples_per_s"]
        return {"throughput_samples_per_s": rate * run.spec.train.epochs}

    study = study_with(tmp_path, EACH, most)
    of_each, of_best = verdicts(study, numbers)
    assert [found.estimate for found in (of_each, of_best)] == pytest.approx([1.3, 1.3], rel=0.01)
    assert (of_each.verdict, "epochs 2" in of_each.sentence) == ("not reproduced", True)
    assert ", the least favourable of 2; " in of_each.sentence and "favourable" not in of_best.sentence
    _, lacking = verdicts(study, lambda run: {"status": "invalid"} if run.spec.train.epochs == 4 else numbers(run))
    assert (lacking.verdict, lacking.reason[:11]) == ("inconclusive", "run invalid")  # it might have been the best


def test_a_value_that_this_machine_skips_is_named(tmp_path: Path) -> None:
    def numbers(run: Run) -> Mapping[str, Any]:
        is_lacking = not _ring(run) and run.spec.train.epochs == 2
        return {"status": "skipped", "reason": "no memory"} if is_lacking else rates(80.0)(run)

    (found,) = verdicts(study_with(tmp_path, EACH), numbers)
    assert (found.verdict, "; not compared here: epochs 2; " in found.sentence) == ("reproduced", True)


def test_stand_ins_with_their_values_place_and_disturbed_runs_are_in_the_verdict(tmp_path: Path) -> None:
    base = (
        '{device: "emulated:infinite", model: resnet50, loader: {storage: {mib_per_s: 5}, memory_limit_mib: 13.5}, '
        "data: {source: synthetic_jpeg, samples: 64}, faults: [{kind: slow_decode, seconds: 0.2}]}"
    )
    study = study_with(tmp_path, DIRECTION + "\n    stand_ins: [One rank stands for eight]", base=base)
    place = {"instrument.cpu": "AMD EPYC", "instrument.cores": "2", "instrument.device_name": "H100"}
    (found,) = verdicts(study, lambda run: {**rates(80.0)(run), **place, "disturbed": run.spec.repeat == 0})
    assert (found.basis, found.disturbed, found.measured_on) == ("with stand-ins", 2, ["AMD EPYC, 2 cores, H100"])
    assert found.stand_ins == [
        "Computing takes no time",
        "A storage of 5 MiB/s with 0 ms per request is emulated",
        "A page cache of 13.5 MiB is emulated",
        "A fault is injected: slow decode seconds 0.2",
        "One rank stands for eight",
    ]
    assert found.sentence.startswith("Reproduced with stand-ins: throughput: parameter server ÷ ring all-reduce")
    assert found.sentence.endswith("2 of 10 runs disturbed by other work. " + ". ".join(found.stand_ins) + ".")


NGINX = (
    "model: resnet50, data: {source: synthetic_jpeg, samples: 64}, loader: {origin: nginx}, "
    "network: {mib_per_s: 119, latency_ms: 1}"
)


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ("network: {mib_per_s: 119, latency_ms: 1}, ranks_per_node: 1", "A network of 119 MiB/s per node is emulated"),
        ("network: {mib_per_s: 119, latency_ms: 1}, ranks_per_node: 1", "A latency of 1 ms between nodes is emulated"),
        ("memory_limit_mib: 140", "A process that the kernel limits to 140 MiB stands for a device"),
        (NGINX, "nginx on this machine stands for another server"),
        (
            "model: small_cnn, data: {source: synthetic, samples: 64, shape: [1, 8, 8], latency_s: 0.5}",
            "Each item takes 0.5 s because its reader sleeps",
        ),
    ],
)
def test_what_a_setting_puts_in_place_of_the_real_thing_is_named(tmp_path: Path, settings: str, sentence: str) -> None:
    study = study_with(tmp_path, DIRECTION, base=f"{{{settings}}}")
    (found,) = verdicts(study, rates(80.0))
    assert found.basis == "with stand-ins" and sentence in found.stand_ins


@pytest.mark.parametrize(
    ("of_runs", "said"),
    [
        ({"exchange_shares_cores": True}, " More processes exchange than the host has cores."),
        ({"throughput_samples_per_s_kind": "reported"}, "; throughput reported by the program; "),
    ],
)
def test_what_its_runs_have_in_common_is_in_the_sentence(tmp_path: Path, of_runs: dict[str, Any], said: str) -> None:
    (found,) = verdicts(study_with(tmp_path, DIRECTION), lambda run: {**rates(80.0)(run), **of_runs})
    assert said in found.sentence


@pytest.mark.parametrize(("half_width", "share"), [(0.05, "1 %"), (0.5, "70 %"), (2.0, "100 %")])
def test_an_open_claim_says_what_longer_windows_would_change(tmp_path: Path, half_width: float, share: str) -> None:
    study = study_with(tmp_path, DIRECTION)
    (found,) = verdicts(study, lambda run: {**rates(80.0, WILD)(run), "window_half_width": half_width})
    assert str(found.reason).endswith(f"; longer windows would lessen the variance of rounds by at most {share}")


def test_what_would_decide_an_undecided_claim_is_said_with_its_cost(tmp_path: Path) -> None:
    study = study_with(tmp_path, DIRECTION)
    (found,) = verdicts(study, lambda run: {**rates(80.0, WILD)(run), "wall_s": 30.0})
    rounds = "interval too wide: 82 rounds of a new campaign would decide it with a probability of 80 %"
    assert found.repeats_needed == 82
    assert found.reason == f"{rounds}, 82 min"  # a round is two runs of 30 s each
    (on_gpu,) = verdicts(
        study,
        lambda run: {**rates(80.0, WILD)(run), "wall_s": 36.0, "instrument.device_name": "a GPU"},
    )
    assert on_gpu.reason == f"{rounds}, 98 min, 1.6 GPU h"

    def one_fails(run: Run) -> Mapping[str, Any]:
        failed = (
            {"status": "invalid", "wall_s": 3600.0}
            if run.spec.repeat == 2 and run.spec.strategy.name == "allreduce"
            else {}
        )
        return {**rates(80.0, WILD)(run), "wall_s": 30.0, **failed}

    (found,) = verdicts(study, one_fails)
    assert (found.repeats_needed, found.reason.rpartition(", ")[2]) == (117, "117 min")


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


@pytest.mark.parametrize("in_turn", [True, False])
def test_sides_that_were_not_measured_in_turn_are_named(tmp_path: Path, in_turn: bool) -> None:
    def numbers(run: Run) -> Mapping[str, Any]:
        second = run.spec.strategy.name == "allreduce"
        minute = 2 * run.spec.repeat + second if in_turn else 10 * second + run.spec.repeat
        return {**rates(80.0)(run), "started": f"2026-11-27T17:{minute:02}:00+00:00"}

    (found,) = verdicts(study_with(tmp_path, DIRECTION), numbers)
    assert ("all runs of one configuration made before those of another" in found.sentence) != in_turn


def test_the_use_of_all_programs_is_not_judged_where_others_ran(tmp_path: Path) -> None:
    """Beside a busy program the CPU is used in full on both sides, whatever the training does."""
    text = DIRECTION.replace("throughput_samples_per_s", "cpu_utilisation").replace("below: 0.95", "above: 0.25")

    def numbers(disturbed: bool) -> Numbers:
        return lambda run: {"cpu_utilisation": 1.0 - 0.001 * run.spec.repeat, "disturbed": disturbed}

    study = study_with(tmp_path, text)
    (quiet,), (busy,) = verdicts(study, numbers(False)), verdicts(study, numbers(True))
    assert (quiet.verdict, busy.verdict) == ("not reproduced", "inconclusive")


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
    assert of_rounds(6, 2).reason == "2 of 6 runs have no result"
    assert (of_rounds(6, 6).confidence, of_rounds(6, 6).changed_after_measuring) == (pytest.approx(0.975), False)
    assert "6 rounds of this campaign, look 2 of 2" in of_rounds(10, 10).sentence


def test_rounds_that_a_claim_leaves_out_are_none_of_its_rounds(tmp_path: Path) -> None:
    """The first of four rounds is another thing, such as one that makes the copies which the others find."""
    study = study_with(
        tmp_path, DIRECTION.replace("{train.epochs: 1}", "{train.epochs: 1, repeat: [1, 2, 3]}"), repeats=4
    )

    def of_rounds(made: int) -> Verdict:
        numbers = rates(80.0)
        return verdicts(study, lambda run: numbers(run) if run.spec.repeat < made else {"status": "missing"})[0]

    assert [(each.verdict, each.n) for each in map(of_rounds, (3, 4))] == [("not run", 0), ("reproduced", 3)]


def test_from_three_campaigns_on_a_verdict_says_where_the_next_is_expected(tmp_path: Path) -> None:
    study = study_with(tmp_path, DIRECTION)
    first, rows, last = (rows_of(study, rates(level)) for level in (70.0, 80.0, 90.0))
    missing = rows_of(study, lambda run: {"status": "missing"})
    (two,) = judge(study, rows, as_fixed(study), [first, missing])
    (three,) = judge(study, rows, as_fixed(study), [first, last])
    assert (two.campaigns, two.next_low, two.estimate) == (2, None, three.estimate)
    # ln 0.7, 0.8, 0.9: mean -0.22839, s 0.12575; t(0.975, 2) = 4.302653, times √(4/3)
    assert (three.next_low, three.next_high) == (pytest.approx(0.4260, abs=1e-3), pytest.approx(1.4866, abs=3e-3))
    assert "5 rounds of this campaign, 3 campaigns predict 0.426 to 1.49 for the next" in three.sentence


def test_an_extrapolated_number_brings_its_own_error_up_to_the_tested_factor(tmp_path: Path) -> None:
    study = study_with(tmp_path, DIRECTION.replace("throughput_samples_per_s", "training_time_s"))

    def judged(own: float, factor: float) -> Verdict:
        def numbers(run: Run) -> Mapping[str, Any]:
            time = rates(90.0)(run)["throughput_samples_per_s"]
            ends = {"training_time_s_low": time * (1 - own), "training_time_s_high": time * (1 + own)}
            return {"training_time_s": time, "extrapolation_factor": factor, **ends}

        return verdicts(study, numbers)[0]

    certain, wide, beyond = judged(0.0, 999.0), judged(0.1, 999.0), judged(0.0, 2000.0)
    assert [found.verdict for found in (certain, wide, beyond)] == ["reproduced", "inconclusive", "inconclusive"]
    assert "own error does not shrink" in wide.reason
    assert "extrapolated beyond the tested factor of 1,000" in beyond.reason


def test_the_own_error_of_a_quotient_is_in_its_own_unit(tmp_path: Path) -> None:
    quotient = "training_time_s\n    per: epoch_time_s\n    compare: difference"
    claim = DIRECTION.replace("throughput_samples_per_s", quotient).replace("0.95", "-10")

    def numbers(run: Run) -> Mapping[str, Any]:
        time = 100 * rates(80.0)(run)["throughput_samples_per_s"]
        ends = {"training_time_s_low": time - 80, "training_time_s_high": time + 80}
        return {"training_time_s": time, "epoch_time_s": 100.0, **ends}

    (verdict,) = verdicts(study_with(tmp_path, claim), numbers)
    assert verdict.verdict == "reproduced"


EMULATED = '{device: "emulated:infinite", model: resnet50, data: {source: synthetic_jpeg, samples: 64}}'


@pytest.mark.parametrize(
    ("base", "column", "device", "basis"),
    [
        ("{}", "throughput_samples_per_s", "cpu", "with stand-ins"),
        ("{}", "throughput_samples_per_s", "NVIDIA A100", "measured"),
        (EMULATED, "throughput_samples_per_s", "cpu", "with stand-ins"),
        (EMULATED, "loader_samples_per_s", "cpu", "measured"),
    ],
)
def test_cores_and_emulated_compute_stand_for_gpus_where_a_document_speaks_of_their_speed(
    tmp_path: Path, base: str, column: str, device: str, basis: str
) -> None:
    claim = DIRECTION.replace("throughput_samples_per_s", column) + "\n    origin: document"
    rate = rates(80.0)
    (found,) = verdicts(
        study_with(tmp_path, claim, base=base),
        lambda run: {column: rate(run)["throughput_samples_per_s"], "instrument.device_name": device},
    )
    assert found.basis == basis


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


def test_a_claim_that_was_changed_or_declared_after_its_first_run_is_marked(tmp_path: Path) -> None:
    study = study_with(tmp_path, DIRECTION)
    (before,) = verdicts(study, rates(80.0))
    fixed = as_fixed(study)
    (reworded,) = verdicts(study_with(tmp_path, DIRECTION.replace("what matters", "what counts")), rates(80.0), fixed)
    (changed,) = verdicts(study_with(tmp_path, DIRECTION.replace("0.95", "0.96")), rates(80.0), fixed)
    (looked,) = verdicts(study_with(tmp_path, DIRECTION + "\n    looks: [3, 5]"), rates(80.0), fixed)
    (declared,) = verdicts(study, rates(80.0), fixed={})
    (not_run,) = verdicts(study, lambda run: {"status": "missing"}, fixed={})
    marks = [each.changed_after_measuring for each in (before, reworded, changed, looked, declared, not_run)]
    assert marks == [False, False, True, False, True, False]
    assert looked.looks == before.looks  # those that were planned before the first run hold
    assert changed.sentence.endswith("The claim was changed after its first run was made.")
    assert declared.sentence.endswith("The claim was declared after its first run was made.")


@pytest.mark.parametrize(
    ("same", "more", "noise", "expected"),
    [
        (1.00, 1.05, NOISE, ["passed", "passed"]),
        (1.10, 0.95, NOISE, ["failed", "failed"]),
        (1.00, 1.00, NOISE, ["passed", "inconclusive"]),
        (1.00, 1.05, WILD, ["inconclusive", "inconclusive"]),
    ],
)
def test_controls_of_a_campaign_tell_whether_this_machine_could_see_5_percent(
    monkeypatch: pytest.MonkeyPatch, same: float, more: float, noise: tuple[float, ...], expected: list[str]
) -> None:
    """`same` and `more` are the ratios of the step times: of the same training twice, and of 5 % more work."""
    monkeypatch.chdir(ROOT)
    (study,) = read_studies(["noise"], "mini", Machine())

    def numbers(run: Run) -> Mapping[str, Any]:
        ratio = {1: same if run.spec.seed >= 200 else 1.0, 21: more}.get(run.spec.batch.accumulate, 1.0)
        varies = run.spec.seed >= 200 or run.spec.batch.accumulate == 21
        return {"step_time_s": 0.03 * ratio * float(np.exp(noise[run.spec.repeat] if varies else 0.0))}

    assert [found.verdict for found in verdicts(study, numbers)] == expected
