"""Docstrings are read once: they name things by nouns of the field, not by relative clauses."""

from __future__ import annotations

import ast
import re

from tests.conftest import ROOT

HARD = re.compile(r"\b(what|whose|nobody|somebody|is said|says so)\b", re.IGNORECASE)
MAX_PER_1000 = 4.0


def test_docstrings_have_few_hard_words() -> None:
    texts = [
        text
        for folder in ("workflow", "executor/src")
        for file in (ROOT / folder).rglob("*.py")
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8")))
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef) and (text := ast.get_docstring(node))
    ]
    words, hard = sum(len(text.split()) for text in texts), sum(len(HARD.findall(text)) for text in texts)
    assert words > 10_000
    assert 1000 * hard / words <= MAX_PER_1000
