"""The report as readers have it: in a browser, by keyboard, on a phone, in the dark, and checked by axe-core."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import axe_core_python
import pytest

from scalestudy.analysis.summarise import summarise
from scalestudy.report.page import write_report
from scalestudy.spec.study import Run
from tests.browser import Browser, chromium
from tests.unit.analysis.fake_results import MACHINE, read_study, write_results
from tests.unit.report.made_claims import write_claims
from tests.unit.report.test_page import CLAIM

AXE = (Path(axe_core_python.__file__).parent / "axe.min.js").read_text(encoding="utf-8")
FINDINGS = (
    "axe.run().then(found => found.violations.filter(v => ['serious', 'critical'].includes(v.impact))"
    ".map(v => `${v.impact}: ${v.id}: ${v.nodes[0].html.slice(0, 200)}`))"
)


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The report of a study with a verdict of each kind and a run that was skipped."""
    folder = tmp_path_factory.mktemp("page")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        study = read_study(folder, STUDY)

        def change(run: Run) -> dict[str, str]:
            return {"status": "skipped", "reason": "no <GPU> here"} if run.id == study.runs[0].id else {}

        write_results(study, change)
        write_claims(study)
        study = replace(study, claims=(CLAIM,))
        summarise(study, MACHINE)
        return write_report([study], MACHINE, "paper", folder / "report.html")


STUDY = """
question: Does it scale?
source: nowhere, Fig. 1
base: {model: small_cnn, data: {source: digits}, batch: {per_rank: 32}}
vary:
  strategy: [{value: allreduce, label: "ring & all_reduce"}, parameter_server]
  ranks: [1, 2]
repeats: 3
figures:
  - {kind: throughput_over_ranks, name: throughput, panel: strategy}
  - {kind: lines, name: exchange, x: strategy, y: exchange_s, series: ranks}
tables:
  - {name: times, title: Times & rates, values: [training_time_s, throughput_samples_per_s]}
"""


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    """One Chromium for all tests of this file."""
    with chromium(tmp_path_factory.mktemp("chromium")) as started:
        yield started


@pytest.mark.parametrize(("width", "scheme"), [(1280, "light"), (390, "dark")], ids=["desk", "phone"])
def test_axe_finds_nothing_serious_and_the_page_is_not_wider_than_its_window(
    browser: Browser, page: Path, width: int, scheme: str
) -> None:
    browser.open(page, width=width, scheme=scheme)
    assert browser.ask("document.documentElement.scrollWidth <= innerWidth")
    assert browser.ask("getComputedStyle(document.documentElement).backgroundColor") == (
        "rgb(22, 24, 28)" if scheme == "dark" else "rgb(255, 255, 255)"
    )
    browser.ask("document.querySelectorAll('details').forEach(part => part.open = true)")
    browser.ask(AXE)
    assert browser.ask(FINDINGS) == []


def test_every_image_is_drawn_and_nothing_but_the_file_is_asked_for(browser: Browser, page: Path) -> None:
    browser.open(page)
    assert browser.ask("[...document.images].map(image => image.naturalWidth > 100)") == [True, True]
    assert [address for address in browser.requests if not address.startswith("data:")] == [page.as_uri()]


def test_a_number_leads_to_its_runs_though_their_list_was_closed(browser: Browser, page: Path) -> None:
    browser.open(page)
    browser.ask("document.querySelector('a[href=\"#scaling-server-runs\"]').click()")
    run = "document.querySelector('#scaling-server-runs a')"
    browser.ask("new Promise(done => setTimeout(done, 200))")
    assert browser.ask(f"{run}.checkVisibility()")
    browser.ask(f"{run}.click()")
    browser.ask("new Promise(done => setTimeout(done, 200))")
    assert browser.ask("document.querySelector(':target').checkVisibility()")
    assert browser.ask("document.querySelector(':target').tagName") == "TR"
