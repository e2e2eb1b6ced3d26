"""The documentation builds strictly, is complete, and needs nothing but its own files."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path

import pytest
from PIL import Image
from sphinx.util.inventory import InventoryFile

from scalestudy.figures.catalogue import FigureSpec, TableSpec
from scalestudy.files import write_json
from scalestudy.spec.base import dotted_keys
from scalestudy.spec.config import Config, Site
from scalestudy.spec.machine import Machine
from scalestudy.spec.read_study import read_studies
from scalestudy.spec.run import RunSpec
from scalestudy.spec.schema import key_reference
from tests.browser import chromium
from tests.integration.processes import wait_until
from tests.integration.project import ROOT, make_project
from tests.unit.report.made_claims import made


def build(source: Path, out: Path) -> subprocess.CompletedProcess[str]:
    """As `make docs` does."""
    options = ["-W", "-n", "--keep-going", "-q", "-E", "-d", f"{out}-trees", "-b", "html"]
    command = [sys.executable, "-m", "sphinx", *options, str(source), str(out)]
    return subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("docs") / "html"
    built = build(ROOT / "docs", out)
    assert built.returncode == 0, built.stdout
    return out


def names(site: Path, kind: str) -> set[str]:
    """The objects of one kind that pages can refer to."""
    return set(InventoryFile.loads((site / "objects.inv").read_bytes(), uri="").data[f"std:{kind}"])


def test_every_key_of_the_models_is_in_the_reference(site: Path) -> None:
    models = (RunSpec, Config, Machine, Site, FigureSpec, TableSpec)
    keys = {key for model in models for key in dotted_keys(model)}
    keys |= {key.name for section in key_reference() if not section.choice for key in section.keys}
    headings = {"model.name", "strategy.name", "data.source", "faults.kind"}
    found = {name.rpartition(":")[2] for name in names(site, "key")}
    assert len(found) > 200
    # A queue takes the keys of `limits`.
    assert {key.replace("queues.", "limits.") for key in keys} - headings - found == set()


def test_pages_load_nothing_from_the_network_or_by_an_absolute_path(site: Path) -> None:
    pages = list(site.rglob("*.html"))
    assert len(pages) > 40
    outside = re.compile(r"<(?!a )[^>]* (?:src|href)=[\"'](?:https?:|file:|/)[^>]*>")
    assert [found for page in pages for found in outside.findall(page.read_text())] == []
    styles = "".join(style.read_text() for style in site.rglob("*.css"))
    assert re.findall(r"url\(\s*[\"']?(?:https?:|//)[^)]*\)|@import[^;]*http[^;]*;", styles) == []


def test_a_search_without_a_server_shows_where_its_words_stand(site: Path, tmp_path: Path) -> None:
    excerpts = "[...document.querySelectorAll('#search-results p.context')].map((one) => one.innerText)"
    with chromium(tmp_path / "profile") as browser:
        browser.send("Page.navigate", url=(site / "search.html").as_uri() + "?q=pinned")
        assert wait_until(lambda: browser.ask(excerpts), 30)
        assert "pinned" in " ".join(browser.ask(excerpts))


def test_every_shipped_study_has_a_page_in_the_gallery() -> None:
    studies = {file.stem for file in (ROOT / "config/studies").glob("*.yaml")}
    assert {page.stem for page in (ROOT / "docs/gallery").glob("*.md")} == studies | {"index"}


def test_a_page_of_the_gallery_is_made_from_results_and_verdicts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a clone with one study that has a figure and one of its results."""
    project = make_project(tmp_path / "clone")
    shutil.copytree(ROOT / "docs", project.folder / "docs", ignore=shutil.ignore_patterns("gallery", "__pycache__"))
    (project.folder / "docs/gallery").mkdir()
    figures = project.folder / "results/local/mini/figures/tiny"
    figures.mkdir(parents=True)
    Image.new("RGB", (556, 278)).save(figures / "time.png")
    monkeypatch.chdir(project.folder)
    [study] = read_studies(["tiny"], "mini", Machine(), machine_name="local")
    run = study.runs[0].id
    result = {"run": run, "status": "valid", "instrument": {"cpu": "Abacus 2", "cores": 2}}
    write_json(project.folder / "results/local/runs" / run / "result.json", result)
    said = "the ratio of throughput is 0.57 [0.53 … 0.61], below 0.95 is claimed; 3 rounds"
    number = {"estimate": 0.57, "low": 0.53, "high": 0.61}
    claim = made("server", "reproduced", f"Reproduced: {said}.", statement="A server costs | much", **number)
    other = made("other", "not testable here", "Not testable here: it is.")
    claims = {"claims": [asdict(claim), asdict(other)]}
    write_json(project.folder / "results/local/mini/claims/tiny.json", claims)
    project.must("python", "docs/gallery.py", "--note", "It was a busy day.")
    page = (project.folder / "docs/gallery/tiny.md").read_text()
    escaped = said.replace("[", "\\[").replace("]", "\\]")
    assert f"| reproduced | measured | A server costs \\| much | {escaped} | A paper, Fig. 1 |" in page
    assert "**Does the frame hold?**" in page
    assert "```{image} images/tiny/time.png\n:alt: time\n:width: 290px" in page
    assert "At scale `mini`: 1 valid, 3 without a result, of 4 runs with 1 repeat." in page
    assert "It was a busy day." in page and "| CPU | Abacus 2 |" in page
    assert (project.folder / "docs/gallery/images/tiny/time.png").exists()
