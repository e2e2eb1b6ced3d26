"""The documentation builds strictly, is complete, and needs nothing but its own files."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path

import click
import pytest
from PIL import Image
from sphinx.util.inventory import InventoryFile

from scalestudy.claims.model import Direction, Equivalence, Exact, Published, Quantity
from scalestudy.cli import cli
from scalestudy.figures.catalogue import FigureSpec, TableSpec
from scalestudy.files import write_sealed
from scalestudy.spec.base import Spec, dotted_keys
from scalestudy.spec.columns import MEASURED
from scalestudy.spec.config import Config, Site
from scalestudy.spec.machine import Machine
from scalestudy.spec.run import RunSpec
from scalestudy.spec.study_file import ScaleSpec, StudySpec
from tests.browser import chromium
from tests.integration.project import ROOT, Project, make_project
from tests.unit.report.made_claims import made


def build(source: Path, out: Path) -> subprocess.CompletedProcess[str]:
    """As `make docs` does."""
    command = [
        sys.executable,
        "-m",
        "sphinx",
        "-W",
        "-n",
        "--keep-going",
        "-q",
        "-E",
        "-d",
        f"{out}-trees",
        "-b",
        "html",
    ]
    return subprocess.run(
        [*command, str(source), str(out)], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False
    )


class Links(HTMLParser):
    """What a page loads."""

    def __init__(self, page: Path) -> None:
        super().__init__()
        self.loaded: list[str] = []
        self.feed(page.read_text())

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        found = dict(attrs)
        address = found.get("src") if tag in ("script", "img", "iframe", "source") else found.get("href")
        if address and tag != "a":
            self.loaded.append(address)


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
        ("table:", TableSpec, "table:decide"),
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


def test_every_verb_of_the_command_line_is_in_the_reference(site: Path) -> None:
    context = click.Context(cli)
    commands = {name: cli.get_command(context, name) for name in cli.list_commands(context)}
    verbs = {name for name, command in commands.items() if command is not None and not command.hidden}
    assert "try" in verbs
    assert verbs == names(site, "verb")


def test_every_measured_column_is_in_the_reference(site: Path) -> None:
    assert names(site, "column") == set(MEASURED)


def test_pages_load_nothing_from_the_network_or_by_an_absolute_path(site: Path) -> None:
    pages = list(site.rglob("*.html"))
    assert len(pages) > 40
    outside = {
        address
        for page in pages
        for address in Links(page).loaded
        if address.startswith(("http:", "https:", "/", "file:"))
    }
    assert outside == set()
    styles = "".join(style.read_text() for style in site.rglob("*.css"))
    assert re.findall(r"url\(\s*[\"']?(?:https?:|//)[^)]*\)|@import[^;]*http[^;]*;", styles) == []


SEEN = (
    "index",
    "tutorial",
    "gallery/index",
    "gallery/gpu_scaling",
    "reference/config",
    "reference/run",
    "explanation/numbers",
)


def test_pages_fit_a_desktop_and_a_phone_in_light_and_dark(site: Path, tmp_path: Path) -> None:
    """What is wider than the window moves sideways in its own frame; the dark page is dark."""
    brightness = "getComputedStyle(document.body).backgroundColor.match(/\\d+/g).slice(0, 3).map(Number)"
    with chromium(tmp_path / "profile") as browser:
        for page in SEEN:
            for width, height in ((1280, 900), (390, 844)):
                for scheme in ("light", "dark"):
                    browser.open(site / f"{page}.html", width, height, scheme)
                    assert browser.ask("document.documentElement.scrollWidth <= innerWidth"), (page, width)
                    shown = sum(browser.ask(brightness)) / 3
                    assert (shown < 60) if scheme == "dark" else (shown > 200), (page, scheme, shown)


def test_pages_do_not_tell_where_they_were_built(site: Path) -> None:
    assert [page.name for page in site.rglob("*.html") if str(ROOT) in page.read_text()] == []


def test_the_search_knows_keys_and_commands(site: Path) -> None:
    index = (site / "searchindex.js").read_text()
    assert "batch.per_rank" in index
    assert "configuration key" in index


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


@pytest.fixture(scope="module")
def complaints(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """The warnings of a build, of which any one makes it fail, of a page for each of NOWHERE."""
    folder = tmp_path_factory.mktemp("nowhere")
    source = folder / "docs"
    source.mkdir()
    (source / "conf.py").write_text((ROOT / "docs/conf.py").read_text())
    (source / "index.md").write_text("# Pages\n\n```{toctree}\n:glob:\n\npage*\n```\n")
    for number, text in enumerate(NOWHERE):
        (source / f"page{number}.md").write_text(f"# Page {number}\n\n{text}\n")
    for name in ("extension", "static"):
        (source / name).symlink_to(ROOT / "docs" / name)
    (folder / "workflow").symlink_to(ROOT / "workflow")
    built = build(source, folder / "out")
    assert built.returncode != 0
    return [line for line in built.stdout.splitlines() if "WARNING: " in line]


@pytest.mark.parametrize(("number", "text"), list(enumerate(NOWHERE)), ids=list(NOWHERE))
def test_what_leads_nowhere_fails_the_build(complaints: list[str], number: int, text: str) -> None:
    (said,) = [line for line in complaints if f"page{number}.md" in line]
    assert NOWHERE[text] in said


def test_nothing_else_fails_that_build(complaints: list[str]) -> None:
    assert len(complaints) == len(NOWHERE)


def test_a_key_without_a_description_fails_the_build() -> None:
    script = (
        "import reference\n"
        "from scalestudy.spec.schema import Key, Section\n"
        "reference.key_reference = lambda: [Section('A run: x', 'One.', [Key('ranks', 'whole number', '`1`', '')])]\n"
        "reference.PARTS['run']()\n"
    )
    ended = subprocess.run(
        [sys.executable, "-c", script], cwd=ROOT / "docs/extension", capture_output=True, text=True, check=False
    )
    assert ended.returncode != 0
    assert "the key `ranks` has no description" in ended.stderr


@pytest.fixture(scope="module")
def unshown(tmp_path_factory: pytest.TempPathFactory) -> Project:
    """A clone with one study, whose figure and one of whose results lie in a folder `made`."""
    project = make_project(tmp_path_factory.mktemp("gallery") / "clone")
    shutil.copytree(ROOT / "docs", project.folder / "docs", ignore=shutil.ignore_patterns("gallery", "__pycache__"))
    (project.folder / "docs/gallery").mkdir()
    figures = project.folder / "made/local/mini/figures/tiny"
    figures.mkdir(parents=True)
    Image.new("RGB", (556, 278)).save(figures / "time.png")
    code = "from scalestudy.dag.project import Project; print(Project({}).chosen[0].runs[0].id)"
    first = project.folder / "made/local/runs" / project.run("python", "-c", code).stdout.strip()
    first.mkdir(parents=True)
    (first / "result.json").write_text('{"status": "valid", "instrument": {"cpu": "Abacus 2", "cores": 2}}')
    return project


@pytest.fixture
def gallery(unshown: Project, tmp_path: Path) -> Project:
    """A copy of it, to make pages in."""
    copy = tmp_path / "clone"
    shutil.copytree(unshown.folder, copy, symlinks=True)
    return Project(copy, forked=True)


def test_a_page_of_the_gallery_lists_the_verdicts_on_its_claims(gallery: Project) -> None:
    claims = gallery.folder / "made/local/mini/claims/tiny.json"
    claims.parent.mkdir()
    said = "the ratio of throughput is 0.57 [0.53 … 0.61], below 0.95 is claimed; 3 rounds"
    number = {"estimate": 0.57, "low": 0.53, "high": 0.61}
    claim = made("server", "reproduced", sentence=f"Reproduced: {said}.", statement="A server costs | much", **number)
    write_sealed(claims, {"claims": [claim, made("other", "not testable here")]})
    assert gallery.run("python", "docs/gallery.py", "--results", "made").returncode == 0
    page = (gallery.folder / "docs/gallery/tiny.md").read_text()
    escaped = said.replace("[", "\\[").replace("]", "\\]")
    assert f"| reproduced | A server costs \\| much | {escaped} | A paper, Fig. 1 |" in page


def test_damaged_verdicts_end_the_gallery_with_one_message(gallery: Project) -> None:
    claims = gallery.folder / "made/local/mini/claims/tiny.json"
    claims.parent.mkdir()
    claims.write_text('{"claims": 3}')
    ended = gallery.run("python", "docs/gallery.py", "--results", "made")
    assert ended.returncode == 2
    assert "made/local/mini/claims/tiny.json" in ended.stdout
    assert "Traceback" not in ended.stdout


def test_a_page_of_the_gallery_is_made_from_results(gallery: Project) -> None:
    made = gallery.run("python", "docs/gallery.py", "--results", "made", "--note", "It was a busy day.")
    assert made.returncode == 0, made.stdout
    page = (gallery.folder / "docs/gallery/tiny.md").read_text()
    assert "**Does the frame hold?**" in page
    assert "```{image} images/tiny/time.png\n:alt: time\n:width: 290px" in page
    assert "At scale `mini`: 1 valid, 3 without a result, of 4 runs with 1 repeat." in page
    said = "No answer: its runs are not summarised."
    assert f"## What it shows\n\n{said}" in page
    assert said in (gallery.folder / "docs/gallery/index.md").read_text()
    assert "It was a busy day." in page
    assert "| CPU | Abacus 2 |" in page
    assert (gallery.folder / "docs/gallery/images/tiny/time.png").exists()


def test_a_study_without_results_says_how_to_make_them_and_a_page_that_was_made_stays(gallery: Project) -> None:
    page = gallery.folder / "docs/gallery/tiny.md"
    assert gallery.run("python", "docs/gallery.py").returncode == 0
    assert "At scale `mini` it has 4 runs with 1 repeat." in page.read_text()
    assert "snakemake tiny --profile profiles/local" in page.read_text()
    assert gallery.run("python", "docs/gallery.py", "--results", "made").returncode == 0
    before = page.read_text()
    assert gallery.run("python", "docs/gallery.py").returncode == 0
    assert page.read_text() == before


def test_a_misspelt_study_is_named_and_nothing_is_written(gallery: Project) -> None:
    ended = gallery.run("python", "docs/gallery.py", "--study", "tinny")
    assert ended.returncode == 2
    assert "there is no study `tinny` at scale `mini`: tiny" in ended.stdout
    assert list((gallery.folder / "docs/gallery").iterdir()) == []
