"""The report: one page that needs nothing else, and that can be read without seeing it."""

from __future__ import annotations

import base64
import hashlib
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import pytest

from scalestudy.analysis.summarise import summarise
from scalestudy.report.page import marked, write_report
from scalestudy.report.study_part import doubts
from scalestudy.spec.study import Run, Study
from tests.unit.analysis.conftest import study_in
from tests.unit.analysis.fake_results import MACHINE, write_results
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
        return report_with_a_skipped_run(study_in(folder))


def report_with_a_skipped_run(study: Study) -> str:
    """Made in the current folder."""

    def change(run: Run) -> dict[str, str]:
        return {"status": "skipped", "reason": "no <GPU> here"} if run.id == study.runs[0].id else {}

    write_results(study, change)
    write_claims(study)
    summarise(study, MACHINE)
    return write_report([study], MACHINE, "paper", Path("results/report.html")).read_text(encoding="utf-8")


def test_the_page_needs_nothing_from_elsewhere(text: str) -> None:
    page = Page(text)

    assert page.open == []
    for _, attributes in page.elements:
        assert (attributes.get("src") or "data:").startswith("data:")
        assert (attributes.get("href") or "#").startswith("#")
    assert page.all("script") == [{}]
    assert page.all("link") == []
    assert "url(" not in text.replace("url(%23", "")  # parts of the same figure
    assert "@import" not in text


def test_every_figure_has_an_alternative_text(text: str) -> None:
    images = Page(text).all("img")

    assert len(images) == 5
    assert all(len(image["alt"] or "") > 60 for image in images)


def test_headings_tables_and_identifiers_are_in_order(text: str) -> None:
    page = Page(text)

    assert len(page.all("h1")) == 1
    assert page.all("html") == [{"lang": "en"}]
    assert all(head.get("scope") in ("col", "row", "rowgroup") for head in page.all("th"))
    names = [attributes["id"] for _, attributes in page.elements if "id" in attributes]
    assert len(names) == len(set(names))
    assert {link["href"] for link in page.all("a")} <= {f"#{name}" for name in names}


def test_only_the_script_of_the_page_itself_may_run(text: str) -> None:
    script = text.partition("<script>")[2].partition("</script>")[0]
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()

    (policy,) = [meta["content"] or "" for meta in Page(text).all("meta") if "http-equiv" in meta]
    assert f"script-src 'sha256-{digest}'" in policy
    assert policy.startswith("default-src 'none'")


def test_the_page_begins_with_the_verdicts_and_their_denominators(text: str) -> None:
    first = text.partition("<h2")[2].partition("<h2")[0]

    assert "What was found" in first
    assert "Measured: 2 (1 not reproduced; ours: 1 inconclusive)" in first
    assert "reproduced with stand-ins" in first
    assert "changed after measuring" in first
    assert "runs disturbed" in first


def test_every_number_of_a_claim_leads_to_its_runs(text: str, study: Study) -> None:
    page = Page(text)
    hrefs = [link["href"] for link in page.all("a")]

    # From the table of verdicts and from the claim itself to the claim's runs, and from each of those to its row.
    assert hrefs.count("#scaling-server-runs") == 2
    for run in study.runs[:4]:
        assert f"#scaling-{run.id}" in hrefs
    rows = {row.get("id") for row in page.all("tr")}
    assert {f"scaling-{run.id}" for run in study.runs} <= rows


def test_a_study_is_answered_by_its_claims_and_says_how_it_was_run(text: str) -> None:
    assert '<strong class="reproduced">Reproduced with stand-ins:</strong> Statement of server (0.571' in text
    assert "snakemake scaling --cores 1 --config machine=fake scale=paper" in text
    assert "<dt>Emulated</dt><dd>nothing</dd>" in text


def test_disturbed_and_unchecked_runs_are_named(study: Study) -> None:
    write_results(study, lambda run: {"unchecked": ["Lustre counts no reads."]} if run in study.runs[:2] else {})
    rows = [
        {"run": run.id, "status": "valid", "repeat": 0, "ranks": 2, "disturbed": run == study.runs[0], "unchecked": run in study.runs[:2]}
        for run in study.runs
    ]  # fmt: skip

    assert doubts(study, MACHINE, ["ranks"], rows) == [
        "Disturbed by other programs: 2 ranks, repeat 1",
        "Not checked in 2 of 12 valid runs: Lustre counts no reads",
    ]


def test_a_study_without_claims_says_so(study: Study) -> None:
    write_results(study)
    summarise(study, MACHINE)

    page = write_report([study], MACHINE, "paper", Path("results/report.html")).read_text(encoding="utf-8")

    assert "No claims judged." in page
    assert "<form" not in page


def test_what_comes_from_results_is_escaped(text: str) -> None:
    assert "There is one &lt;socket&gt;." in text
    assert "no &lt;GPU&gt; here" in text
    assert "no <GPU>" not in text
    assert "ring &amp; all_reduce" in text


def test_what_stands_between_backticks_is_code_and_stays_escaped() -> None:
    assert marked("`a < b` and <c>") == "<code>a &lt; b</code> and &lt;c&gt;"


def test_a_claim_says_what_it_is_held_against_and_from_how_many_runs_it_is(text: str) -> None:
    assert "<summary>Criterion, and its 4 runs in 3 rounds</summary>" in text
    assert "It holds where this is below 0.95." in text


def test_control_characters_are_shown_and_not_sent(study: Study) -> None:
    summarise(study, MACHINE)
    shown = replace(study, question="red \x1b[31m or\x00 <not>\x7f?")

    page = write_report([shown], MACHINE, "paper", Path("results/report.html")).read_text(encoding="utf-8")

    assert "red ␛[31m or␀ &lt;not&gt;␡?" in page
    assert not set(page) & {chr(code) for code in (*range(9), *range(11, 32), 127)}


def test_the_page_says_what_there_is_and_how_to_make_it_again(text: str) -> None:
    assert "12 runs, 3 repeats: 11 valid, 1 skipped." in text
    assert "snakemake results/fake/paper/figures/scaling/time.svg" in text
    assert "snakemake results/fake/paper/tables/scaling/times.md" in text
    # 12 runs of 10 s each
    assert "<dd>2 min</dd>" in text
    assert "a CPU" in text


def test_the_same_results_give_the_same_page(study: Study, text: str) -> None:
    assert report_with_a_skipped_run(study) == text


def test_a_study_without_any_result_is_reported_as_such(study: Study) -> None:
    summarise(study, MACHINE)

    page = write_report([study], MACHINE, "paper", Path("results/report.html")).read_text(encoding="utf-8")

    assert "12 without a result" in page
    assert "No run has a result yet." in page
