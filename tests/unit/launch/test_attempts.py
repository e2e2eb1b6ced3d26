"""What becomes of a run whose last notes cannot be written, and of the clock."""

from __future__ import annotations

import errno
import time
from pathlib import Path
from typing import Any

import pytest

from scalestudy.errors import UserError
from scalestudy.files import write_json
from scalestudy.launch import attempts


def test_a_finished_run_stays_finished_where_its_state_cannot_be_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def full_disk(*_: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    out = tmp_path / "result.json"
    with attempts.attempt("run", out) as chain:
        write_json(out, {})
        chain.add_to({"steps_done": 3})
        monkeypatch.setattr(attempts, "write_state", full_disk)
    assert out.exists() and not chain.checkpoints.exists()
    assert "warning: run: state.json is not up to date: [Errno 28] No space left on device" in capsys.readouterr().err


def test_a_run_over_several_jobs_took_the_time_of_all_that_made_steps(tmp_path: Path) -> None:
    out, began = tmp_path / "result.json", ""
    result: dict[str, Any] = {"started": "later", "metrics": {"wall_s": 60.0}}
    for step in (0, 7):
        with pytest.raises(attempts.Stopped), attempts.attempt("run", out) as chain:
            began, chain.attempts[-1].begun_s = chain.attempts[-1].started, time.monotonic() - 1800
            raise attempts.Stopped(step, "because the job ends")
    with attempts.attempt("run", out) as chain:
        chain.add_to(result)
        write_json(out, result)
    assert result["metrics"]["wall_s"] == pytest.approx(1860, abs=60)
    assert result["started"] == began


def test_the_state_of_a_program_outlives_a_node_that_is_unfit(tmp_path: Path) -> None:
    out, state = tmp_path / "result.json", tmp_path / "checkpoint/program/state"
    with pytest.raises(RuntimeError), attempts.attempt("run", out):
        state.parent.mkdir(parents=True)
        state.touch()
        raise RuntimeError("the node was lost, after the program had written its state")
    with pytest.raises(UserError), attempts.attempt("run", out):
        raise UserError("this node has no GPU")
    assert state.exists()
