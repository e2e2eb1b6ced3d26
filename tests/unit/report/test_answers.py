"""The answer to a study's question is made from its summary's numbers, or is left out with the reason."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from scalestudy.analysis.summarise import summarise
from scalestudy.errors import UserError
from scalestudy.report.answers import MAX_SENTENCES, NoNumber, Number, answer_of, first_answers, warnings_of
from scalestudy.spec.layout import result_file
from scalestudy.spec.study import Run, Study
from tests.unit.analysis.fake_results import MACHINE, SCALING, read_study, write_results

pytestmark = pytest.mark.usefixtures("published_numbers")
DECLARED = """
answers:
  - say: "Two ranks train {gain} times as fast as one; a GPU takes {gpu}."
    numbers:
      one: {column: throughput_samples_per_s, where: {strategy: allreduce, ranks: 1}}
      two: {column: throughput_samples_per_s, where: {strategy: allreduce, ranks: 2}}
      gain: {ratio: [two, one]}
      gpu: {accelerator: a100, model: resnet50, batch: 128}
  - say: "An exchange takes {exchange:unit}, known to {exchange:±%}."
    numbers: {exchange: {column: exchange_s, where: {strategy: parameter_server, ranks: 2}}}
"""


def summarised(change: Any = lambda run: {}, more: str = DECLARED, text: str = SCALING) -> Study:
    study = read_study(Path.cwd(), text + more)
    write_results(study, change)
    summarise(study, MACHINE)
    return study


def of_server(run: Run) -> bool:
    return run.spec.strategy.name == "parameter_server" and run.spec.ranks == 2


def test_a_sentence_has_the_numbers_of_the_summary_with_their_intervals() -> None:
    def exchange(run: Run) -> dict[str, Any]:
        return {"metrics": {"exchange_s": 0.1 + 0.01 * run.spec.repeat}}

    answer = answer_of(summarised(exchange), MACHINE)
    # 161 over 101 samples/s: 1.594, with half-widths of 1.5 % and 2.5 %, which together are 2.9 %.
    assert answer.sentences[0] == "Two ranks train 1.594 ± 0.047 times as fast as one; a GPU takes 938."
    assert answer.sentences[1] == "An exchange takes 110 [87, 138] ms, known to 25 %."
    assert answer.left_out == ()


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"status": "invalid", "reason": "its loss is not finite"}, "1 of 3 runs invalid"),
        (None, "1 of 3 runs missing"),
        ({"metrics": {"exchange_s": None}}, "not all of its runs have exchange_s"),
    ],
)
def test_a_number_with_an_invalid_or_missing_run_gives_no_sentence(change: Any, reason: str) -> None:
    def of(run: Run) -> Any:
        return change if of_server(run) and run.spec.repeat == 1 else {}

    answer = answer_of(summarised(of), MACHINE)
    assert len(answer.sentences) == 1
    assert answer.left_out == (f"“An exchange takes …”: {reason}",)


def test_runs_that_are_no_longer_there_give_no_sentence() -> None:
    study = summarised()
    for run in study.runs:
        if of_server(run):
            result_file(MACHINE, run.id).unlink()
    assert len(answer_of(study, MACHINE).sentences) == 1


def test_without_declared_answers_the_first_figure_is_put_into_words() -> None:
    answer = answer_of(summarised(more=""), MACHINE)
    assert [said.partition(": ")[0] for said in answer.sentences] == ["ring & all_reduce", "parameter server"]
    assert answer.sentences[0] == (
        "ring & all_reduce: training time goes from 2.475 ± 0.062 min at 1 rank to 1.553 ± 0.024 min at 2 ranks: "
        "0.627 ± 0.018 times."
    )


def test_an_answer_from_extrapolated_numbers_says_so_and_beyond_the_tested_factor_there_is_none() -> None:
    def extrapolated(factor: float) -> Any:
        metrics = {"extrapolation_factor": factor}
        return answer_of(
            summarised(lambda run: {"kinds": {"training_time_s": "extrapolated"}, "metrics": metrics}, ""), MACHINE
        )

    near, far = extrapolated(100.0), extrapolated(2000.0)
    assert all(said.endswith(" times (extrapolated from a window).") for said in near.sentences)
    assert far.sentences == ()
    assert far.left_out[0].endswith("training_time_s is extrapolated beyond the tested factor of 1,000")


def test_a_figure_in_words_is_of_its_own_runs_whatever_keys_the_first_run_has() -> None:
    where = "where: {strategy.servers: 1}"
    text = SCALING.replace("kind: time_over_ranks, name: time,", f"kind: time_over_ranks, name: time, {where},")
    study = summarised(more="", text=text)
    assert "strategy.servers" not in study.runs[0].columns
    assert [said.partition(" goes from")[0] for said in answer_of(study, MACHINE).sentences] == ["Training time"]


def test_a_figure_with_one_place_on_its_axis_is_no_answer_and_says_why() -> None:
    study = summarised(more="", text=SCALING.replace("ranks: [1, 2]", "ranks: [1]"))
    assert answer_of(study, MACHINE).left_out == ("figure `time` has one value of `ranks`",)


def test_a_ratio_without_an_interval_has_none_and_one_of_independent_means_is_as_wide_as_both() -> None:
    exact, wide = Number(2.0, 2.0, 2.0), Number(4.0, 3.6, 4.4, n=5)
    ratio = wide.over(exact)
    assert (ratio.mean, round(ratio.low or 0, 3), round(ratio.high or 0, 3)) == (2.0, 1.8, 2.2)
    assert wide.over(Number(2.0, None, None, n=2)).low is None
    both = wide.over(wide)
    assert both.low is not None and both.low < 0.9 and both.mean == 1.0


def test_a_number_is_written_in_the_unit_of_its_column_that_suits_it() -> None:
    assert Number(4.2e9, 4.1e9, 4.3e9, n=5, unit="B/s").text("unit") == "4.20 ± 0.10 GB/s"
    assert Number(2.5e-5, None, None, unit="s").text("unit") == "25 µs"
    assert Number(1.5, None, None).text("unit") == "1.5"
    assert Number(2.0**21, None, None, unit="B/s").text("MiB") == "2 MiB/s"
    assert Number(3.0, None, None, unit="MiB").over(Number(2.0, None, None, unit="s")).text("MiB") == "1.5 MiB/s"
    for form, unit in (("MiB", ""), ("MiB", "s"), ("%", "B/s")):
        with pytest.raises(NoNumber, match=f"cannot be written in {form}"):
            Number(2.0, None, None, unit=unit).text(form)
    with pytest.raises(NoNumber, match="no half-width"):
        Number(0.0, 0.0, 0.0, n=3).text("±%")
    with pytest.raises(NoNumber, match="2 runs give no interval"):
        Number(1.0, None, None, n=2).text("±%")
    with pytest.raises(NoNumber, match="a ratio needs numbers above 0"):
        Number(1.0, None, None).over(Number(0.0, None, None))


def test_first_answers_are_those_that_studies_declare_and_no_more_than_fit() -> None:
    declared = summarised()
    figures = read_study(Path.cwd(), SCALING, "drawn")
    summarise(figures, MACHINE)
    shown, _ = first_answers([figures, declared], MACHINE)
    assert [study.title for study, _ in shown[:2]] == ["scaling", "scaling"]
    of_the_machine = replace(figures, name="small_files", title="files")
    summarise(of_the_machine, MACHINE)
    shown, _ = first_answers([declared, of_the_machine], MACHINE)
    assert shown[0][0].title == "files"
    shown, left_out = first_answers([figures, declared] * 5, MACHINE)
    assert len(shown) == MAX_SENTENCES and "12 more sentences" in left_out[-1]


@pytest.mark.parametrize(
    ("wrong", "right", "said"),
    [
        ("{gain}", "{gian}", "no number is named `gian`"),
        ("{exchange:unit}", "{exchange:ms}", "`ms` is no format"),
        ("exchange_s, where", "exchnge_s, where", "`exchnge_s` is not measured"),
        ("[two, one]", "[two, three]", "no number above is named `three`"),
        ("strategy: parameter_server, ranks: 2", "ranks: 2", "chooses 2 configurations, not one"),
        ("accelerator: a100", "accelerator: a101", "no step times are known for accelerator `a101`"),
        (
            "{exchange: {column: exchange_s,",
            "{exchange: {accelerator: a100, column: exchange_s,",
            "needs one of column",
        ),
        ("exchange takes {", "exchange } takes {", "cannot be read"),
    ],
)
def test_an_answer_that_cannot_be_made_is_refused_before_any_run(wrong: str, right: str, said: str) -> None:
    assert wrong in DECLARED
    with pytest.raises(UserError, match=said):
        read_study(Path.cwd(), SCALING + DECLARED.replace(wrong, right, 1))


def test_numbers_that_are_reported_or_of_unlike_periods_are_marked() -> None:
    def later(run: Run) -> dict[str, Any]:
        begun = f"2026-11-{27 if run.spec.ranks == 2 else 20}T10:00:00+00:00"
        return {"kinds": {"throughput_samples_per_s": "reported"}, "started": begun, "ended": begun}

    answer = answer_of(summarised(later), MACHINE)
    assert answer.sentences[0].endswith("a GPU takes 938 (reported by the program; measured apart).")
    assert "(" not in answer.sentences[1], "one number, and measured"


def test_warnings_of_valid_runs_are_shown_each_kind_once() -> None:
    def warned(run: Run) -> dict[str, Any]:
        if run.spec.repeat == 0:
            return {"status": "invalid", "reason": "x", "warnings": ["of no valid run"]}
        return {"warnings": [f"page faults took {run.spec.ranks}.5 %", "layers are lost"]}

    assert warnings_of([summarised(warned)], MACHINE) == ["8 × page faults took 1.5 %", "8 × layers are lost"]
