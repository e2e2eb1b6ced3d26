"""Everything that is cited is one of the five documents, or stands with its full reference in config/reference/."""

from __future__ import annotations

import csv
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from scalestudy.spec.yamlfile import read_yaml
from tests.conftest import ROOT

REFERENCE = ROOT / "config/reference"
STUDIES = sorted(file for name in ("studies", "claims") for file in (ROOT / "config" / name).glob("*.yaml"))
MEASURED_HERE = re.compile(r"Measured by this project: (docs/measured/[^,;]+),")
"""A number of this project's own names the record that holds it."""


def table(name: str) -> list[dict[str, str]]:
    with open(REFERENCE / f"{name}.csv", encoding="utf-8", newline="") as stream:
        return list(csv.DictReader(stream))


SOURCES = table("sources")
TITLES = [row["title"] for row in SOURCES]
OWN = ("sources", "model_costs")
"""Counted by this project, beside the list of sources."""
NUMBERS = {file.stem: table(file.stem) for file in REFERENCE.glob("*.csv") if file.stem not in OWN}
CITATIONS = [row["citation"] for row in SOURCES if row["document"] == "yes"]
"""By which claims cite the documents; their place stands apart."""


def unknown(text: str) -> list[str]:
    """The parts of a source, between semicolons, that neither name a known work by its title nor are a citation."""
    return [part for part in text.split("; ") if part not in CITATIONS and not any(title in part for title in TITLES)]


def sources_in(data: object) -> Iterator[str]:
    """Every `source` of a file: its own, and those of its claims."""
    if isinstance(data, dict):
        for key, value in data.items():
            if key == "source" and isinstance(value, str):
                yield value
            else:
                yield from sources_in({} if key in ("base", "data", "vary", "zip", "include", "exclude") else value)
    elif isinstance(data, list):
        for item in data:
            yield from sources_in(item)


def test_every_source_has_a_full_reference() -> None:
    assert len({row["key"] for row in SOURCES}) == len(SOURCES)
    assert [
        row["key"] for row in SOURCES if not all(row[key] for key in ("citation", "title", "authors", "year"))
    ] == []
    assert [row["key"] for row in SOURCES if not (row["venue"] or row["url"])] == []


@pytest.mark.parametrize("file", STUDIES, ids=lambda file: file.stem)
def test_what_a_shipped_study_cites_is_known(file: Path) -> None:
    cited = list(sources_in(dict(read_yaml(file).data)))

    assert cited
    assert {part for text in cited if text != "own" for part in unknown(text)} == set()


@pytest.mark.parametrize("name", NUMBERS)
def test_what_a_published_number_cites_is_known(name: str) -> None:
    column = [key for key in NUMBERS[name][0] if key.startswith("source")][-1]
    cited = {row[column] for row in NUMBERS[name]}
    elsewhere = {text for text in cited if not any(title in text for title in TITLES)}

    records = {text: MEASURED_HERE.match(text) for text in elsewhere}
    assert {text for text, found in records.items() if found is None or not (ROOT / found[1]).is_file()} == set()
