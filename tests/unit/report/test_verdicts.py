"""Verdicts read back: what is counted."""

from __future__ import annotations

import pytest

from scalestudy.claims.basis import tallies
from scalestudy.errors import UserError
from scalestudy.report.verdicts import Judged, read_verdicts
from scalestudy.spec.layout import claims_file
from scalestudy.spec.study import Study
from tests.unit.analysis.fake_results import MACHINE
from tests.unit.report.made_claims import write_claims


@pytest.fixture
def verdicts(study: Study) -> tuple[Judged, ...]:
    write_claims(study)
    return read_verdicts(MACHINE, study.scale, study.name)


def test_the_denominators_are_said_and_tables_are_counted_apart(verdicts: tuple[Judged, ...]) -> None:
    assert [str(tally) for tally in tallies((claim.basis, claim.origin, claim.verdict) for claim in verdicts)] == [
        "measured: 2 (1 not reproduced; ours: 1 inconclusive)",
        "with stand-ins: 1 (1 reproduced)",
        "published arithmetic: 2 (1 consistent, 1 inconsistent)",
        "elsewhere: 1 (1 not testable here)",
    ]


def test_a_finding_is_taken_apart_at_its_number_and_interval(verdicts: tuple[Judged, ...]) -> None:
    assert verdicts[0].finding_parts == (
        "the ratio of throughput is ", "0.571 [0.532 … 0.610]", ", below 0.95 is claimed; 3 rounds",
    )  # fmt: skip
    assert verdicts[2].finding_parts == ("not run", "", "")


@pytest.mark.parametrize("text", ['{"claims": 3}', "{"])
def test_a_damaged_file_is_one_message_that_names_it(study: Study, text: str) -> None:
    file = claims_file(MACHINE, study.scale, study.name)
    file.parent.mkdir(parents=True)
    file.write_text(text)
    with pytest.raises(UserError, match=r"claims/scaling\.json"):
        read_verdicts(MACHINE, study.scale, study.name)
