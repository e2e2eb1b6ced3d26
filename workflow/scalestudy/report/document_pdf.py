"""A document (document.py) on A4 pages, by matplotlib alone: embedded fonts, text that can be searched, rules as in books."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from matplotlib.backends.backend_pdf import PdfPages
from matplotlib.figure import Figure
from matplotlib.font_manager import FontProperties
from matplotlib.lines import Line2D
from matplotlib.textpath import text_to_path

from scalestudy.figures import style
from scalestudy.files import write_with
from scalestudy.report.document import Bullets, Document, Heading, Paragraph, Picture, Table, pieces

WIDTH, HEIGHT = 595.28, 841.89
"""A4, points; all lengths here are points but those of pictures."""
LEFT, RIGHT, TOP, BOTTOM = 68.0, 68.0, 72.0, 76.0
TEXT = WIDTH - LEFT - RIGHT
FAMILY = ["STIXGeneral", "DejaVu Serif", "DejaVu Sans"]
"""Fonts that matplotlib brings; the later ones for what the first lacks."""
BODY, SMALL, CAPTION, HEADING, TITLE = 10.5, 9.5, 9.5, 13.0, 19.0
LEADING = 1.32
"""Distance of lines over the size of the letters."""
SPACE = 0.25
"""Width of a space over the size of the letters, in this family."""
BULLET = 12.0
CELL = 11.0
"""Least space between two columns of a table."""
THICK, THIN = 0.9, 0.45

Words = Sequence[tuple[str, bool]]


@dataclass(frozen=True)
class CellLines:
    """Lines of one cell of a table."""

    lines: tuple[str, ...]
    bold: bool


def write_pdf(document: Document, out: Path) -> None:
    """Typeset the document, whole or not at all."""
    with style.styled():
        pages = Pages()
        pages.title(document)
        for number, part in enumerate(document.parts):
            match part:
                case Heading():
                    pages.heading(part.text)
                case Paragraph():
                    pages.paragraph(pieces(part.text))
                case Bullets():
                    for item in part.items:
                        pages.bullet(item)
                    pages.y -= 0.3 * BODY
                case Table():
                    pages.table(part, 1 + sum(isinstance(other, Table) for other in document.parts[:number]))
                case Picture():
                    pages.picture(part, 1 + sum(isinstance(other, Picture) for other in document.parts[:number]))
        pages.number(document.title)
        write_with(out, functools.partial(_save, pages.figures, document.title))


def _save(figures: Sequence[Figure], title: str, file: Path) -> None:
    with PdfPages(file, metadata={**style.METADATA["pdf"], "Title": title}) as pdf:
        for figure in figures:
            pdf.savefig(figure)


class Pages:
    """Pages that fill from top to bottom; `y` is where the next line's top goes."""

    def __init__(self) -> None:
        self.figures: list[Figure] = []
        self.y = 0.0
        self.new_page()

    def new_page(self) -> None:
        """Begin another page."""
        self.figures.append(style.new_figure(WIDTH / 72, HEIGHT / 72))
        self.y = HEIGHT - TOP

    def need(self, height: float) -> None:
        """Begin another page where this one has not so much room left."""
        if self.y - height < BOTTOM:
            self.new_page()

    # what a document has

    def title(self, document: Document) -> None:
        """The head of the first page."""
        self.lines([(word, True) for word, _ in pieces(document.title)], TITLE)
        self.y -= 3
        self.lines(pieces(document.subtitle), BODY, colour=style.QUIET)
        self.y -= 5
        self.rule(LEFT, WIDTH - RIGHT, THICK)
        self.y -= 6

    def heading(self, text: str) -> None:
        """A section's title, never alone at the foot of a page."""
        self.need(HEADING * LEADING + 10 + 3 * BODY * LEADING)
        self.y -= 10
        self.lines([(word, True) for word in text.split()], HEADING)
        self.y -= 3

    def paragraph(self, words: Words) -> None:
        """Running text."""
        self.lines(words, BODY)
        self.y -= 0.45 * BODY

    def bullet(self, text: str) -> None:
        """One item of a list."""
        self.need(BODY * LEADING)
        self._text(LEFT + 2, self.y - BODY, "•", BODY, bold=False)
        self.lines(pieces(text), BODY, LEFT + BULLET)
        self.y -= 0.2 * BODY

    def picture(self, picture: Picture, number: int) -> None:
        """A figure with its caption below."""
        height = picture.height * 72
        words = _numbered("Figure", number, picture.caption)
        self.need(height + 12 + CAPTION * LEADING * len(_wrapped(words, CAPTION, TEXT)))
        self.y -= 6
        bottom = self.y - height
        picture.draw(self.figures[-1], (LEFT / 72, bottom / 72, TEXT / 72, picture.height))
        self.y = bottom - 4
        self.lines(words, CAPTION)
        self.y -= 6

    def table(self, table: Table, number: int) -> None:
        """A table with its caption above; its head is repeated on each page."""
        widths = _widths(table)
        head = _cells(table.head, widths, bold=True)
        last = len(table.rows) - 1 if table.total else None
        rows = [_cells(row, widths, bold=index == last) for index, row in enumerate(table.rows)]
        caption = _numbered("Table", number, table.caption)
        self.need(CAPTION * LEADING * len(_wrapped(caption, CAPTION, TEXT)) + _height(head) + 3 * SMALL * LEADING + 16)
        self.y -= 4
        self.lines(caption, CAPTION)
        self.y -= 2
        self._head(head, widths)
        for index, row in enumerate(rows):
            if self.y - _height(row) - 4 < BOTTOM:
                self.rule(LEFT, WIDTH - RIGHT, THIN)
                self.new_page()
                self._head(head, widths)
            if index == last:
                self.y -= 1
                self.rule(LEFT, WIDTH - RIGHT, THIN)
                self.y -= 2
            self._row(row, widths)
        self.y -= 2
        self.rule(LEFT, WIDTH - RIGHT, THICK)
        self.y -= 10

    def number(self, title: str) -> None:
        """The foot of every page."""
        for page, figure in enumerate(self.figures, 1):
            said = f"{page} / {len(self.figures)}"
            foot = BOTTOM - 30
            _place(figure, LEFT, foot, _cut(title, SMALL, TEXT - 60), SMALL, bold=False, colour=style.QUIET)
            at = WIDTH - RIGHT - width_of(said, SMALL, bold=False)
            _place(figure, at, foot, said, SMALL, bold=False, colour=style.QUIET)

    # lines and cells

    def lines(self, words: Words, size: float, left: float = LEFT, colour: str = style.INK) -> None:
        """Words in lines as wide as the text, from `left` on."""
        for line in _wrapped(words, size, WIDTH - RIGHT - left):
            self.need(size * LEADING)
            x, baseline = left, self.y - size
            for text, bold in _runs(line):
                self._text(x, baseline, text, size, bold=bold, colour=colour)
                x += width_of(text, size, bold=bold) + SPACE * size
            self.y -= size * LEADING

    def rule(self, begin: float, end: float, width: float) -> None:
        """A horizontal line."""
        y = self.y / HEIGHT
        ends = [begin / WIDTH, end / WIDTH]
        self.figures[-1].add_artist(Line2D(ends, [y, y], color=style.INK, linewidth=width, solid_capstyle="butt"))

    def _head(self, cells: Sequence[CellLines], widths: Sequence[float]) -> None:
        self.rule(LEFT, WIDTH - RIGHT, THICK)
        self.y -= 3
        self._row(cells, widths, at_foot=True)
        self.y -= 2
        self.rule(LEFT, WIDTH - RIGHT, THIN)
        self.y -= 3

    def _row(self, cells: Sequence[CellLines], widths: Sequence[float], *, at_foot: bool = False) -> None:
        most = max(len(cell.lines) for cell in cells)
        x = LEFT
        for column, (cell, width) in enumerate(zip(cells, widths, strict=True)):
            above = most - len(cell.lines) if at_foot else 0
            for number, text in enumerate(cell.lines):
                at = x if column == 0 else x + width - width_of(text, SMALL, bold=cell.bold)
                baseline = self.y - SMALL - (number + above) * SMALL * LEADING
                self._text(at, baseline, text, SMALL, bold=cell.bold)
            x += width + CELL
        self.y -= most * SMALL * LEADING

    def _text(self, x: float, y: float, text: str, size: float, *, bold: bool, colour: str = style.INK) -> None:
        _place(self.figures[-1], x, y, text, size, bold=bold, colour=colour)


