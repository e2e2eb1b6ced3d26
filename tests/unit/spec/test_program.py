"""A study whose run is a program."""

from __future__ import annotations

import contextlib
from pathlib import Path

import pytest

from scalestudy.errors import UserError
from scalestudy.program import draft
from scalestudy.program.draft import words_of
from scalestudy.program.observe import Observation, Rank
from scalestudy.spec.columns import columns_of
from scalestudy.spec.config import checked
from scalestudy.spec.expand_study import expand
from scalestudy.spec.machine import Machine
from scalestudy.spec.program import Program
from scalestudy.spec.study import Study
from scalestudy.spec.study_file import StudySpec
from scalestudy.spec.yamlfile import read_yaml

STUDY = """\
question: Does it scale?
base:
  program: {{command: "torchrun --nproc-per-node {{ranks_per_node}} train.py --batch {{batch.per_rank}} --fsdp {{fsdp}}", files: [train.py]{more}}}
vary: {{ranks: {{to: machine}}, batch.per_rank: [16, 32], {vary}}}
{rest}
"""


def study(folder: Path, more: str = "", vary: str = "fsdp: [true, false]", rest: str = "") -> Study:
    """The study of the issue, with changes."""
    (folder / "config/extensions").mkdir(parents=True, exist_ok=True)
    if not (folder / "train.py").exists():
        (folder / "train.py").write_text("first = 1\n", encoding="utf-8")
    file = folder / "mine.yaml"
    file.write_text(STUDY.format(more=more, vary=vary, rest=rest), encoding="utf-8")
    return expanded(file)


def expanded(file: Path) -> Study:
    """The study in a file, on a machine of two cores."""
    document, machine = read_yaml(file), Machine(nodes=1, cores_per_node=2)
    with contextlib.chdir(file.parent):
        return expand(document, checked(StudySpec, document), "mine", "paper", machine)


def test_it_varies_keys_of_the_run_and_of_its_own_whose_values_its_command_has(tmp_path: Path) -> None:
    made = study(tmp_path)
    assert len(made.runs) == 8
    assert made.runs[0].id.startswith("train.program.x1.r0-")
    row = columns_of(made.runs[0].spec)
    assert (row["model"], row["strategy"], row["fsdp"], row["batch.per_rank"]) == ("train", "program", True, 16)
    assert (row["data.source"], row["optimiser.learning_rate"]) == (None, None)
    last = made.runs[-1].spec
    words = last.program and last.program.words({**columns_of(last), "ranks_per_node": 2})
    assert words == ["torchrun", "--nproc-per-node", "2", "train.py", "--batch", "32", "--fsdp", "false"]


def test_a_key_of_its_own_may_have_dots_as_hydra_has_them(tmp_path: Path) -> None:
    (tmp_path / "train.py").touch()
    file = tmp_path / "hydra.yaml"
    program = "{command: 'python train.py optim.rate={optim.rate}', files: [train.py], keys: {optim.rate: 0.1}}"
    file.write_text(f"question: How?\nbase: {{program: {program}}}\nvary: {{optim.rate: [0.2, 0.3]}}\n")
    runs = [run.spec for run in expanded(file).runs]
    assert [columns_of(run)["optim.rate"] for run in runs] == [0.2, 0.3]
    assert runs[0].program and runs[0].program.words(columns_of(runs[0])) == ["python", "train.py", "optim.rate=0.2"]


def test_a_switch_that_is_empty_is_no_word_of_the_command() -> None:
    program = Program(command="python train.py {switch} --name ''", files=("train.py",), keys={"switch": ""})
    assert program.words({"switch": ""}) == ["python", "train.py", "--name", ""]
    assert program.words({"switch": "--fsdp"}) == ["python", "train.py", "--fsdp", "--name", ""]


def test_a_script_may_start_in_a_folder_of_its_own(here: Path) -> None:
    (here / "gpt").mkdir()
    (here / "gpt/train.py").touch()
    words, script = words_of("env -C gpt python train.py --layers 2")
    assert words == ["env", "-C", "gpt", "python", "train.py", "--layers", "2"]
    assert script == Path("gpt/train.py")


def test_a_first_study_has_the_command_as_it_was_given(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (here / "train.py").touch()
    rank = Rank(0, 1, 16, 1.6, 0.0, (), False, False, False, 0.0)
    monkeypatch.setattr(draft, "observe", lambda *_: [Observation((rank,), 5.0)])
    assert 'command: "env STEPS=9 RANKS=2 python train.py"' in draft.draft("env STEPS=9 RANKS=2 python train.py")


def test_a_changed_file_makes_other_runs(tmp_path: Path) -> None:
    before = study(tmp_path)
    (tmp_path / "train.py").write_text("second = 2\n", encoding="utf-8")
    after = study(tmp_path)
    assert not {run.id for run in before.runs} & {run.id for run in after.runs}
    assert [run.configuration for run in before.runs] == [run.configuration for run in after.runs]


@pytest.mark.parametrize(
    ("vary", "message"),
    [("fdsp: [true]", "`fdsp`"), ("fsdp: [true], loader.workers: [3]", "`loader.workers` is set")],
)
def test_what_would_change_nothing_or_cannot_be_is_an_error(tmp_path: Path, vary: str, message: str) -> None:
    with pytest.raises(UserError) as caught:
        study(tmp_path, vary=vary)
    assert message in str(caught.value)
    assert "mine.yaml:" in str(caught.value)


def test_explain_adds_one_run_for_each_configuration_that_one_process_starts(tmp_path: Path) -> None:
    made = study(
        tmp_path, more=", keys: {fsdp: true}", vary="measure.steps: [50, 60]", rest="explain: true\nrepeats: 2"
    )
    assert len(made.runs) == 16
    ids = [run.id for run in made.explained]
    assert len(ids) == 4, "two ranks and two batches; another window is no other command"
    assert ids[0].startswith("train.explained.x1.r0-")
    assert all(run.spec.program and run.spec.program.explain for run in made.explained)
    by_rank = study(tmp_path, more=", once_per: rank", rest="explain: true")
    assert {run.spec.ranks for run in by_rank.explained} == {1}
    assert any("several processes start its command" in sentence for sentence in by_rank.left_out)


def test_explain_is_for_programs_and_is_set_by_the_study(tmp_path: Path) -> None:
    (tmp_path / "own.yaml").write_text(
        "question: Why?\nbase: {data: {source: digits}}\nexplain: true\n", encoding="utf-8"
    )
    with pytest.raises(UserError, match=r"`explain` needs a `program`.*\n"):
        expanded(tmp_path / "own.yaml")
    with pytest.raises(UserError, match="is set by the study's `explain`"):
        study(tmp_path, more=", explain: true")
