"""`scalestudy new`: the file that it writes checks clean, and no file is replaced."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

from scalestudy import cli
from scalestudy.commands import new
from scalestudy.spec.machine import Machine
from scalestudy.spec.read_study import read_studies
from scalestudy.spec.study import Study


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "config/studies").mkdir(parents=True)
    (tmp_path / "config/machines").mkdir()
    (tmp_path / "config/machines/local.yaml").write_text("description: Here\n")
    (tmp_path / "config/config.yaml").write_text("scale: mini\n")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def study(name: str, scale: str = "mini") -> Study:
    return read_studies([name], scale, Machine())[0]


def test_without_options_it_is_a_study_of_the_batch(folder: Path) -> None:
    assert cli.run_command(["new", "first", "--no-ask"]) == 0
    found = study("first")
    assert found.varied == ("batch.per_rank",)
    assert len(found.runs) == 6
    assert [figure.file_name for figure in found.figures] == ["throughput"]


@pytest.mark.parametrize(
    ("options", "runs"),
    [
        (["--vary", "ranks=1,2"], 6),
        (["--vary", "strategy=ring,allreduce", "--vary", "ranks=1,2", "--repeats", "2"], 8),
        (["--vary", "data.source=digits,synthetic"], 6),
        (["--vary", "data={source: digits},{source: synthetic}"], 6),
        (["--vary", "batch.global=32,64,128", "--set", "batch.per_rank=null", "--repeats", "1"], 3),
        (["--vary", "data.shape=[1, 8, 8],[3, 8, 8]", "--data", "synthetic"], 6),
        (["--model", "resnet50", "--set", "device=emulated:p100", "--data", "synthetic", "--vary", "ranks=1,2,4"], 9),
        (["--strategy", "single", "--vary", "loader.workers=0,1,2", "--vary", "seed=1,5", "--vary", "dtype=float32,float64"], 36),
        (["--set", "optimiser.learning_rate=0.1", "--set", "checkpoint.every_steps=10"], 6),
        (["--question", "Is it 'so': or \"so\"? # really"], 6),
    ],
)  # fmt: skip
def test_whatever_is_asked_for_checks_clean(
    folder: Path, capsys: pytest.CaptureFixture[str], options: list[str], runs: int
) -> None:
    if any("p100" in option for option in options):
        (folder / "config/reference").mkdir()
        (folder / "config/reference/step_times.csv").write_text(
            (Path(__file__).resolve().parents[2] / "config/reference/step_times.csv").read_text()
        )
    assert cli.run_command(["new", "asked", *options]) == 0, capsys.readouterr().err
    assert len(study("asked").runs) == runs
    capsys.readouterr()
    assert cli.run_command(["check"]) == 0
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize(
    ("scale", "there"), [("mini", ["mini", "paper"]), ("node", ["node", "paper"]), ("paper", ["paper"])]
)
def test_it_has_the_scale_that_it_is_for(folder: Path, scale: str, there: list[str]) -> None:
    assert cli.run_command(["new", "sized", "--scale", scale, "--vary", "ranks=1,2"]) == 0
    for each in there:
        assert len(study("sized", each).runs) == 6


def test_base_keys_that_are_varied_are_left_out_and_the_others_explained(folder: Path) -> None:
    cli.run_command(["new", "first", "--vary", "ranks=1,2", "--vary", "strategy=ring,allreduce"])
    text = Path("config/studies/first.yaml").read_text()
    assert "  ranks: 2" not in text
    assert "  model: small_cnn                           # small_cnn, mlp," in text
    assert "question: How does throughput change with ranks and strategy?" in text


def test_a_file_that_is_there_is_never_replaced(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = Path("config/studies/mine.yaml")
    file.write_text("precious")
    assert cli.run_command(["new", "mine", "--vary", "ranks=1,2"]) == 2
    assert "config/studies/mine.yaml: is there already, and is not replaced" in capsys.readouterr().err
    assert file.read_text() == "precious"


def test_it_asks_for_what_is_not_given(folder: Path) -> None:
    answers = "Is it so?\nmlp\n\nring\nranks=1,2 seed=0,7\n4\n"
    ended = CliRunner().invoke(new.command, ["asked", "--ask"], input=answers)
    assert ended.exit_code == 0, ended.output
    found = study("asked")
    assert (found.question, found.repeats, found.varied) == ("Is it so?", 4, ("ranks", "seed"))
    assert {(run.spec.model.name, run.spec.strategy.name, run.spec.data.source) for run in found.runs} == {
        ("mlp", "ring", "digits")
    }


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["Bad"], "`Bad` cannot be the name of a study\n    use lower-case letters"),
        (["../up"], "`../up` cannot be the name of a study"),
        (["all"], "`all` cannot be the name of a study: a rule of the workflow has it"),
        (["x", "--vary", "ranks"], "`ranks` is not a key with values\n    write KEY=VALUE,VALUE, as ranks=1,2,4"),
        (["x", "--vary", "ranks="], "`ranks=` is not a key with values"),
        (["x", "--vary", "rnks=1,2"], "vary.rnks: unknown key"),
        (["x", "--vary", "ranks=1,{"], "--vary ranks: is not valid YAML"),
        (["x", "--vary", "ranks=1,1"], "nothing was written: the study would be invalid"),
        (["x", "--model", "resnet5"], "did you mean `resnet50`?"),
        (["x", "--set", "ranks"], "`ranks` is not a setting"),
        (["x", "--set", "model.deep.er=3"], "nothing was written: the study would be invalid"),
        (["x", "--data", "synthetic", "--set", "batch.per_rank=-1", "--vary", "ranks=1,2"], "base.batch.per_rank"),
    ],
)
def test_bad_input_is_one_message_and_writes_nothing(
    folder: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], message: str
) -> None:
    assert cli.run_command(["new", *arguments]) == 2
    assert message in capsys.readouterr().err
    assert list(Path("config/studies").iterdir()) == []


def test_outside_a_project_it_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert cli.run_command(["new", "x", "--no-ask"]) == 2
    assert "there is no project here" in capsys.readouterr().err
