"""Write docs/gallery/ from results: a page for each shipped study at one scale.

    python docs/gallery.py [--machine NAME] [--scale SCALE] [--note TEXT]

A study with figures or tables gets its page from them: question, answer, figures, tables, verdicts, how it was measured. A
study without results keeps the page that it has; if it has none, its page says how to make them. `--note` is printed on the pages that are written: conditions that the results do not know of.
"""

from __future__ import annotations

import argparse
import re
import shutil
import struct
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from scalestudy.claims.outcome import Verdict
from scalestudy.errors import UserError
from scalestudy.figures.catalogue import FigureSpec
from scalestudy.report.answers import answer_of
from scalestudy.report.verdicts import read_verdicts
from scalestudy.results.stored import read_result
from scalestudy.spec.columns import MEASURED
from scalestudy.spec.config import read_machine
from scalestudy.spec.labels import counted
from scalestudy.spec.layout import figure_file, table_file
from scalestudy.spec.read_study import read_studies
from scalestudy.spec.study import Study

GALLERY = Path("docs/gallery")
UNMADE = "<!-- no results -->"
"""Stands on pages of studies without results."""


def main() -> None:
    """Write the pages and the gallery's index."""
    arguments = parsed()
    studies = read_studies(None, arguments.scale, read_machine(arguments.machine), machine_name=arguments.machine)
    try:
        for study in studies:
            write_page(study, arguments.machine, arguments.note)
    except UserError as error:
        print(error, file=sys.stderr)
        sys.exit(2)
    write_index(studies)


def parsed() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description="Write docs/gallery/ from results.")
    parser.add_argument("--machine", default="local", help="name of a file in config/machines/")
    parser.add_argument("--scale", default="mini", help="mini, node or paper")
    parser.add_argument("--note", default="", help="a sentence about the conditions of the measurement")
    return parser.parse_args()


def write_page(study: Study, machine: str, note: str) -> None:
    """One study's page; one without figures leaves the page that is there."""
    page = page_of(study)
    images = [figure_file(machine, study.scale, study.name, figure.file_name, "png") for figure in study.figures]
    tables = [table_file(machine, study.scale, study.name, table.name, "md") for table in study.tables]
    if any(file.exists() for file in (*images, *tables)):
        text = "\n\n".join([*head(study), *made(study, machine, note)])
    elif page.exists() and UNMADE not in page.read_text(encoding="utf-8"):
        return
    else:
        text = "\n\n".join([*head(study), *unmade(study)])
    page.write_text(text.rstrip() + "\n", encoding="utf-8")


def page_of(study: Study) -> Path:
    """The file of a study's page."""
    return GALLERY / f"{study.name}.md"


def head(study: Study) -> Iterator[str]:
    """What every page begins with."""
    yield f"# {study.title}"
    yield f"{{.question}}\n**{plain(study.question)}**"
    if study.source and study.source != "own":
        yield f"After: {plain(study.source)}."
    if study.cannot_show:
        yield f"Scale `{study.scale}` cannot show: {plain(study.cannot_show)}"


def unmade(study: Study) -> Iterator[str]:
    """How to make what is not there."""
    yield UNMADE
    yield f"These pages have no results of this study yet. At scale `{study.scale}` it has {size_of(study)}. Make them:"
    yield f"```text\nsnakemake {study.name} --profile profiles/local\nmake gallery\n```"
    if study.figures:
        yield "It draws:"
    yield "\n".join(f"- {figure_line(figure)}" for figure in study.figures)


def made(study: Study, machine: str, note: str) -> Iterator[str]:
    """Figures, tables, and what they were measured with."""
    found = [read_result(machine, run) for run in study.runs]
    statuses = Counter("without a result" if result is None else str(result["status"]) for result in found)
    claims = read_verdicts(study, machine)
    yield "## What it shows"
    said = answer_of(study, machine)
    yield "\n".join(f"- {plain(each)}" for each in said.sentences) or f"No answer: {plain('; '.join(said.left_out))}."
    images = GALLERY / "images" / study.name
    shutil.rmtree(images, ignore_errors=True)
    images.mkdir(parents=True)
    for figure in study.figures:
        file = figure_file(machine, study.scale, study.name, figure.file_name, "png")
        if file.exists():
            shutil.copy(file, images)
            yield image(study, figure.title or figure.file_name.replace("_", " "), file.name)
            caption = file.with_suffix(".txt")
            if caption.exists():
                first, *more = caption.read_text(encoding="utf-8").splitlines()
                yield plain(" ".join([first, *(line for line in more if line.startswith("Shaded: "))]))
    for table in study.tables:
        file = table_file(machine, study.scale, study.name, table.name, "md")
        if file.exists():
            yield f"### {plain(table.title or table.name.replace('_', ' '))}"
            yield re.sub(r"\A#+ .*\n+|\A\*\*.*\n+", "", file.read_text(encoding="utf-8")).strip()
    if claims:
        yield "## Claims"
        rows = [claim_row(claim) for claim in claims]
        yield "| verdict | rests on | claim | what was found | source |\n|---|---|---|---|---|\n" + "\n".join(rows)
    yield "## How it was measured"
    yield f"At scale `{study.scale}`: {', '.join(f'{count} {status}' for status, count in statuses.items())}, of {size_of(study)}."
    if note:
        yield f"**{plain(note)}**"
    if facts := instrument([result for result in found if result]):
        yield "| fact | value |\n|---|---|\n" + "\n".join(f"| {name} | {plain(value)} |" for name, value in facts)
    yield f"```text\nsnakemake {study.name} --profile profiles/local\nmake gallery\n```"


