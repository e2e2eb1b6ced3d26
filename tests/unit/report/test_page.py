"""The report: one page that needs nothing else, and that can be read without seeing it."""

from __future__ import annotations

import html
import re
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest

from scalestudy.analysis.summarise import summarise
from scalestudy.claims.model import Exact
from scalestudy.errors import UserError
from scalestudy.report.page import write_report
from scalestudy.report.verdicts import read_verdicts
from scalestudy.results.stored import write_result
from scalestudy.spec.layout import claims_file, result_file
from scalestudy.spec.study import Study
from tests.unit.analysis.fake_results import MACHINE, result_of, study_in, write_results
from tests.unit.report.made_claims import write_claims

CHECKS = ({"column": "status", "equals": "valid"},)
CLAIM = Exact.model_validate({"id": "server", "statement": "A server.", "kind": "exact", "checks": CHECKS})
"""A study without claims shows no verdicts."""


def attributes(text: str, name: str) -> list[str]:
    """The values of an attribute, in the order of the page."""
    return re.findall(rf'<[^>]* {name}="([^"]*)"', text)


def report_in(folder: Path) -> Path:
    """The report of a study of which one run is skipped, and of which each verdict was given once."""
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        study = replace(study_in(folder), claims=(CLAIM,))
        first = study.runs[0].id
        skipped = {"status": "skipped", "reason": "no <GPU> here"}
        unchecked = {"unchecked": ["Lustre counts no reads."]}
        write_results(study, lambda run: skipped if run.id == first else unchecked if run in study.runs[:3] else {})
        write_claims(study)
        summarise(study, MACHINE)
        return write_report([study], MACHINE, "paper", folder / "report.html")


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The text of that report."""
    return report_in(tmp_path_factory.mktemp("report")).read_text(encoding="utf-8")


def test_the_page_needs_nothing_from_elsewhere(text: str) -> None:
    opened, closed = (Counter(re.findall(rf"<{slash}([a-z0-9]+)", text)) for slash in ("", "/"))
    assert {tag for tag in opened if opened[tag] != closed[tag]} == {"meta", "img", "br"}
    assert all(source.startswith("data:") for source in attributes(text, "src"))
    assert all(address.startswith("#") for address in attributes(text, "href"))
    assert "<script" not in text and "<link" not in text
    (policy,) = re.findall('<meta http-equiv="Content-Security-Policy" content="([^"]*)"', text)
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


def test_every_claim_leads_to_its_runs(text: str, study: Study) -> None:
    hrefs, names = attributes(text, "href"), attributes(text, "id")

    assert len(names) == len(set(names)) and set(hrefs) <= {f"#{name}" for name in names}

    # From the list of all claims to the claim, from there to its runs, and from each of those to its row.
    assert hrefs.count("#scaling-server") == 1 and hrefs.count("#scaling-server-runs") == 1
    assert "<p>The ratio of throughput is 0.571 [0.532 … 0.610], below 0.95 is claimed; 3 rounds. <a href" in text
    for run in study.runs[:4]:
        assert f"#scaling-{run.id}" in hrefs
    rows = re.findall('<tr id="([^"]*)"', text)
    assert {f"scaling-{run.id}" for run in study.runs} <= set(rows)


def test_what_comes_from_results_is_escaped_and_what_was_not_checked_is_named(text: str) -> None:
    assert "Not checked in 2 of 11 valid runs: Lustre counts no reads." in text
    assert "There is one &lt;socket&gt;." in text
    assert "no &lt;GPU&gt; here" in text
    assert "no <GPU>" not in text
    assert "ring &amp; all_reduce" in text


def test_control_characters_are_shown_and_not_sent(study: Study) -> None:
    summarise(study, MACHINE)
    shown = replace(study, figures=(), tables=(), question="red \x1b[31m or\x00 <not>\x7f?")

    page = write_report([shown], MACHINE, "paper", Path("results/report.html")).read_text(encoding="utf-8")

    assert "red \\x1b[31m or\\x00 &lt;not&gt;\\x7f?" in page
    assert not set(page) & {chr(code) for code in (*range(9), *range(11, 32), 127)}


def test_answers_of_one_title_are_apart_those_of_the_machine_first_and_a_campaigns_page_is_made_again_by_its_name(
    study: Study,
) -> None:
    folder = f"{MACHINE}+night_2"
    slow = replace(study, name="small_files", figures=study.figures[1:2], tables=())
    study = replace(study, figures=study.figures[:1], tables=())
    for run in study.runs:
        write_result(result_file(folder, run.id), result_of(run))
    for each in (study, slow):
        summarise(each, folder)

    page = write_report([study, slow], folder, "paper", Path("results/report.html")).read_text(encoding="utf-8")

    found = page.partition('<dl class="answers">')[2].partition("</dl>")[0]
    assert found.count("training time goes from") == found.count("throughput goes from") == 2
    assert found.index("#small_files") < found.index(f"#{study.name}")
    assert page.count("--config machine=fake scale=paper campaign=night_2</code>") == 3


def test_commands_of_a_page_make_the_same_page_again_and_changed_runs_have_no_verdicts(
    study: Study, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SCALESTUDY_SET", "repeats=5")
    study = replace(study, figures=study.figures[1:2])
    for run in study.runs:
        write_result(result_file(MACHINE, run.id), result_of(run))
    summarise(study, MACHINE)
    write_claims(study)  # before `set`, which leaves claims out
    Path("config/studies/other.yaml").write_text("question: Another?\n")
    page = html.unescape(write_report([study], MACHINE, "paper", "elsewhere.html").read_text(encoding="utf-8"))
    again = """--config machine=fake scale=paper 'set=["repeats=5"]'"""
    assert f"snakemake results/fake/paper/report.html --cores 1 {again} studies={study.name}</code>" in page
    assert f"snakemake {study.name} --cores 1 {again}</code>" in page
    assert page.count("""--cores 1 --config 'set=["repeats=5"]'</code>""") == len(study.figures) + len(study.tables)
    assert "Statement of server" not in page


@pytest.mark.parametrize("text", ['{"claims": 3}', "{"])
def test_a_damaged_file_is_one_message_that_names_it(study: Study, text: str) -> None:
    file = claims_file(MACHINE, study.scale, study.name)
    file.parent.mkdir(parents=True)
    file.write_text(text)
    with pytest.raises(UserError, match=r"claims/scaling\.json"):
        read_verdicts(replace(study, claims=(CLAIM,)), MACHINE)
