"""Links that somebody has planted in a shared folder, under names that scalestudy writes to."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from scalestudy.files import plain_file
from scalestudy.launch.trainer_lock import LOCK
from scalestudy.results.history import append_history
from scalestudy.spec.run import RunSpec
from tests.hostile.harness import Case, Refuse, link, run
from tests.hostile.test_manifests import DIGITS, PREPARE

DIARY = "../outside/diary.txt"
TRY = ("try", "data.source=digits", "train.epochs=1", "--out", "made")
DATA = f"results/data/{DIGITS}"


def up(name: str) -> str:
    """The way from a file of the project to what nobody may touch."""
    return "../" * name.count("/") + DIARY


def planted(name: str) -> Callable[[Path], object]:
    return link(name, up(name))


def dangling(name: str) -> Callable[[Path], object]:
    return link(name, up(name).replace("diary", "new"))


def left_by_a_kill(name: str) -> Callable[[Path], object]:
    """A folder in which data was being made, with a link in it."""

    def make(project: Path) -> None:
        planted(f"{DATA}/.bulk.making-kept/{name}")(project)

    return make


IS_A_LINK = "is a link, to "
OF_DATA = [
    Case("the lock of data", planted(f"{DATA}/.bulk.lock"), f".bulk.lock: {IS_A_LINK}", before="damage"),
    Case("the lock of data, to nothing", dangling(f"{DATA}/.bulk.lock"), f".bulk.lock: {IS_A_LINK}", before="damage"),
    Case("the time that data took", planted(f"{DATA}/.bulk.making-kept.spent"), f"kept.spent: {IS_A_LINK}", before="damage"),
    Case("the plan of data", left_by_a_kill("plan"), f"making-kept/plan: {IS_A_LINK}", before="damage"),
    Case("an array of data", left_by_a_kill("train.npy"), f"making-kept/train.npy: {IS_A_LINK}", before="damage"),
]  # fmt: skip
OF_RUNS = [
    Case("the lock of a run", planted(f"made/{LOCK}"), f"{LOCK}: {IS_A_LINK}", before="damage"),
    Case("a log of NCCL", planted("made/log/nccl.0.log"), f"nccl.0.log: {IS_A_LINK}", before="damage"),
    Case(
        "a checkpoint that is being written",
        link("made/checkpoint/.step-000000002.partial", "../../../outside"),
        f".step-000000002.partial: {IS_A_LINK}",
        words=("checkpoint.every_steps=2",),
        before="damage",
    ),
    Case("the log of a rank", planted("made/log/rank.0.log"), f"rank.0.log: {IS_A_LINK}", before="damage"),
]


@pytest.mark.parametrize("case", OF_DATA, ids=lambda case: case.name)
def test_data_is_not_made_through_a_link(case: Case, refuse: Refuse) -> None:
    refuse(case, PREPARE, may_write=(DATA, f"{DATA}/.bulk.lock"))


@pytest.mark.parametrize("case", OF_RUNS, ids=lambda case: case.name)
def test_a_run_is_not_made_through_a_link(case: Case, refuse: Refuse) -> None:
    refuse(case, TRY, may_write=("made", DATA))


def test_a_lock_that_holds_something_else_is_left_as_it_is(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (project / "made").mkdir()
    os.link(project / DIARY, project / "made" / LOCK)
    seen = run(TRY, capsys)
    assert seen.status != 0 and f"made/{LOCK}: belongs to scalestudy by its name, but holds something else" in seen.said
    assert (project / DIARY).read_text() == "private\n"


def test_what_a_hard_link_shares_its_content_with_keeps_it(tmp_path: Path) -> None:
    (tmp_path / "backup").write_text("old\n")
    os.link(tmp_path / "backup", tmp_path / "log")
    with open(tmp_path / "log", "w", encoding="utf-8", opener=plain_file) as log:
        log.write("new\n")
    assert (tmp_path / "backup").read_text() == "old\n" and (tmp_path / "log").read_text() == "new\n"


def test_history_is_not_appended_to_a_link(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    planted("results/lab/history.jsonl")(project)
    append_history(project / "results/lab/runs/r/result.json", {"run": "r", "metrics": {}, "spec": RunSpec().plain()})
    assert "warning: r is not in the history: results" not in (said := capsys.readouterr().err)
    assert IS_A_LINK in said and (project / DIARY).read_text() == "private\n"
