"""Wrong input is answered with file, line, key, value and a remedy; never with anything else."""

from __future__ import annotations

import os
import re
import time
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from scalestudy.errors import UserError
from scalestudy.spec.config import checked, read_config, read_machine
from scalestudy.spec.expand_study import expand
from scalestudy.spec.machine import Machine
from scalestudy.spec.read_study import find_studies, read_studies
from scalestudy.spec.study import RESERVED, StudySpec
from scalestudy.spec.yamlfile import parse_yaml, read_yaml
from tests.unit.spec.bad_inputs import BAD, Bad, laughs

LAB = Machine(nodes=2, devices_per_node=4, memory_gib=16.0)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty project, which is the current directory; returns its config/studies."""
    monkeypatch.chdir(tmp_path)
    studies = tmp_path / "config/studies"
    studies.mkdir(parents=True)
    return studies


def message_about(folder: Path, names: list[str] | None = None, scale: str = "paper") -> str:
    """What `read_studies` says; names of files without their folder."""
    with pytest.raises(UserError) as raised:
        read_studies(names, scale, LAB, machine_name="lab", folder=folder)
    return str(raised.value).replace(f"{folder}/", "")


def test_there_are_enough_cases_and_no_two_are_called_the_same() -> None:
    assert len(BAD) >= 90
    assert len({bad.name for bad in BAD}) == len(BAD)


@pytest.mark.parametrize("bad", BAD, ids=lambda bad: bad.name)
def test_a_wrong_study_is_answered_with_place_and_remedy(bad: Bad, folder: Path) -> None:
    (folder / "s.yaml").write_text(bad.text, encoding="utf-8")
    start = time.process_time()
    assert message_about(folder, ["s"], bad.scale) == bad.message
    assert time.process_time() - start < 5


def test_more_errors_than_a_person_reads_are_cut_short(folder: Path) -> None:
    ranks = ", ".join(str(ranks) for ranks in range(2, 100))
    (folder / "s.yaml").write_text(f"question: How?\nvary: {{ranks: [{ranks}]}}\n")
    lines = message_about(folder, ["s"]).splitlines()
    assert lines[0] == "s.yaml:2: vary.ranks[0]: strategy `single` has at most 1 rank, not 2"
    assert lines[-1] == "s.yaml: may have more errors; the first are listed"
    assert len(lines) < 50


def test_errors_of_all_studies_are_listed_together(folder: Path) -> None:
    (folder / "a.yaml").write_text("question: 5\n")
    (folder / "b.yaml").write_text("question: How?\nbase: {ranks: 0}\n")
    (folder / "c.yaml").write_text("question: How?\n")
    assert message_about(folder) == (
        "a.yaml:1: question: must be text, not `5`\n    put it in quotes\n"
        "b.yaml:2: base.ranks: must be at least 1, not `0`"
    )


def test_an_unknown_study_is_answered_with_the_nearest(folder: Path) -> None:
    (folder / "gpu_scaling.yaml").write_text("question: How?\n")
    assert message_about(folder, ["gpu_scalling"]) == (
        f"{folder}: there is no study `gpu_scalling`\n    did you mean `gpu_scaling`?"
    )


def test_a_folder_without_studies_is_an_error(folder: Path) -> None:
    assert (
        message_about(folder)
        == f"{folder}: there is no study here\n    add one; docs/reference/study.md has an example"
    )


def test_a_scale_that_no_study_has_is_an_error(folder: Path) -> None:
    (folder / "s.yaml").write_text("question: How?\n")
    assert message_about(folder, scale="mini") == f"{folder}: no study has scale `mini`"


def test_a_study_with_another_suffix_is_not_passed_over(folder: Path) -> None:
    (folder / "s.yml").write_text("question: How?\n")
    assert message_about(folder) == "s.yml: is not read: a study's file name ends in `.yaml`\n    rename it s.yaml"


def test_a_study_whose_file_name_is_no_name_is_an_error(folder: Path) -> None:
    (folder / "GPU scaling.yaml").write_text("question: How?\n")
    assert message_about(folder) == (
        "GPU scaling.yaml: the file name is the study's name and part of paths\n"
        "    use lower-case letters, digits and `_`, starting with a letter"
    )


@pytest.mark.parametrize("name", ["all", "train", "spec", "report", "claims"])
def test_a_study_named_as_a_rule_is_an_error(folder: Path, name: str) -> None:
    (folder / f"{name}.yaml").write_text("question: How?\n")
    assert message_about(folder) == (
        f"{name}.yaml: `{name}` cannot be the name of a study: a rule of the workflow has it\n    rename the file"
    )


def test_the_names_that_no_study_can_have_are_those_of_the_rules() -> None:
    rules = {
        name
        for file in (Path(__file__).resolve().parents[3] / "workflow/rules").glob("*.smk")
        for name in re.findall(r"^rule (\w+):", file.read_text(encoding="utf-8"), re.MULTILINE)
    }
    assert set(RESERVED) == {"all", "claims", *rules}


def test_a_name_that_is_too_long_is_answered_with_the_limit(folder: Path) -> None:
    (folder / f"{'a' * 119}.yaml").write_text("question: How?\n")
    assert message_about(folder) == (
        f"{'a' * 119}.yaml: the file name is the study's name, and has 119 characters; at most 64 can be used\n"
        "    rename the file"
    )


def test_a_wrong_study_does_not_hide_the_others(folder: Path) -> None:
    (folder / "a.yaml").write_text("question: 5\n")
    (folder / "b.yaml").write_text("question: How?\n")
    (folder / "all.yaml").write_text("question: How?\n")
    found = find_studies(None, "paper", LAB, folder=folder)
    assert [study.name for study in found.studies] == ["b"]
    assert sorted(found.wrong) == ["a", "all"]


def test_a_folder_in_the_place_of_a_study_is_an_error(folder: Path) -> None:
    (folder / "s.yaml").mkdir()
    assert message_about(folder) == "s.yaml: is not a file\n    give the path of a YAML file"


def test_a_pipe_in_the_place_of_a_study_does_not_hang(folder: Path) -> None:
    os.mkfifo(folder / "s.yaml")
    assert message_about(folder) == "s.yaml: is not a file\n    give the path of a YAML file"


def test_a_link_that_leads_nowhere_is_an_error(folder: Path) -> None:
    (folder / "s.yaml").symlink_to(folder / "gone")
    assert message_about(folder) == "s.yaml: cannot be read: No such file or directory"


@pytest.mark.skipif(os.geteuid() == 0, reason="root can read every file")
def test_a_file_that_may_not_be_read_is_an_error(folder: Path) -> None:
    (folder / "s.yaml").write_text("question: How?\n")
    (folder / "s.yaml").chmod(0)
    assert message_about(folder) == (
        "s.yaml: cannot be read: Permission denied\n    make it readable, then run the same command again"
    )


def test_a_file_that_is_not_utf8_is_an_error(folder: Path) -> None:
    (folder / "s.yaml").write_bytes("question: How?\ntitle: größer\n".encode("latin-1"))
    assert message_about(folder) == "s.yaml:2: is not UTF-8 text (byte 24)\n    save it as UTF-8"


def test_a_missing_file_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(UserError) as raised:
        read_config(tmp_path / "config.yaml")
    assert str(raised.value) == f"{tmp_path}/config.yaml: cannot be read: No such file or directory"


def test_an_unknown_machine_is_answered_with_the_nearest(tmp_path: Path) -> None:
    (tmp_path / "local.yaml").touch()
    with pytest.raises(UserError) as raised:
        read_machine("lokal", tmp_path)
    assert str(raised.value) == f"{tmp_path}: there is no machine `lokal`\n    did you mean `local`?"


def test_a_machine_in_another_folder_cannot_be_named(tmp_path: Path) -> None:
    (tmp_path / "machines").mkdir()
    (tmp_path / "other.yaml").write_text("nodes: 1\n")
    with pytest.raises(UserError, match=r"there is no machine `\.\./other`"):
        read_machine("../other", tmp_path / "machines")


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("scale", "big", "--config scale: `big` is not valid here\n    valid: mini, node, paper"),
        (
            "studies",
            "GPU",
            "--config studies[0]: must be a word of lower-case letters, digits and `_`, starting with a letter, not `GPU`",
        ),
        ("studies", [], "--config studies: must have at least 1 value, not 0"),
        ("machine", 5, "--config machine: must be text, not `5`\n    put it in quotes"),
        ("machine", float("nan"), "--config machine: `nan` is not a finite number\n    give a number"),
        ("stduies", "a", "--config stduies: unknown key `stduies`\n    did you mean `studies`?"),
    ],
)
def test_a_wrong_value_on_the_command_line_is_answered(key: str, value: object, message: str, tmp_path: Path) -> None:
    (tmp_path / "config.yaml").write_text("scale: mini\n")
    with pytest.raises(UserError) as raised:
        read_config(tmp_path / "config.yaml", {key: value})
    assert str(raised.value) == message


def test_multiplying_aliases_are_answered_fast() -> None:
    start = time.process_time()
    with pytest.raises(UserError, match="expands to more than 100,000 values"):
        parse_yaml(laughs(60), "s.yaml")
    assert time.process_time() - start < 5


def test_plain_words_numbers_and_dates_are_what_they_look_like() -> None:
    text = (
        "a: 010\nb: 1:30\nc: yes\nd: 2020-01-01\ne: 1e-3\nf: 1_000\ng: null\nh: ~\ni: True\nj: -0.5\nk: +5\nl: 0x10\n"
    )
    assert parse_yaml(text, "s.yaml").data == {
        "a": 10,
        "b": "1:30",
        "c": "yes",
        "d": "2020-01-01",
        "e": 0.001,
        "f": "1_000",
        "g": None,
        "h": None,
        "i": True,
        "j": -0.5,
        "k": 5,
        "l": "0x10",
    }


def test_every_value_knows_its_line(tmp_path: Path) -> None:
    (tmp_path / "s.yaml").write_text("a:\n  b:\n  - c: 1\n  - d\n")
    document = read_yaml(tmp_path / "s.yaml")
    assert document.where(("a", "b", 0, "c")) == f"{tmp_path}/s.yaml:3: a.b[0].c"
    assert document.where(("a", "b", 1)) == f"{tmp_path}/s.yaml:4: a.b[1]"
    assert document.where(("a", "x", "y")) == f"{tmp_path}/s.yaml:1: a.x.y"


VALID = """\
question: How?
tags: [scaling]
base:
  model: {name: mlp, layers: 3}
  data: {source: digits, scale: 64 KiB}
  batch: {global: 64}
  optimiser: {learning_rate: 0.1, steps: {every_epochs: 30, factor: 0.1}}
  faults: [{kind: slow_rank, rank: 0, seconds: 0.5}]
