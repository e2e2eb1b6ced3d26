"""The documentation builds strictly, is complete, and needs nothing but its own files."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from PIL import Image
from sphinx.util.inventory import InventoryFile

from scalestudy.claims.model import Direction, Equivalence, Exact, Published, Quantity
from scalestudy.figures.catalogue import FigureSpec, TableSpec
from scalestudy.files import write_json
from scalestudy.spec.base import Spec, dotted_keys
from scalestudy.spec.config import Config, Site
from scalestudy.spec.machine import Machine
from scalestudy.spec.read_study import read_studies
from scalestudy.spec.run import RunSpec
from scalestudy.spec.study_file import ScaleSpec, StudySpec
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


@pytest.mark.parametrize(
    ("prefix", "model", "one"),
    [
        ("", RunSpec, "batch.per_rank"),
        ("config:", Config, "config:budget_gpu_hours"),
        ("machine:", Machine, "machine:prices.currency"),
        ("site:", Site, "site:launcher"),
        ("figure:", FigureSpec, "figure:reference"),
        ("table:", TableSpec, "table:values"),
        ("scale:", ScaleSpec, "scale:repeats"),
        ("study:", StudySpec, "study:repeats"),
        ("claim:", Direction, "claim:above"),
        ("claim:", Equivalence, "claim:within"),
        ("claim:", Quantity, "claim:value"),
        ("claim:", Exact, "claim:checks"),
        ("claim:", Published, "claim:reference"),
    ],
)
def test_every_key_of_the_models_is_in_the_reference(site: Path, prefix: str, model: type[Spec], one: str) -> None:
    found = names(site, "key")
    chosen_by = {"model.name", "strategy.name", "data.source", "faults.kind"}  # their values are headings
    # Those of other sections; of axes, of a claim's checks and of an answer's numbers, their own line has them.
    of_study = ("scales.", "figures.", "tables.", "claims.", "vary.", "zip.", "include.", "answers.numbers.")
    of_study = (*of_study, *(("answers.",) if model is ScaleSpec else ()))
    elsewhere = of_study if model in (StudySpec, ScaleSpec) else ("scheduler.", "checks.")
    keys = {prefix + key for key in dotted_keys(model) if not key.startswith(elsewhere)} - chosen_by
    assert one in keys
    # A queue takes the keys of `limits`.
    assert {key.replace("machine:queues.", "machine:limits.") for key in keys} - found == set()


def test_pages_load_nothing_from_the_network_or_by_an_absolute_path(site: Path) -> None:
    pages = list(site.rglob("*.html"))
    assert len(pages) > 40
    outside = re.compile(r"<(?!a )[^>]* (?:src|href)=[\"'](?:https?:|file:|/)[^>]*>")
    assert [found for page in pages for found in outside.findall(page.read_text())] == []
    styles = "".join(style.read_text() for style in site.rglob("*.css"))
    assert re.findall(r"url\(\s*[\"']?(?:https?:|//)[^)]*\)|@import[^;]*http[^;]*;", styles) == []


SEEN = ("index", "gallery/gpu_scaling", "reference/run")


def test_pages_fit_a_light_desktop_and_a_dark_phone(site: Path, tmp_path: Path) -> None:
    """What is wider than the window moves sideways in its own frame; the dark page is dark."""
    brightness = "getComputedStyle(document.body).backgroundColor.match(/\\d+/g).slice(0, 3).map(Number)"
    with chromium(tmp_path / "profile") as browser:
        for page in SEEN:
            for width, height, scheme in ((1280, 900, "light"), (390, 844, "dark")):
                browser.open(site / f"{page}.html", width, height, scheme)
                assert browser.ask("document.documentElement.scrollWidth <= innerWidth"), (page, width)
                shown = sum(browser.ask(brightness)) / 3
                assert (shown < 60) if scheme == "dark" else (shown > 200), (page, scheme, shown)


def test_a_search_without_a_server_shows_where_its_words_stand(site: Path, tmp_path: Path) -> None:
    excerpts = "[...document.querySelectorAll('#search-results p.context')].map((one) => one.innerText)"
    with chromium(tmp_path / "profile") as browser:
        browser.send("Page.navigate", url=(site / "search.html").as_uri() + "?q=pinned")
        assert wait_until(lambda: browser.ask(excerpts), 30)
        assert "pinned" in " ".join(browser.ask(excerpts))


def test_every_shipped_study_has_a_page_in_the_gallery() -> None:
    studies = {file.stem for file in (ROOT / "config/studies").glob("*.yaml")}
    assert {page.stem for page in (ROOT / "docs/gallery").glob("*.md")} == studies | {"index"}


NOWHERE = {
    "[here](nowhere.md)": "cross-reference target not found: 'nowhere.md'",
    "{key}`batch.per_rnk`": "'key' reference target not found: batch.per_rnk",
    "{column}`througput`": "'column' reference target not found: througput",
    "{verb}`tri`": "'verb' reference target not found: tri",
    "{repo}`config/machnes`": "the repository has no config/machnes",
    "{term}`rnak`": "term not in glossary: 'rnak'",
}
"""What leads nowhere, and what the build says of it."""


def test_what_leads_nowhere_fails_the_build(tmp_path: Path) -> None:
    source = tmp_path / "docs"
    source.mkdir()
    (source / "conf.py").write_text((ROOT / "docs/conf.py").read_text())
    (source / "index.md").write_text("# Pages\n\n```{toctree}\n:glob:\n\npage*\n```\n")
    for number, text in enumerate(NOWHERE):
        (source / f"page{number}.md").write_text(f"# Page {number}\n\n{text}\n")
    for name in ("extension", "static"):
        (source / name).symlink_to(ROOT / "docs" / name)
    (tmp_path / "workflow").symlink_to(ROOT / "workflow")
    built = build(source, tmp_path / "out")
    assert built.returncode != 0
    complaints = [line for line in built.stdout.splitlines() if "WARNING: " in line]
    assert len(complaints) == len(NOWHERE)
    for number, said in enumerate(NOWHERE.values()):
        (complaint,) = [line for line in complaints if f"page{number}.md" in line]
        assert said in complaint


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
    claims = project.folder / "results/local/mini/claims/tiny.json"
    claims.parent.mkdir()
    said = "the ratio of throughput is 0.57 [0.53 … 0.61], below 0.95 is claimed; 3 rounds"
    number = {"estimate": 0.57, "low": 0.53, "high": 0.61}
    claim = made("server", "reproduced", sentence=f"Reproduced: {said}.", statement="A server costs | much", **number)
    write_json(claims, {"claims": [claim, made("other", "not testable here")]})
    project.must("python", "docs/gallery.py", "--note", "It was a busy day.")
    page = (project.folder / "docs/gallery/tiny.md").read_text()
    escaped = said.replace("[", "\\[").replace("]", "\\]")
    assert f"| reproduced | A server costs \\| much | {escaped} | A paper, Fig. 1 |" in page
    assert "**Does the frame hold?**" in page
    assert "```{image} images/tiny/time.png\n:alt: time\n:width: 290px" in page
    assert "At scale `mini`: 1 valid, 3 without a result, of 4 runs with 1 repeat." in page
    assert "It was a busy day." in page and "| CPU | Abacus 2 |" in page
    assert (project.folder / "docs/gallery/images/tiny/time.png").exists()
