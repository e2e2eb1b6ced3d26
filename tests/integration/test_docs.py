"""The documentation builds strictly, is complete, and needs nothing but its own files."""

from __future__ import annotations

import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path

import click
import pytest

from scalestudy.cli import cli
from scalestudy.spec.base import dotted_keys
from scalestudy.spec.columns import MEASURED
from scalestudy.spec.config import Config, Site
from scalestudy.spec.machine import Machine
from scalestudy.spec.run import RunSpec
from tests.integration.project import ROOT


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
    """What a page loads or leads to, and what it can be referred to by."""

    def __init__(self, page: Path) -> None:
        super().__init__()
        self.loaded: list[str] = []
        self.ids: set[str] = set()
        self.feed(page.read_text())

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        found = dict(attrs)
        self.ids.add(found.get("id") or "")
        address = found.get("src") if tag in ("script", "img", "iframe", "source") else found.get("href")
        if address and (tag != "a"):
            self.loaded.append(address)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("docs") / "html"
    built = build(ROOT / "docs", out)
    assert built.returncode == 0, built.stdout
    return out


def slug(kind: str, name: str) -> str:
    """The anchor of an object."""
    return f"{kind}-{re.sub(r'[^a-z0-9]+', '-', name.lower())}".rstrip("-")


@pytest.mark.parametrize(
    ("page", "kind", "model"),
    [("run", "", RunSpec), ("config", "config:", Config), ("site", "machine:", Machine), ("site", "site:", Site)],
)
def test_every_key_of_the_models_is_in_the_reference(site: Path, page: str, kind: str, model: type) -> None:
    pages = (page, "models", "data", "strategies") if model is RunSpec else (page,)
    ids = {found for name in pages for found in Links(site / f"reference/{name}.html").ids}
    choices = ("model.name", "strategy.name", "data.source")  # their values are the headings
    keys = [key for key in dotted_keys(model) if key not in choices]
    assert len(keys) > 2
    assert [key for key in keys if slug("key", kind + key) not in ids] == []


def test_every_verb_of_the_command_line_is_in_the_reference(site: Path) -> None:
    context = click.Context(cli)
    commands = {name: cli.get_command(context, name) for name in cli.list_commands(context)}
    verbs = [name for name, command in commands.items() if command is not None and not command.hidden]
    assert "try" in verbs
    ids = Links(site / "reference/command_line.html").ids
    assert [verb for verb in verbs if slug("verb", verb) not in ids] == []


def test_every_measured_column_is_in_the_reference(site: Path) -> None:
    ids = Links(site / "reference/columns.html").ids
    assert [name for name in MEASURED if slug("column", name) not in ids] == []


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


def test_pages_do_not_tell_where_they_were_built(site: Path) -> None:
    assert [page.name for page in site.rglob("*.html") if str(ROOT) in page.read_text()] == []


def test_the_search_knows_keys_and_commands(site: Path) -> None:
    index = (site / "searchindex.js").read_text()
    assert "batch.per_rank" in index
    assert "configuration key" in index


def test_every_shipped_study_has_a_page_in_the_gallery() -> None:
    studies = {file.stem for file in (ROOT / "config/studies").glob("*.yaml")}
    assert {page.stem for page in (ROOT / "docs/gallery").glob("*.md")} == studies | {"index"}


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("[here](nowhere.md)", "cross-reference target not found: 'nowhere.md'"),
        ("{key}`batch.per_rnk`", "key reference target not found: batch.per_rnk"),
        ("{column}`througput`", "column reference target not found: througput"),
        ("{verb}`tri`", "verb reference target not found: tri"),
        ("{repo}`config/machnes`", "the repository has no config/machnes"),
        ("{term}`rnak`", "term not in glossary: 'rnak'"),
    ],
)
def test_what_leads_nowhere_fails_the_build(tmp_path: Path, text: str, complaint: str) -> None:
    source = tmp_path / "docs"
    source.mkdir()
    (source / "conf.py").write_text((ROOT / "docs/conf.py").read_text())
    (source / "index.md").write_text(f"# Page\n\n{text}\n")
    for name in ("extension", "static"):
        (source / name).symlink_to(ROOT / "docs" / name)
    (tmp_path / "workflow").symlink_to(ROOT / "workflow")
    built = build(source, tmp_path / "out")
    assert built.returncode != 0
    assert complaint in built.stdout


def test_a_key_without_a_description_fails_the_build() -> None:
    script = (
        "import reference\n"
        "reference.key_reference = lambda: '### A run: x\\nOne.\\n\\n| key | type | default | meaning |\\n|---|---|---|---|\\n"
        "| `ranks` | whole number | `1` |  |\\n'\n"
        "reference.PARTS['run']()\n"
    )
    ended = subprocess.run(
        [sys.executable, "-c", script], cwd=ROOT / "docs/extension", capture_output=True, text=True, check=False
    )
    assert ended.returncode != 0
    assert "the key `ranks` has no description" in ended.stderr