vary:
  strategy: [allreduce, {value: {name: halving_doubling, schedule: flat}, label: halving}]
  ranks: [1, 2, 4]
zip: {seed: [0, 10], optimiser.momentum: [0.5, null]}
exclude: [{strategy: allreduce, ranks: 4}]
include: [{ranks: 8, strategy: allreduce, repeats: 1}]
repeats: 2
scales:
  mini: {base: {model: small_cnn, batch: {global: null, per_rank: 8}}, vary: {ranks: [1], seed: null}, include: []}
figures: [{kind: efficiency, series: strategy, where: {ranks: 2}}, {kind: lines, name: l, x: ranks, y: loss}]
tables: [{name: t, values: [loss, throughput_samples_per_s]}]
"""
PIECES = [
    *VALID.replace("{", " ").replace("}", " ").replace(",", " ").replace("[", " ").replace("]", " ").split(),
    *"{}[],:-?&*!|>'\"%@`#~\n\t",
    *("---", "...", "<<", "&a", "*a", "!!int", "!!set", "null", "true", ".nan", ".inf", "-1", "0", "1e9"),
    "1x node memory",
    "\n  ",
    "import: a:b",
    "value",
    "label",
    "kwargs",
    "repeats",
    "é",
    "\x07",
    "\ufeff",
    "999999999999999999999",
]


def reads_or_complains(text: str) -> None:
    """Only a UserError may come out, with something to read in it."""
    try:
        document = parse_yaml(text, "s.yaml")
        spec = checked(StudySpec, document)
        for scale in ("mini", "paper"):
            expand(document, spec, "s", scale, LAB, "lab")
    except UserError as error:
        assert str(error).startswith("s.yaml")


FUZZ = settings(max_examples=250, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])


def test_the_file_that_is_fuzzed_is_valid() -> None:
    document = parse_yaml(VALID, "s.yaml")
    study = expand(document, checked(StudySpec, document), "s", "paper", LAB, "lab")
    assert len(study.runs) == 21


@pytest.mark.slow
@FUZZ
@given(st.text(max_size=80))
def test_no_text_is_answered_with_anything_but_a_message(text: str) -> None:
    reads_or_complains(text)


@FUZZ
@given(st.lists(st.sampled_from(PIECES), max_size=25))
def test_no_pieces_of_yaml_are_answered_with_anything_but_a_message(pieces: list[str]) -> None:
    reads_or_complains("question: How?\nbase: " + " ".join(pieces))


@pytest.mark.slow
@FUZZ
@given(st.data())
def test_no_edit_of_a_study_is_answered_with_anything_but_a_message(data: st.DataObject) -> None:
    text = VALID
    for _ in range(data.draw(st.integers(1, 3))):
        start = data.draw(st.integers(0, len(text)))
        end = min(len(text), start + data.draw(st.integers(0, 12)))
        text = text[:start] + data.draw(st.sampled_from(PIECES)) + text[end:]
    reads_or_complains(text)


LEAVES = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(allow_nan=False, allow_infinity=False),
    st.sampled_from([piece for piece in PIECES if piece.isprintable()]),
)
VALUES = st.recursive(
    LEAVES,
    lambda below: st.lists(below, max_size=3) | st.dictionaries(st.sampled_from(PIECES[:80]), below, max_size=3),
    max_leaves=6,
)
KEYS = ["base", "vary", "zip", "exclude", "include", "figures", "tables", "scales", "repeats", "tags"]
RUN_KEYS = [
    "model",
    "strategy",
    "data",
    "batch",
    "ranks",
    "nodes",
    "faults",
    "loader",
    "optimiser",
    "measure",
    "device",
]


@pytest.mark.slow
@FUZZ
@given(st.dictionaries(st.sampled_from(KEYS), VALUES, max_size=4), st.dictionaries(st.sampled_from(RUN_KEYS), VALUES))
def test_no_well_formed_nonsense_is_answered_with_anything_but_a_message(
    study: dict[str, object], base: dict[str, object]
) -> None:
    import json

    reads_or_complains(json.dumps({"question": "How?", **study, "base": base}, ensure_ascii=False))
    reads_or_complains(json.dumps({"question": "How?", "vary": {key: [value] for key, value in base.items()}}))