def _place(figure: Figure, x: float, y: float, text: str, size: float, *, bold: bool, colour: str) -> None:
    font = _font(size, bold=bold)
    figure.text(x / WIDTH, y / HEIGHT, text, fontproperties=font, color=colour, va="baseline", parse_math=False)


@functools.cache
def _font(size: float, *, bold: bool) -> FontProperties:
    return FontProperties(family=FAMILY, size=size, weight="bold" if bold else "normal")


@functools.cache
def width_of(text: str, size: float, *, bold: bool) -> float:
    """Points that a line of text takes."""
    width, _, _ = text_to_path.get_text_width_height_descent(text, _font(size, bold=bold), ismath=False)
    return float(width)


def _runs(words: Words) -> list[tuple[str, bool]]:
    """Neighbours of one weight joined."""
    found: list[tuple[str, bool]] = []
    for word, bold in words:
        if found and found[-1][1] == bold:
            found[-1] = f"{found[-1][0]} {word}", bold
        else:
            found.append((word, bold))
    return found


def _wrapped(words: Words, size: float, width: float) -> list[list[tuple[str, bool]]]:
    """Words in lines no wider than `width`; a longer word is cut."""
    lines: list[list[tuple[str, bool]]] = []
    used = 0.0
    for whole, bold in words:
        for word in _parts(whole, size, width, bold=bold):
            taken = width_of(word, size, bold=bold)
            if lines and used + SPACE * size + taken <= width:
                lines[-1].append((word, bold))
                used += SPACE * size + taken
            else:
                lines.append([(word, bold)])
                used = taken
    return lines


