"""The report as readers have it: in a browser, by keyboard, on a phone, in the dark, and checked by axe-core."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import axe_core_python
import pytest

from tests.browser import Browser, chromium
from tests.unit.report.test_page import report_in

AXE = (Path(axe_core_python.__file__).parent / "axe.min.js").read_text(encoding="utf-8")
FINDINGS = (
    "axe.run().then(found => found.violations.filter(v => ['serious', 'critical'].includes(v.impact))"
    ".map(v => `${v.impact}: ${v.id}: ${v.nodes[0].html.slice(0, 200)}`))"
)


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The report of a study with a verdict of each kind and a run that was skipped."""
    return report_in(tmp_path_factory.mktemp("page"))


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


def test_nothing_but_the_file_is_asked_for_and_a_number_leads_to_its_runs_though_their_list_was_closed(
    browser: Browser, page: Path
) -> None:
    browser.open(page)
    assert browser.ask("[...document.images].map(image => image.naturalWidth > 100)") == [True] * 5
    assert [address for address in browser.requests if not address.startswith("data:")] == [page.as_uri()]
    browser.ask("document.querySelector('a[href=\"#scaling-server-runs\"]').click()")
    run = "document.querySelector('#scaling-server-runs a')"
    browser.ask("new Promise(done => setTimeout(done, 200))")
    assert browser.ask(f"{run}.checkVisibility()")
    browser.ask(f"{run}.click()")
    browser.ask("new Promise(done => setTimeout(done, 200))")
    assert browser.ask("document.querySelector(':target').checkVisibility()")
    assert browser.ask("document.querySelector(':target').tagName") == "TR"