def claim_row(claim: Verdict) -> str:
    """One verdict as a row of a table."""
    return f"| {claim.verdict} | {claim.basis} | {plain(claim.statement)} | {plain(claim.finding)} | {plain(claim.cited)} |"


PIXELS_PER_PIXEL = 1.45 * 72 / 200
"""Pixels on the page for one of the file, which has 200 to the inch: small print is then as large as that of the page."""


def image(study: Study, title: str, name: str) -> str:
    """A study's figure of that file name, as wide on the page as on paper, in proportion."""
    file = Path("images", study.name, name)
    pixels: int = struct.unpack(">I", (GALLERY / file).read_bytes()[16:20])[0]
    return f"```{{image}} {file}\n:alt: {title}\n:width: {round(pixels * PIXELS_PER_PIXEL)}px\n```"


FACTS = {
    "cpu": "CPU", "cores": "cores", "device_name": "device", "clock": "clock", "python": "Python", "torch": "torch",
    "allocator": "allocator", "code": "measuring code",
}  # fmt: skip
"""Facts of result.json's `instrument` that a reader asks for first, and how they are called."""


def instrument(results: list[dict[str, Any]]) -> list[tuple[str, str]]:
    """What the runs were measured with; several values of one fact are all named."""
    rows = []
    for key, name in FACTS.items():
        values = dict.fromkeys(str(result.get("instrument", {}).get(key) or "") for result in results)
        if said := "; ".join(value for value in values if value):
            rows.append((name, said))
    return rows


def figure_line(figure: FigureSpec) -> str:
    """A figure in words: its title, or its columns."""
    if figure.title:
        return plain(figure.title)
    column = MEASURED.get(figure.y or "")
    return plain(f"{column.label} over {figure.x}" if column else figure.file_name.replace("_", " "))


def size_of(study: Study) -> str:
    """`12 runs with 3 repeats`."""
    return f"{counted(len(study.runs), 'run')} with {counted(study.repeats, 'repeat')}"


ON_A_GPU = """## On a GPU

ResNet-50 on one NVIDIA H200, images from memory: `batch_and_precision` at scale `node`. [Your GPU](../howto/your_gpu.md) has
more.

```{image} ../figures/h200_throughput.png
:alt: Images per second of ResNet-50 on an H200, by batch and precision
:width: 355px
```"""


def write_index(studies: list[Study]) -> None:
    """The gallery's first page: what has figures, then the rest."""
    shown = [study for study in studies if UNMADE not in page_of(study).read_text(encoding="utf-8")]
    lines = [
        "# Gallery",
        "Every study that scalestudy ships, at scale `mini`. `make gallery` writes these pages from results.",
        "On one machine, an exchange is between processes of one host. [Emulated](../explanation/emulation.md) parts are "
        "marked in each figure.",
        ON_A_GPU,
    ]
    for study in shown:
        images = (GALLERY / "images" / study.name / f"{figure.file_name}.png" for figure in study.figures)
        first = next((image for image in images if image.exists()), None)
        lines += [
            f"## [{study.title}]({study.name}.md)\n\n{plain(study.question)}",
            *re.findall(
                r"^## What it shows\n\n((?:.+\n)*.+)\n\n", page_of(study).read_text(encoding="utf-8"), re.MULTILINE
            ),
        ]
        if first is not None:
            lines.append(image(study, study.title, first.name))
    rest = [study for study in studies if study not in shown]
    if rest:
        lines.append("## Without results on these pages" if shown else "## Studies")
        rows = [f"| [{study.title}]({study.name}.md) | {plain(study.question)} |" for study in rest]
        lines.append("| study | question |\n|---|---|\n" + "\n".join(rows))
    names = "\n".join(study.name for study in studies)
    lines.append(f"```{{toctree}}\n:hidden:\n\n{names}\n```")
    (GALLERY / "index.md").write_text("\n\n".join(lines) + "\n", encoding="utf-8")


def plain(text: str) -> str:
    """Text that Markdown leaves as it is; what stands between backticks stays code."""
    parts = re.split(r"(`[^`|]+`)", text)
    parts[::2] = [re.sub(r"([<*_\[\]$|])", r"\\\1", part) for part in parts[::2]]
    return "".join(parts)


if __name__ == "__main__":
    main()
