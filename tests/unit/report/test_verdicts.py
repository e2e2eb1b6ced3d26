"""Verdicts read back: what is told of them, and what is counted."""

from __future__ import annotations

import pytest

from scalestudy.errors import UserError
from scalestudy.report.verdicts import Judged, answer, read_verdicts, tallies
from scalestudy.spec.layout import claims_file
from scalestudy.spec.study import Study
from tests.unit.analysis.fake_results import MACHINE
from tests.unit.report.made_claims import claims_of, made, write_claims


@pytest.fixture
def verdicts(study: Study) -> tuple[Judged, ...]:
    write_claims(study)
    return read_verdicts(MACHINE, study.scale, study.name)


def test_a_study_that_was_not_judged_has_no_verdicts(study: Study) -> None:
    assert read_verdicts(MACHINE, study.scale, study.name) == ()
    assert answer(()) == []


def test_an_answer_repeats_statements_with_their_numbers_and_counts_what_no_run_decides(
    verdicts: tuple[Judged, ...],
) -> None:
    assert answer(verdicts) == [
        ("reproduced on emulated compute", "Statement of server (0.571 [0.532 … 0.610])."),
        ("not reproduced", "Statement of slower (0.571 [0.532 … 0.610]; required: below 0.95)."),
        ("inconclusive", "Statement of unsure."),
        ("not testable here", "1 claim."),
        ("consistent", "1 claim."),
        ("inconsistent", "1 claim."),
    ]


def test_an_answer_repeats_three_statements_of_a_verdict_and_counts_the_others() -> None:
    claims = [Judged(**made(f"c{k}", "reproduced", statement=f"Run {k} is fast.")) for k in range(5)]
    assert answer(claims) == [("reproduced", "Run 0 is fast. Run 1 is fast. Run 2 is fast. And 2 more.")]


def test_the_denominators_are_said_and_tables_are_counted_apart(verdicts: tuple[Judged, ...]) -> None:
    assert [str(tally) for tally in tallies(verdicts)] == [
        "judged on measured runs: 2 (1 not reproduced, 1 inconclusive)",
        "judged on emulated parts: 1 (1 reproduced)",
        "arithmetic of published tables: 2 (1 consistent, 1 inconsistent)",
        "not testable here: 1",
    ]


def test_a_finding_is_taken_apart_at_its_number_and_interval(verdicts: tuple[Judged, ...]) -> None:
    assert verdicts[0].finding_parts == (
        "the ratio of throughput is ", "0.571 [0.532 … 0.610]", ", below 0.95 is claimed; 3 rounds",
    )  # fmt: skip
    assert verdicts[2].finding_parts == ("not run", "", "")


def test_every_emulated_part_is_in_the_verdict() -> None:
    parts = ["compute", "network", "storage"]
    claim = Judged(**made("c", "inconclusive", emulated=True, emulated_parts=parts))
    assert claim.label == "inconclusive on emulated compute, network and storage"


@pytest.mark.parametrize("text", ['{"claims": [{"id": "a"}]}', '{"claims": 3}', "{", '{"claims": [{"id": "a b"}]}'])
def test_a_damaged_file_is_one_message_that_names_it(study: Study, text: str) -> None:
    file = claims_file(MACHINE, study.scale, study.name)
    file.parent.mkdir(parents=True)
    file.write_text(text)
    with pytest.raises(UserError, match=r"claims/scaling\.json"):
        read_verdicts(MACHINE, study.scale, study.name)


def test_a_verdict_that_is_none_of_the_six_is_refused(study: Study) -> None:
    write_claims(study, [{**claims_of(study)[0], "verdict": "proved"}])
    with pytest.raises(UserError, match="verdict"):
        read_verdicts(MACHINE, study.scale, study.name)
