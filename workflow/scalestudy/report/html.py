"""The templates of this folder, and text on its pages."""

from __future__ import annotations

import re
from pathlib import Path

import jinja2
from markupsafe import Markup, escape

from scalestudy.figures.words import printable


def templates() -> jinja2.Environment:
    """The templates of this folder, which escape text and show control characters."""
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(Path(__file__).parent),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=lambda value: printable(value) if isinstance(value, str) and not hasattr(value, "__html__") else value,
    )
    environment.filters.update(marked=marked, whole=whole, capital=lambda text: f"{text[:1].upper()}{text[1:]}")
    return environment


def marked(text: str) -> Markup:
    """`text` for HTML, with what stands between backticks as code."""
    return Markup(re.sub(r"`([^`]+)`", r"<code>\1</code>", str(escape(printable(text)))))


def whole(text: str) -> Markup:
    """A sentence for HTML, of which no line ends inside a number, its interval or its unit."""
    return marked(
        re.sub(r"(?<=\d),? (?=[±%\d])|(?<=±) ", lambda space: space[0].replace(" ", "\N{NO-BREAK SPACE}"), text)
    )
