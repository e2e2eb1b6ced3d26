"""Words of other tools are answered with the word that is valid here; old spellings of keys stay valid."""

from __future__ import annotations

from pathlib import Path
from typing import Any, get_args

import pytest

from scalestudy.errors import UserError
from scalestudy.spec.base import dotted_keys, key_problem, parse
from scalestudy.spec.columns import columns_of
from scalestudy.spec.ids import run_id
from scalestudy.spec.machine import Machine
from scalestudy.spec.read_study import read_studies
from scalestudy.spec.run import RunSpec
from scalestudy.spec.schema import schemas
from scalestudy.spec.synonyms import ABSENT, KEYS, VALUES
from scalestudy.strategies.catalogue import AnyStrategy


@pytest.mark.parametrize(
    ("word", "remedy"),
    [
        ("lr", "did you mean `optimiser.learning_rate`?"),
        ("gpus", "did you mean `ranks`?"),
        ("world_size", "did you mean `ranks`?"),
        ("num-workers", "did you mean `loader.workers`?"),
        ("workers", "did you mean `loader.workers`?"),
        ("batch_size", "did you mean `batch.per_rank` or `batch.global`?"),
        ("epochs", "did you mean `train.epochs`?"),
        ("precision", "did you mean `autocast` or `dtype`?"),
        ("nnodes", "did you mean `nodes`?"),
        ("optimizer", "did you mean `optimiser`?"),
        ("optimizer.lr", "did you mean `optimiser.learning_rate`?"),
        ("optimiser.lr", "did you mean `optimiser.learning_rate`?"),
        ("train.num_epochs", "did you mean `train.epochs`?"),
    ],
)
def test_a_key_of_another_tool_is_answered_with_ours(word: str, remedy: str) -> None:
    problem = key_problem(RunSpec, word)
    assert problem is not None
    assert problem.remedy == remedy


@pytest.mark.parametrize(
    ("data", "remedy"),
    [
        ({"lr": 0.1}, "did you mean `optimiser.learning_rate`?"),
        ({"optimiser": {"lr": 0.1}}, "did you mean `optimiser.learning_rate`?"),
        ({"optimiser": {"name": "adam"}}, "the one optimiser is `sgd`, with momentum"),
        ({"strategy": "ddp"}, "did you mean `allreduce`?"),
        ({"strategy": {"name": "DDP"}}, "did you mean `allreduce`?"),
        ({"strategy": "deepspeed"}, "did you mean `zero1` or `fsdp`?"),
        ({"dtype": "fp32"}, "did you mean `float32`?"),
        ({"dtype": "fp16"}, "for mixed precision leave `dtype` out and set `autocast: float16`"),
        ({"autocast": "fp16"}, "did you mean `float16`?"),
        ({"data": {"source": "mnist"}}, "did you mean `digits` or `fashion_mnist`?"),
    ],
)
def test_a_value_of_another_tool_is_answered_with_ours(data: dict[str, Any], remedy: str) -> None:
    run, problems = parse(RunSpec, data)
    assert run is None
    assert [problem.remedy for problem in problems] == [remedy]


def test_every_synonym_leads_to_a_key_that_a_run_has() -> None:
    known = set(dotted_keys(RunSpec))
    assert {name for names in KEYS.values() for name in names} - known == set()
    assert set(KEYS) & {key for key in known if "." not in key} == set()


def test_every_synonym_of_a_value_leads_to_one_that_is_valid() -> None:
    valid = set(_texts(schemas()["run"]))
    assert {name for names in VALUES.values() for name in names} - valid == set()
    strategies = {name for member in get_args(AnyStrategy) for name in get_args(member.model_fields["name"].annotation)}
    assert (set(VALUES) | set(ABSENT)) & strategies == set()


def _texts(schema: Any) -> list[str]:
    if isinstance(schema, str):
        return [schema]
    below = schema.values() if isinstance(schema, dict) else schema if isinstance(schema, list) else ()
    return [text for item in below for text in _texts(item)]


def test_the_old_name_of_a_key_makes_the_same_run(tmp_path: Path) -> None:
    old, _ = parse(RunSpec, {"tolerate_stall_s": 60})
    new, _ = parse(RunSpec, {"heartbeat_timeout_s": 60})
    assert old is not None and new is not None
    assert old == new
    assert run_id(old) == run_id(new) == "small_cnn.digits.single.x1.r0-7f0c6f832758"
    assert old.plain() == {"tolerate_stall_s": 60.0}
    assert columns_of(old)["heartbeat_timeout_s"] == 60.0


@pytest.mark.parametrize(
    ("text", "places"),
    [
        ("base: {tolerate_stall_s: 60}", ["base.tolerate_stall_s"]),
        ("vary: {tolerate_stall_s: [60]}", ["vary.tolerate_stall_s"]),
        ("zip: {tolerate_stall_s: [60]}", ["zip.tolerate_stall_s"]),
        ("include: [{tolerate_stall_s: 60}]", ["include[0].tolerate_stall_s"]),
        ("base: {heartbeat_timeout_s: 60}", []),
    ],
)
def test_an_old_name_in_a_study_is_valid_and_noticed_with_its_place(
    text: str, places: list[str], tmp_path: Path
) -> None:
    (tmp_path / "s.yaml").write_text(f"question: How?\n{text}\n")
    (study,) = read_studies(["s"], "paper", Machine(), folder=tmp_path)
    assert [run.spec.heartbeat_timeout_s for run in study.runs] == [60.0]
    assert list(study.notices) == [
        f"{tmp_path}/s.yaml:2: {place}: is now called `heartbeat_timeout_s`; the old name remains valid"
        for place in places
    ]


def test_old_names_in_columns_of_figures_are_read(tmp_path: Path) -> None:
    (tmp_path / "s.yaml").write_text(
        "question: How?\nvary: {tolerate_stall_s: [60, 90]}\n"
        "figures: [{kind: efficiency, series: tolerate_stall_s, where: {tolerate_stall_s: 60}}]\n"
    )
    (study,) = read_studies(["s"], "paper", Machine(), folder=tmp_path)
    assert study.figures[0].series == "heartbeat_timeout_s"
    assert study.figures[0].where == {"heartbeat_timeout_s": 60}


def test_a_layer_with_the_new_name_replaces_the_old_name_of_another(tmp_path: Path) -> None:
    (tmp_path / "s.yaml").write_text(
        "question: How?\nbase: {tolerate_stall_s: 60}\nscales: {mini: {base: {heartbeat_timeout_s: 90}}}\n"
    )
    (study,) = read_studies(["s"], "mini", Machine(), folder=tmp_path)
    assert study.runs[0].spec.heartbeat_timeout_s == 90.0


def test_both_names_in_one_map_are_an_error(tmp_path: Path) -> None:
    (tmp_path / "s.yaml").write_text("question: How?\nbase: {tolerate_stall_s: 60, heartbeat_timeout_s: 90}\n")
    with pytest.raises(UserError, match="is the old name of `heartbeat_timeout_s`, which is set too"):
        read_studies(["s"], "paper", Machine(), folder=tmp_path)


def test_an_error_at_an_old_name_is_at_its_line(tmp_path: Path) -> None:
    (tmp_path / "s.yaml").write_text("question: How?\nbase:\n  tolerate_stall_s: 1\n")
    with pytest.raises(UserError, match=r"s.yaml:3: base.heartbeat_timeout_s: must be at least 2, not `1`"):
        read_studies(["s"], "paper", Machine(), folder=tmp_path)
