"""Documents as Markdown, and on A4 pages where nothing leaves the margins."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from matplotlib.figure import Figure

from scalestudy.figures import style
from scalestudy.report.document import Box, Bullets, Document, Heading, Paragraph, Picture, Table, as_markdown, pieces
from scalestudy.report.document_pdf import BOTTOM, HEIGHT, LEFT, RIGHT, TOP, WIDTH, Pages, width_of, write_pdf

TABLE = Table(("study", "jobs", "P50"), (("a", "1", "2.5"), ("total", "1", "2.5")), "Hours", total=True)
LONG = "A sentence with many words, which is longer than a line of an A4 page can be. " * 12


def document(*parts: Heading | Paragraph | Bullets | Table | Picture) -> Document:
    """With a title."""
    return Document("Computing time on ü", "8 runs", parts)


def test_markdown_has_every_part_but_the_pictures() -> None:
    picture = Picture(1.0, "Bars.", lambda figure, box: None)
    made = document(Heading("Request"), Paragraph("It is **5 h**."), Bullets(("one", "two")), TABLE, picture)
    assert as_markdown(made) == (
        "# Computing time on ü\n\n8 runs\n\n## Request\n\nIt is **5 h**.\n\n- one\n- two\n\nHours:\n\n"
        "| study | jobs | P50 |\n|---|--:|--:|\n| a | 1 | 2.5 |\n| **total** | **1** | **2.5** |\n"
    )


def test_a_bar_in_a_cell_ends_no_column() -> None:
    assert "| a \\| b | 1 |" in as_markdown(document(Table(("x", "y"), (("a | b", "1"),))))


def test_bold_words_are_known_one_by_one() -> None:
    assert pieces("It is **5 GPU h** now") == [
        ("It", False), ("is", False), ("5", True), ("GPU", True), ("h", True), ("now", False),
    ]  # fmt: skip
    assert pieces("**5 h**, the `end`") == [("5", True), ("h,", True), ("the", False), ("end", False)]
    assert pieces("**A b**: (c)") == [("A", True), ("b:", True), ("(c)", False)]


def texts(pages: Pages) -> list[tuple[float, float, float, str]]:
    """Left and right end, baseline and words of every text, points."""
    found = []
    for figure in pages.figures:
        for text in figure.texts:
            x, y = text.get_position()
            bold = text.get_fontweight() == "bold"
            wide = width_of(text.get_text(), text.get_fontsize(), bold=bold)
            found.append((x * WIDTH, x * WIDTH + wide, y * HEIGHT, text.get_text()))
    return found


def test_text_stays_inside_the_margins_whatever_its_length() -> None:
    with style.styled():
        pages = Pages()
        pages.title(Document("Machine " * 30, "x", ()))
        for _ in range(12):
            pages.heading("A section")
            pages.paragraph(pieces(LONG))
            pages.bullet("w" * 300)
        rows = tuple((LONG[:150], "1,234", "5,678.90") for _ in range(60))
        pages.table(Table(("axis", "jobs", "GPU h fewer, P50"), rows, "Long"), 1)
        found = texts(pages)
    assert len(pages.figures) > 4
    assert min(left for left, *_ in found) >= LEFT - 0.1
    assert max(right for _, right, *_ in found) <= WIDTH - RIGHT + 1
    assert min(y for *_, y, _ in found) >= BOTTOM - 3
    assert max(y for *_, y, _ in found) <= HEIGHT - TOP


def test_the_head_of_a_table_stands_on_each_of_its_pages() -> None:
    with style.styled():
        pages = Pages()
        pages.table(Table(("axis", "hours"), tuple((f"row {n}", "1") for n in range(120)), "Long"), 1)
    heads = [sum(text.get_text() == "axis" for text in figure.texts) for figure in pages.figures]
    assert heads == [1] * len(pages.figures)
    assert len(heads) == 3


def test_words_that_were_given_are_all_there_in_their_order() -> None:
    with style.styled():
        pages = Pages()
        pages.paragraph(pieces(f"**Begin** {LONG}**end**"))
    said = " ".join(text.get_text() for text in pages.figures[0].texts)
    assert said == f"Begin {LONG}end"


def test_a_section_never_ends_a_page_with_its_title() -> None:
    with style.styled():
        pages = Pages()
        pages.y = BOTTOM + 30
        pages.heading("Dates")
    assert len(pages.figures) == 2
    assert pages.figures[0].texts == []


@pytest.mark.parametrize("costs", ["100 $ and $ 5", "50 % of {x} \\alpha", "Ж 漢"])
def test_a_pdf_has_a4_pages_and_takes_any_text_as_text(tmp_path: Path, costs: str) -> None:
    drawn: list[Box] = []

    def draw(figure: Figure, box: Box) -> None:
        drawn.append(box)

    picture = Picture(1.0, "Bars.", draw)
    file = tmp_path / "page.pdf"
    write_pdf(document(Heading("Cost"), Paragraph(costs), Bullets((costs,)), TABLE, picture), file)
    content = file.read_bytes()
    assert content.startswith(b"%PDF")
    assert re.findall(rb"/MediaBox \[ ?0 0 (\S+) (\S+) ?\]", content) == [(b"595.28", b"841.89")]
    [(left, bottom, width, height)] = drawn
    assert (round(72 * left), round(72 * width), height) == (LEFT, round(WIDTH - LEFT - RIGHT), 1.0)
    assert 72 * bottom > BOTTOM


def test_the_same_document_gives_the_same_bytes(tmp_path: Path) -> None:
    for name in ("a.pdf", "b.pdf"):
        write_pdf(document(Heading("Request"), TABLE), tmp_path / name)
    assert (tmp_path / "a.pdf").read_bytes() == (tmp_path / "b.pdf").read_bytes()