def _parts(word: str, size: float, width: float, *, bold: bool) -> list[str]:
    """A word, cut where it is wider than a line."""
    if width_of(word, size, bold=bold) <= width:
        return [word]
    parts, rest = [], word
    while rest:
        fits = max((n for n in range(1, len(rest) + 1) if width_of(rest[:n], size, bold=bold) <= width), default=1)
        parts.append(rest[:fits])
        rest = rest[fits:]
    return parts


def _cells(texts: Sequence[str], widths: Sequence[float], *, bold: bool) -> list[CellLines]:
    """A row of a table, each text in lines as wide as its column."""
    return [
        CellLines(tuple(_plain_lines(text, width, bold=bold)), bold) for text, width in zip(texts, widths, strict=True)
    ]


def _plain_lines(text: str, width: float, *, bold: bool) -> list[str]:
    wrapped = _wrapped([(word, bold) for word in text.split()], SMALL, width + 0.5)
    return [" ".join(word for word, _ in line) for line in wrapped] or [""]


def _widths(table: Table) -> list[float]:
    """Of the columns: what their numbers need, and their heads in two lines; the first column has the rest."""

    def least(column: int) -> float:
        cells = [row[column] for row in table.rows]
        bold = table.total
        head = table.head[column]
        of_head = max(width_of(part, SMALL, bold=True) for part in (*head.split(), head[: len(head) // 2 + 1]))
        return max([of_head, *(width_of(cell, SMALL, bold=bold) for cell in cells if cell)])

    numbers = [least(column) for column in range(1, len(table.head))]
    return [max(80.0, TEXT - sum(numbers) - CELL * len(numbers)), *numbers]


def _height(cells: Sequence[CellLines]) -> float:
    return SMALL * LEADING * max(len(cell.lines) for cell in cells)


def _numbered(kind: str, number: int, caption: str) -> Words:
    return [(kind, True), (f"{number}.", True), *pieces(caption)]


def _cut(text: str, size: float, width: float) -> str:
    while text and width_of(text, size, bold=False) > width:
        text = text[:-2].rstrip() + "…" if len(text) > 2 else ""
    return text
