"""A short document as a list of parts, and its Markdown. `document_pdf.py` typesets it.

Texts may hold `**bold**`, and no other markup.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

Box = tuple[float, float, float, float]
"""Left, bottom, width and height on a page, inches."""


@dataclass(frozen=True)
class Heading:
    """The title of a section."""

    text: str


@dataclass(frozen=True)
class Paragraph:
    """Running text."""

    text: str


@dataclass(frozen=True)
class Bullets:
    """A list."""

    items: tuple[str, ...]


@dataclass(frozen=True)
class Table:
    """Cells as text: the first column is left-aligned, the others hold numbers."""

    head: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    caption: str = ""
    total: bool = False
    """Whether the last row sums up the others."""


@dataclass(frozen=True)
class Picture:
    """A figure, for pages alone: Markdown leaves it out."""

    height: float
    """Inches."""
    caption: str
    draw: Callable[[Any, Box], None]
    """Draws it on a page's matplotlib Figure, inside the box."""


Part = Heading | Paragraph | Bullets | Table | Picture


@dataclass(frozen=True)
class Document:
    """Title, a line below it, and the parts."""

    title: str
    subtitle: str
    parts: tuple[Part, ...]


def as_markdown(document: Document) -> str:
    """The document as GitHub's Markdown."""
    lines = [f"# {document.title}", "", document.subtitle, ""]
    for part in document.parts:
        match part:
            case Heading():
                lines += [f"## {part.text}", ""]
            case Paragraph():
                lines += [part.text, ""]
            case Bullets():
                lines += [*(f"- {item}" for item in part.items), ""]
            case Table():
                lines += [*_rows(part), ""]
    return "\n".join(lines).rstrip() + "\n"


def _rows(table: Table) -> Iterator[str]:
    if table.caption:
        yield f"{table.caption}:"
        yield ""
    yield _row(table.head)
    yield f"|{'|'.join('---' if number == 0 else '--:' for number in range(len(table.head)))}|"
    for number, row in enumerate(table.rows):
        last = table.total and number == len(table.rows) - 1
        yield _row([f"**{cell}**" if cell else "" for cell in row] if last else row)


def _row(cells: Iterable[str]) -> str:
    escaped = [cell.replace("|", "\\|") for cell in cells]
    return f"| {' | '.join(escaped)} |"


def pieces(text: str) -> Sequence[tuple[str, bool]]:
    """Words of a text, and whether each is bold; what follows a bold word without a space, such as a comma, is part of it.
    Quotes of code are left out."""
    found: list[tuple[str, bool]] = []
    joined = False
    for number, part in enumerate(text.replace("`", "").split("**")):
        words = [(word, number % 2 == 1) for word in part.split()]
        if words and joined and found and not part[0].isspace():
            (word, bold), (more, _), *words = found.pop(), *words
            found.append((word + more, bold))
        found += words
        joined = joined if not part else not part[-1].isspace()
    return found
