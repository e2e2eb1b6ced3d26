"""The report: one page that needs nothing else, and that can be read without seeing it."""

from __future__ import annotations

from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import pytest

from scalestudy.analysis.summarise import summarise
from scalestudy.errors import UserError
from scalestudy.report.page import unchecked, write_report
from scalestudy.report.verdicts import read_verdicts
from scalestudy.results.stored import write_result
from scalestudy.spec.layout import claims_file, result_file
from scalestudy.spec.study import Study
from tests.unit.analysis.fake_results import MACHINE, result_of, study_in, write_results
from tests.unit.report.made_claims import write_claims

VOID = {"meta", "img", "br", "link", "input", "hr"}


class Page(HTMLParser):
    """The elements of a page, its identifiers, and whether all of them are closed."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.open: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def all(self, tag: str) -> list[dict[str, str | None]]:
        return [attributes for name, attributes in self.elements if name == tag]


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The report of a study of which one run is skipped, and of which each verdict was given once."""
    folder = tmp_path_factory.mktemp("report")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        study = study_in(folder)
        first = study.runs[0].id
        skipped = {"status": "skipped", "reason": "no <GPU> here"}
        write_results(study, lambda run: skipped if run.id == first else {})
        write_claims(study)
        summarise(study, MACHINE)
        return write_report([study], MACHINE, "paper", Path("results/report.html")).read_text(encoding="utf-8")


def test_the_page_needs_nothing_from_elsewhere(text: str) -> None:
    page = Page(text)

    assert page.open == []
    for _, attributes in page.elements:
        assert (attributes.get("src") or "data:").startswith("data:")
        assert (attributes.get("href") or "#").startswith("#")
    assert page.all("script") == page.all("link") == []
    (policy,) = [meta["content"] or "" for meta in page.all("meta") if "http-equiv" in meta]
    assert policy.startswith("default-src 'none'") and "script" not in policy
    assert "url(" not in text.replace("url(%23", "")  # parts of the same figure
    assert "@import" not in text


def test_the_page_begins_with_the_answers_then_the_verdicts_by_basis_and_what_is_left_out(text: str) -> None:
    first = text.partition('<h2 id="found">')[2].partition("<h2")[0]

    # The first figure: training time over ranks; one repeat of ring & all_reduce on one rank was skipped.
    parts = (
        "<dd>parameter server: training time goes from 4.95\N{NO-BREAK SPACE}±\N{NO-BREAK SPACE}0.12 min at 1 rank",
        "Measured: 2 (1 not reproduced; ours: 1 inconclusive)",
        "With stand-ins: 1 (1 reproduced)",
        "Published arithmetic: 2 (1 consistent, 1 inconsistent)",
        "Elsewhere: 1 (1 not testable here)",
        "Reproduced with stand-ins:",
    )
    places = [first.index(part) for part in parts]
    assert places == sorted(places)
    assert "11 of 12 runs valid" in text.partition("<h2")[0]


def test_every_number_of_a_claim_leads_to_its_runs(text: str, study: Study) -> None:
    page = Page(text)
    hrefs = [link["href"] for link in page.all("a")]
    names = [attributes["id"] for _, attributes in page.elements if "id" in attributes]

    assert len(names) == len(set(names)) and set(hrefs) <= {f"#{name}" for name in names}

    # From the list of all claims to the claim, from its number to its runs, and from each of those to its row.
    assert hrefs.count("#scaling-server") == 1 and hrefs.count("#scaling-server-runs") == 1
    assert 'The ratio of throughput is <a href="#scaling-server-runs">0.571 [0.532 … 0.610]</a>' in text
    for run in study.runs[:4]:
        assert f"#scaling-{run.id}" in hrefs
    rows = {row.get("id") for row in page.all("tr")}
    assert {f"scaling-{run.id}" for run in study.runs} <= rows


def test_what_could_not_be_checked_is_named(study: Study) -> None:
    write_results(study, lambda run: {"unchecked": ["Lustre counts no reads."]} if run in study.runs[:2] else {})
    rows = [{"run": run.id, "status": "valid", "unchecked": run in study.runs[:2]} for run in study.runs]

    assert unchecked(study, MACHINE, rows) == ["Not checked in 2 of 12 valid runs: Lustre counts no reads"]


def test_what_comes_from_results_is_escaped(text: str) -> None:
    assert "There is one &lt;socket&gt;." in text
    assert "no &lt;GPU&gt; here" in text
    assert "no <GPU>" not in text
    assert "ring &amp; all_reduce" in text


def test_control_characters_are_shown_and_not_sent(study: Study) -> None:
    summarise(study, MACHINE)
    shown = replace(study, question="red \x1b[31m or\x00 <not>\x7f?")

    page = write_report([shown], MACHINE, "paper", Path("results/report.html")).read_text(encoding="utf-8")

    assert "red \\x1b[31m or\\x00 &lt;not&gt;\\x7f?" in page
    assert not set(page) & {chr(code) for code in (*range(9), *range(11, 32), 127)}


def test_studies_of_one_title_have_each_its_own_answer_and_a_campaigns_page_is_made_again_by_its_name(
    study: Study,
) -> None:
    folder = f"{MACHINE}+night_2"
    slow = replace(study, name="slow", figures=study.figures[1:])
    for run in study.runs:
        write_result(result_file(folder, run.id), result_of(run))
    for each in (study, slow):
        summarise(each, folder)

    page = write_report([study, slow], folder, "paper", Path("results/report.html")).read_text(encoding="utf-8")

    found = page.partition('<dl class="answers">')[2].partition("</dl>")[0]
    assert found.count("training time goes from") == found.count("throughput goes from") == 2
    assert page.count("--config machine=fake scale=paper campaign=night_2</code>") == 3


@pytest.mark.parametrize("text", ['{"claims": 3}', "{"])
def test_a_damaged_file_is_one_message_that_names_it(study: Study, text: str) -> None:
    file = claims_file(MACHINE, study.scale, study.name)
    file.parent.mkdir(parents=True)
    file.write_text(text)
    with pytest.raises(UserError, match=r"claims/scaling\.json"):
        read_verdicts(study, MACHINE)
