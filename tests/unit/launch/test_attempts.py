"""What becomes of a run whose last notes cannot be written, and of the clock."""

from __future__ import annotations

import errno
import time
from pathlib import Path
from typing import Any

import pytest

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


def test_hours_of_an_attempt_do_not_depend_on_the_clock_of_the_day(tmp_path: Path) -> None:
    out = tmp_path / "result.json"
    result: dict[str, Any] = {"steps_done": 3}
    with attempts.attempt("run", out) as chain:
        chain.attempts[-1].started = "2099-01-01T00:00:00+00:00"  # the clock was set back since
        chain.attempts[-1].begun_s = time.monotonic() - 1800
        chain.add_to(result)
        write_json(out, result)
    (link,) = result["links"]
    assert 0.5 <= link["hours"] < 0.6
