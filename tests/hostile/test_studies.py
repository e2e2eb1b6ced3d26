"""Study files, by `scalestudy check`. The cases of tests/unit/spec/bad_inputs.py go through the same door."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.hostile.harness import Case, Refuse, folder, link, nothing, pipe, raw, run, text
from tests.unit.spec.bad_inputs import BAD, Bad, laughs

S = "config/studies/s.yaml"
COMMAND = ("check",)


def study(lines: str) -> Callable[[Path], object]:
    return text(S, f"question: How?\n{lines}")


CASES = [
    Case("a folder in its place", folder(S), f"{S}: is not a file"),
    Case("a pipe in its place", pipe(S), f"{S}: is not a file"),
    Case("a link to a device", link(S, "/dev/zero"), f"{S}: is not a file"),
    Case("a link that leads nowhere", link(S, "nowhere"), f"{S}: cannot be read: No such file or directory"),
    Case("a link to itself", link(S, "s.yaml"), f"{S}: cannot be read: Too many levels of symbolic links"),
    Case("nothing in it", raw(S, b""), f"{S}: is empty"),
    Case("only a comment", raw(S, b"# later\n"), f"{S}: is empty"),
    Case("Latin-1", raw(S, "question: How?\ntitle: größer\n".encode("latin-1")), f"{S}:2: is not UTF-8 text"),
    Case("UTF-16 without a mark", raw(S, "question: How?\n".encode("utf-16-le")), "holds the control character U+0000"),
    Case("UTF-8 cut within a character", raw(S, "question: größ".encode()[:-1]), f"{S}:1: is not UTF-8 text"),
    Case("an image", raw(S, b"\x89PNG\r\n\x1a\n" + bytes(range(256))), f"{S}:1: is not UTF-8 text"),
    Case("zeros", raw(S, bytes(1000)), "holds the control character U+0000"),
    Case("a megabyte", raw(S, b"#" * (1 << 20)), f"{S}: is larger than 262,144 bytes"),
    Case("aliases that multiply", text(S, laughs(12)), "expands to more than 100,000 values"),
    Case("brackets, twenty thousand deep", study(f"base: {'[' * 20_000}\n"), "is nested more than 30 deep"),
    Case("maps, ten thousand deep", study(f"base: {'{a: ' * 10_000}\n"), "is nested more than 30 deep"),
    Case("dashes, a thousand deep", study(f"tags:\n{'- ' * 1000}a\n"), "is nested more than 30 deep"),
    Case("a value that holds itself", study("base: &a {model: *a}\n"), "is nested more than 30 deep"),
    Case("many values", study(f"tags: [{'a,' * 120_000}]\n"), "expands to more than 100,000 values"),
    Case("a key of 100,000 characters", study(f"{'k' * 100_000}: 1\n"), f"{S}:2: "),
    Case("false by its tag, true to the eye", study("base:\n  optimiser: {nesterov: !!bool yes}\n"),
         f"{S}:3: base.optimiser.nesterov: `yes` is not written as its tag `!!bool` says", before="accepted"),
    Case("nothing by its tag", study("base:\n  seed: !!null 5\n"),
         f"{S}:3: base.seed: `5` is not written as its tag `!!null` says", before="accepted"),
    Case("an underscore in a number by its tag", study("base:\n  seed: !!int 1_0\n"),
         f"{S}:3: base.seed: `1_0` is not written as its tag `!!int` says", before="accepted"),
    Case("digits of another script by a tag", study("base:\n  seed: !!int ٣\n"),
         f"{S}:3: base.seed: `٣` is not written as its tag `!!int` says", before="accepted"),
    Case("a float of words by its tag", study("base:\n  seed: !!float infinity\n"),
         f"{S}:3: base.seed: `infinity` is not written as its tag `!!float` says", before="unclear"),
    Case("a set", study("base: !!set {a, b}\n"), "the tag `!!set` is not supported"),
    Case("a time", study("base:\n  seed: !!timestamp 2020-01-01\n"), "the tag `!!timestamp` is not supported"),
    Case("a Python module", study("base: !!python/module:os {}\n"), "the tag `!!python/module:os` is not supported"),
    Case("a tag of somebody's own", study("base:\n  model: !mine {a: 1}\n"), "the tag `!!!mine` is not supported"),
    Case("a title that is read from right to left", text(S, 'question: "How\\u202Efast?"\n'),
         f"{S}:1: question: `How\\u202efast?` holds a control character", before="accepted"),
    Case("a key that clears the screen", study('base:\n  "\\e[2J": 1\n'),
         f"{S}:3: base: `\\x1b[2J` holds a control character"),
    Case("a tab", study("base:\n\tranks: 1\n"), f"{S}:3: is not valid YAML: a tab is used where spaces are needed"),
    Case("two documents", study("---\nquestion: What?\n"), f"{S}:2: is not valid YAML: but found another document"),
    Case("a directive for YAML 2", text(S, "%YAML 2.0\n---\nquestion: How?\n"), f"{S}:1: is not valid YAML: "),
    Case("code of one's own outside the folder", study("base:\n  model: {import: '../../evil:Net'}\n"),
         f"{S}:3: base.model.import: must be `file:Class`"),
    Case("published numbers outside the folder",
         study("figures: [{kind: efficiency, reference: ../../outside/diary}]\n"), f"{S}:2: figures[0].reference: must be"),
    Case("a figure outside its folder", study("tables: [{name: ../../x, values: [loss]}]\n"), "tables[0].name: must be"),
    Case("mathematics in a label", study('title: "$\\\\frac{1$"\nfigurs: []\n'), f"{S}:3: figurs: unknown key"),
    Case("another suffix", text("config/studies/t.yml", "question: How?\n"), "t.yml: is not read"),
    Case("a line break in the name of the file", text("config/studies/t\n.yaml", "question: How?\n"),
         "t\\n.yaml: the file name is the study's name and part of paths", before="accepted"),
    Case("a terminal's command in the name of the file", text("config/studies/t\x1b[2J.yaml", "question: How?\n"),
         "t\\x1b[2J.yaml: the file name is the study's name and part of paths", before="unclear"),
]  # fmt: skip


def test_without_a_fault_it_is_accepted(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(COMMAND, capsys).status == 0


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_a_wrong_study_is_refused(case: Case, project: Path, refuse: Refuse) -> None:
    (project / "config/config.yaml").write_text("machine: lab\n")
    refuse(case, COMMAND)


@pytest.mark.parametrize("bad", BAD, ids=lambda bad: bad.name)
def test_a_mistake_in_a_study_is_answered_in_full(bad: Bad, project: Path, refuse: Refuse) -> None:
    (project / "config/config.yaml").write_text(f"machine: lab\nstudies: [s]\nscale: {bad.scale}\n")
    (project / S).write_text(bad.text, encoding="utf-8")
    seen = refuse(Case(bad.name, nothing, ""), COMMAND)
    assert bad.message in seen.said.replace("config/studies/", "")
