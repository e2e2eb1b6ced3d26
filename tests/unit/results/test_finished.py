"""The copy of a result that outlives its command's death."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from scalestudy import cli
from scalestudy.commands import options
from scalestudy.files import read_json
from scalestudy.results import finished
from scalestudy.results.stored import write_result
from scalestudy.spec.ids import run_id
from scalestudy.spec.layout import finished_file, result_file
from scalestudy.spec.run import RunSpec

SPEC = RunSpec.model_validate({"ranks": 2, "strategy": {"name": "allreduce"}})
RESULT = {"run": run_id(SPEC), "status": "valid", "reason": "", "machine": "local", "spec": SPEC.plain(), "metrics": {}}


@pytest.fixture
def out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where the result belongs, of which there is a copy."""
    monkeypatch.chdir(tmp_path)
    file = result_file("local", run_id(SPEC))
    file.parent.mkdir(parents=True)
    finished.keep(file, RESULT)
    return file


def copies() -> list[Path]:
    return list(Path("results").glob("*/finished/*.json"))


def test_a_deleted_result_is_restored_with_the_bytes_that_it_had(out: Path) -> None:
    write_result(out, RESULT)
    before = out.read_bytes()
    out.unlink()
    assert finished.known(out, SPEC) == RESULT
    assert out.read_bytes() == before


@pytest.mark.parametrize("wrong", [{"run": "another"}, {"machine": "elsewhere"}, {"spec": {"ranks": 4}}])
def test_a_copy_of_another_result_restores_nothing(out: Path, wrong: dict[str, object]) -> None:
    finished.keep(out, {**RESULT, **wrong})
    assert finished.known(out, SPEC) is None
    assert not out.exists()


@pytest.mark.parametrize("text", ["{", "[]", json.dumps(RESULT)])
def test_a_copy_that_is_damaged_or_not_sealed_restores_nothing(out: Path, text: str) -> None:
    copies()[0].write_text(text)
    assert finished.known(out, SPEC) is None
    assert not out.exists()


def test_a_copy_that_is_released_restores_nothing(out: Path) -> None:
    finished.release(out)
    finished.release(out)
    assert copies() == []
    assert finished.known(out, SPEC) is None


@pytest.mark.parametrize("status", [0, 1, 137])
def test_the_copy_stays_however_the_command_ends(out: Path, monkeypatch: pytest.MonkeyPatch, status: int) -> None:
    monkeypatch.setattr(options, "from_warm_parent", lambda *_: status)
    assert cli.run_command(["train", "--out", str(out)]) == status
    assert len(copies()) == 1


def test_a_result_that_is_there_is_known_and_stays_as_it_is(out: Path) -> None:
    write_result(out, RESULT)
    before = out.stat()
    copies()[0].unlink()
    assert finished.known(out, SPEC) == RESULT
    assert (out.stat().st_ino, out.stat().st_mtime_ns) == (before.st_ino, before.st_mtime_ns)


def test_a_result_that_was_edited_gives_way_to_the_copy(out: Path) -> None:
    out.write_text(json.dumps({**RESULT, "status": "invalid"}))
    assert finished.known(out, SPEC) == RESULT
    assert read_json(out)["status"] == "valid"


def test_a_copy_that_cannot_be_deleted_fails_neither_run_nor_driver(out: Path) -> None:
    write_result(out, RESULT)
    copies()[0].unlink()
    finished_file(out).mkdir()  # type: ignore[union-attr]
    finished.release(out)
    finished.release_all()
    assert len(copies()) == 1


def test_a_driver_deletes_the_copies_of_results_that_are_there_and_that_it_will_not_make(out: Path) -> None:
    finished.release_all()
    assert finished.kept() == [out]
    write_result(out, RESULT)
    finished.release_all(but={out})
    assert finished.kept() == [out]
    finished.release_all()
    assert copies() == []
    assert read_json(out)["run"] == RESULT["run"]


def test_a_copy_that_cannot_be_written_loses_no_result(out: Path, capsys: pytest.CaptureFixture[str]) -> None:
    copies()[0].unlink()
    out.parents[2].joinpath("finished").rmdir()
    out.parents[2].joinpath("finished").touch()
    finished.keep(out, RESULT)
    assert "is not written" in capsys.readouterr().err


def test_a_run_by_hand_has_no_copy(tmp_path: Path) -> None:
    out = tmp_path / "mine" / "result.json"
    out.parent.mkdir()
    finished.keep(out, RESULT)
    assert finished.known(out, SPEC) is None
    assert list(tmp_path.rglob("*.json")) == []
