"""The Sphinx extension of these pages: generated parts, objects to refer to, and formulas that need no script.

`<!-- generated: NAME -->` in a page is replaced by what `reference.PARTS[NAME]` returns, from the models, catalogues and
commands as they are imported. `{key}`, `{column}` and `{verb}` refer to a configuration key, a measured column and a verb
of the command line; `{repo}` names a file of the repository. One that does not exist is a warning, which fails the build.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import reference
from docutils import nodes
from docutils.utils.math.latex2mathml import tex2mathml
from sphinx.addnodes import desc_name, desc_signature
from sphinx.application import Sphinx
from sphinx.environment import BuildEnvironment
from sphinx.roles import XRefRole
from sphinx.util import logging
from sphinx.util.docutils import SphinxRole

from scalestudy.spec.schema import write_schemas

ROOT = Path(__file__).resolve().parents[2]
MARKER = re.compile(r"^<!-- generated: (\w+) -->$", re.MULTILINE)
log = logging.getLogger(__name__)


def fill(app: Sphinx, docname: str, source: list[str]) -> None:
    """Replace the markers of a page."""
    source[0] = MARKER.sub(lambda found: reference.PARTS[found[1]](), source[0])


def signature(env: BuildEnvironment, text: str, node: desc_signature) -> str:
    """`machine:nodes` is shown as `nodes` and referred to by all of it."""
    shown = text.rpartition(":")[2]
    node += desc_name(shown, shown)
    return text


def usage(env: BuildEnvironment, text: str, node: desc_signature) -> str:
    """`scalestudy plan [OPTIONS]` is referred to as `plan`."""
    node += desc_name(text, text)
    return text.split()[1]


class KeyRole(XRefRole):
    """`machine:queues` is written as `queues`."""

    def process_link(
        self, env: BuildEnvironment, refnode: nodes.Element, has_explicit_title: bool, title: str, target: str
    ) -> tuple[str, str]:
        """The text and the target of a reference."""
        return title if has_explicit_title else title.rpartition(":")[2], target


class RepositoryFile(SphinxRole):
    """A path of the repository, which has to exist; `<name>` and `*` stand for anything."""

    def run(self) -> tuple[list[nodes.Node], list[nodes.system_message]]:
        pattern = re.sub(r"<\w+>", "*", self.text).rstrip("/")
        if not any(ROOT.glob(pattern)):
            log.warning("the repository has no %s", self.text, location=self.get_location())
        return [nodes.literal(self.text, self.text, classes=["file"])], []


def inline_formula(translator: Any, node: nodes.math) -> None:
    """`$x$` as MathML."""
    translator.body.append(tex2mathml(node.astext()))
    raise nodes.SkipNode


def displayed_formula(translator: Any, node: nodes.math_block) -> None:
    """`$$x$$` as MathML."""
    translator.body.append(tex2mathml(node.astext(), as_block=True))
    raise nodes.SkipNode


SEARCHED = "searched.js"
"""Script of the search page: the pages' texts. Sphinx fetches each page for its excerpt, which no browser allows of files."""
CONTENT = re.compile(r'<article role="main".*?</article>', re.DOTALL)


def search_offline(app: Sphinx, page: str, template: str, context: dict[str, Any], doctree: object) -> None:
    """Let the search page load SEARCHED."""
    if page == "search":
        app.add_js_file(SEARCHED)


def write_searched(app: Sphinx, failure: Exception | None) -> None:
    """Write SEARCHED, which answers the search page's requests."""
    if failure is not None or app.builder.format != "html":
        return
    files = {f"{page}.html": Path(app.outdir, f"{page}.html") for page in sorted(app.env.found_docs)}
    found = {name: CONTENT.search(file.read_text(encoding="utf-8")) for name, file in files.items()}
    texts = {name: content[0] for name, content in found.items() if content}
    answer = "async (url) => new Response(PAGES[String(url).replace(/^[.]?[/]/, '')])"
    script = f"const PAGES = {json.dumps(texts, ensure_ascii=False)};\nwindow.fetch = {answer};\n"
    Path(app.outdir, "_static", SEARCHED).write_text(script, encoding="utf-8")


def setup(app: Sphinx) -> dict[str, bool]:
    """What Sphinx calls."""
    app.add_object_type("key", "key", "pair: %s; configuration key", signature, objname="configuration key")
    app.add_object_type("column", "column", "pair: %s; measured column", signature, objname="measured column")
    app.add_object_type("verb", "verb", "pair: %s; command", usage, objname="command")
    app.add_role_to_domain("std", "key", KeyRole(), override=True)
    app.add_role("repo", RepositoryFile())
    app.add_html_math_renderer("mathml", (inline_formula, None), (displayed_formula, None))
    app.connect("source-read", fill)
    app.connect("html-page-context", search_offline)
    app.connect("build-finished", write_searched)
    app.connect("build-finished", lambda app, _: write_schemas(Path(app.outdir) / "schemas"))
    return {"parallel_read_safe": True, "parallel_write_safe": True}
