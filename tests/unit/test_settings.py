"""`key=value` settings of `try`, `largest-batch` and `--config set=…`: read as study files are, none dropped."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from scalestudy.commands.cluster import targets_and_config
from scalestudy.commands.one_run import checked_run, from_settings, refuse_foreign_folder, train_from_spec
from scalestudy.errors import UserError
from scalestudy.files import write_json
from scalestudy.spec.config import changes_of
from scalestudy.spec.ids import run_id


def message_about(*settings: str) -> str:
    with pytest.raises(UserError) as raised:
        checked_run(from_settings(settings, "try"), "try")
    return str(raised.value)


def test_values_are_yaml_1_2_as_in_study_files() -> None:
    settings = ("train.epochs=10", "optimiser.learning_rate=1e-3", "strategy=on", "model={width: 0x10}")
    assert from_settings(settings, "try") == {
        "train": {"epochs": 10},
        "optimiser": {"learning_rate": 0.001},
        "strategy": "on",
        "model": {"name": "small_cnn", "width": 16},
    }
    assert changes_of(["train.epochs=10", "measure.steps=null", "tags=[1:30]"]) == {
        "train.epochs": 10,
        "measure.steps": None,
        "tags": ["1:30"],
    }

    with pytest.raises(UserError, match="set: must be settings of studies, not `5`"):
        changes_of(5)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (
            ("optimiser={nesterov: yes}",),
            "try: optimiser.nesterov: input should be a valid boolean, not `yes`",
        ),
        (("data={root: &a x, source: *b}",), "try: data: is not valid YAML: found undefined alias 'b'\n"
         "    check keys, brackets, quotes and indentation"),
        (("ranks=",), "try: ranks: has no value\n    write one after the `=`; `null` stands for the default"),
        (("epochs",), "try: `epochs` is not a setting\n    write key=value, for example ranks=2"),
        (("model={1: 2}",), "try: model.1: unknown key\n    `scalestudy check --keys` lists them"),
    ],
)  # fmt: skip
def test_what_a_study_file_may_not_hold_is_refused(settings: tuple[str, ...], message: str) -> None:
    assert message_about(*settings) == message


def test_no_setting_is_dropped_for_another_key() -> None:
    assert from_settings(("strategy=zero1", "strategy.bucket_mib=4"), "try") == {
        "strategy": {"name": "zero1", "bucket_mib": 4}
    }
    assert message_about("train.epochs=2", "train=3") == (
        "try: train: would drop `train.epochs`, which was given before\n    give `train` first"
    )


def test_a_run_outside_the_dag_goes_into_an_empty_folder_or_one_of_the_same_run(tmp_path: Path) -> None:
    spec = checked_run({"ranks": 2, "strategy": "allreduce"}, "try")
    refuse_foreign_folder(tmp_path / "new", run_id(spec))
    refuse_foreign_folder(tmp_path, run_id(spec))
    (tmp_path / "spec.json").write_text(json.dumps(spec.to_dict()), encoding="utf-8")
    other = run_id(checked_run({}, "try"))
    for identity in (run_id(spec), other):
        refuse_foreign_folder(tmp_path, identity)  # an attempt that failed has left nothing of value
    (tmp_path / "result.json").touch()
    refuse_foreign_folder(tmp_path, run_id(spec))
    with pytest.raises(UserError, match="holds another run, small_cnn"):
        refuse_foreign_folder(tmp_path, other)
    (tmp_path / "spec.json").write_text("mine", encoding="utf-8")
    with pytest.raises(UserError, match="holds files that are not of a run"):
        refuse_foreign_folder(tmp_path, other)


def test_a_program_that_was_edited_after_its_run_was_planned_is_named(here: Path) -> None:
    script = here / "train.py"
    script.write_text("first", encoding="utf-8")
    spec = checked_run({"program": {"command": "python train.py", "files": ["train.py"]}}, "try")
    folder = here / "results/local/runs" / run_id(spec)
    write_json(folder / "spec.json", spec.to_dict())
    script.write_text("second", encoding="utf-8")
    with pytest.raises(UserError) as error:
        train_from_spec(folder / "result.json")
    assert error.value.remedy == "train.py was changed since the run was planned: run the same command again"


def test_a_run_outside_the_dag_is_refused_below_results(here: Path) -> None:
    (here / "scratch").mkdir()
    (here / "results").symlink_to("scratch")
    for out in ("results/local/runs/a", "scratch/a", "results"):
        with pytest.raises(UserError, match="belongs to the studies"):
            refuse_foreign_folder(Path(out), run_id(checked_run({}, "try")))


def test_words_with_a_value_are_of_the_configuration_and_one_of_it_without_is_named() -> None:
    words = targets_and_config(["gpu_scaling", "campaign=a"], ["machine=mine"])
    assert words == (["gpu_scaling"], ["machine=mine", "campaign=a"])
    with pytest.raises(UserError, match="--config: `scale` is not a setting"):
        targets_and_config(["gpu_scaling"], ["scale"])
