"""A study whose run is a program."""

from __future__ import annotations

from pathlib import Path

import pytest

from scalestudy.errors import UserError
from scalestudy.program import draft
from scalestudy.program.draft import words_of
from scalestudy.program.observe import Observation, Rank
from scalestudy.spec.columns import columns_of
from scalestudy.spec.machine import Machine
from scalestudy.spec.program import Program
from scalestudy.spec.study import Study
from tests.unit.spec.test_study import made

PROGRAM = """\
base:
  program: {{command: "torchrun --nproc-per-node {{ranks_per_node}} train.py --batch {{batch.per_rank}} --fsdp {{fsdp}}", files: [train.py]{more}}}
vary: {{ranks: {{to: machine}}, batch.per_rank: [16, 32], {vary}}}
{rest}
"""
TWO_CORES = Machine(nodes=1, cores_per_node=2)


@pytest.fixture(autouse=True)
def _script(here: Path) -> None:
    (here / "train.py").touch()


def study(more: str = "", vary: str = "fsdp: [true, false]", rest: str = "") -> Study:
    return made(PROGRAM.format(more=more, vary=vary, rest=rest), machine=TWO_CORES)


def test_it_varies_keys_of_the_run_and_of_its_own_whose_values_its_command_has() -> None:
    runs = study().runs
    assert len(runs) == 8
    assert runs[0].id.startswith("train.program.x1.r0-")
    row = columns_of(runs[0].spec)
    assert (row["model"], row["strategy"], row["fsdp"], row["batch.per_rank"]) == ("train", "program", True, 16)
    assert (row["data.source"], row["optimiser.learning_rate"]) == (None, None)
    last = runs[-1].spec
    words = last.program and last.program.words({**columns_of(last), "ranks_per_node": 2})
    assert words == ["torchrun", "--nproc-per-node", "2", "train.py", "--batch", "32", "--fsdp", "false"]


def test_a_key_of_its_own_may_have_dots_as_hydra_has_them() -> None:
    program = "{command: 'python train.py optim.rate={optim.rate}', files: [train.py], keys: {optim.rate: 0.1}}"
    runs = [run.spec for run in made(f"base: {{program: {program}}}\nvary: {{optim.rate: [0.2, 0.3]}}").runs]
    assert [columns_of(run)["optim.rate"] for run in runs] == [0.2, 0.3]
    assert runs[0].program and runs[0].program.words(columns_of(runs[0])) == ["python", "train.py", "optim.rate=0.2"]


def test_a_switch_that_is_empty_is_no_word_of_the_command() -> None:
    program = Program(command="python train.py {switch} --name ''", files=("train.py",), keys={"switch": ""})
    assert program.words({"switch": ""}) == ["python", "train.py", "--name", ""]
    assert program.words({"switch": "--fsdp"}) == ["python", "train.py", "--fsdp", "--name", ""]


def test_a_script_may_start_in_a_folder_of_its_own(here: Path) -> None:
    (here / "gpt").mkdir()
    (here / "gpt/run.py").touch()
    words, script = words_of("env -C gpt python run.py --layers 2")
    assert words == ["env", "-C", "gpt", "python", "run.py", "--layers", "2"]
    assert script == Path("gpt/run.py")


def test_a_first_study_has_the_command_as_it_was_given(monkeypatch: pytest.MonkeyPatch) -> None:
    rank = Rank(0, 1, 16, 1.6, 0.0, 0.0, (), False, False, False, 0.0)
    monkeypatch.setattr(draft, "observe", lambda *_: [Observation((rank,), 5.0)])
    text = draft.draft("env STEPS=9 RANKS=2 python train.py")
    assert 'command: "env STEPS=9 RANKS=2 python train.py"' in text
    assert "# Observed: 1 rank, 100 ms a step, no DataLoader." in text
    assert len(made(text[text.index("base:") :]).runs) == 3


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (PROGRAM.format(more="", vary="fdsp: [true]", rest=""), r"s\.yaml:4: vary\.fdsp: unknown key `fdsp`"),
        ("base: {data: {source: digits}}\nexplain: true", "`explain` needs a `program`"),
        (PROGRAM.format(more=", explain: true", vary="fsdp: [true]", rest=""), "is set by the study's `explain`"),
    ],
)
def test_what_would_change_nothing_or_cannot_be_is_an_error(text: str, message: str) -> None:
    with pytest.raises(UserError, match=message):
        made(text, machine=TWO_CORES)


def test_explain_adds_one_run_for_each_configuration_that_one_process_starts() -> None:
    of_windows = study(", keys: {fsdp: true}", "measure.steps: [50, 60]", "explain: true\nrepeats: 2")
    assert len(of_windows.runs) == 16
    ids = [run.id for run in of_windows.explained]
    assert len(ids) == 4, "two ranks and two batches; another window is no other command"
    assert ids[0].startswith("train.explained.x1.r0-")
    assert all(run.spec.program and run.spec.program.explain for run in of_windows.explained)
    by_rank = study(more=", once_per: rank", rest="explain: true")
    assert {run.spec.ranks for run in by_rank.explained} == {1}
    assert any("several processes start its command" in sentence for sentence in by_rank.left_out)
