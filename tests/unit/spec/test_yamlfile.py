"""YAML that is read again."""

from __future__ import annotations

import pytest

from scalestudy.errors import UserError
from scalestudy.spec.yamlfile import parse_yaml


def test_what_was_read_can_be_changed_and_the_next_reader_gets_what_the_text_says() -> None:
    first = parse_yaml("vary: {ranks: [1, 2]}\n", "a.yaml")
    first.data["vary"]["ranks"].append(4)
    first.lines.clear()
    again = parse_yaml("vary: {ranks: [1, 2]}\n", "a.yaml")
    assert again.data == {"vary": {"ranks": [1, 2]}}
    assert again.line(("vary", "ranks", 1)) == 1
    assert parse_yaml("vary: {ranks: [1, 3]}\n", "a.yaml").data == {"vary": {"ranks": [1, 3]}}
    assert parse_yaml("vary: {ranks: [1, 2]}\n", "b.yaml").file == "b.yaml"


def test_what_is_wrong_is_said_each_time() -> None:
    said = []
    for _ in range(2):
        with pytest.raises(UserError) as error:
            parse_yaml("tags: [a\n", "a.yaml")
        said.append(str(error.value))
    assert said[0] == said[1]
    assert said[0].startswith("a.yaml:2: ")
