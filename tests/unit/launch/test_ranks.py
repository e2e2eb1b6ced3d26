"""What is said of processes that have ended."""

from __future__ import annotations

import errno
from pathlib import Path
from types import SimpleNamespace

import pytest

from scalestudy.extensions import load_class
from scalestudy.launch.failures import Failure, NodeFailed, RankFailed, failure_with_log, raise_cause
from scalestudy.launch.ranks import Ranks
from scalestudy.spec.run import RunSpec
from tests.unit.test_training import job


def test_the_last_lines_move_no_cursor(tmp_path: Path) -> None:
    log = tmp_path / "rank.0.log"
    log.write_text("epoch 1: loss 0.3\x1b[2J\nSegmentation fault\n")
    assert failure_with_log("failed", "", log).tail == ("epoch 1: loss 0.3\\x1b[2J", "Segmentation fault")


def test_a_lost_node_is_worth_another_try_and_a_failed_rank_is_not() -> None:
    job = SimpleNamespace(run="r")
    with pytest.raises(NodeFailed, match="node beta sent no heartbeat"):
        raise_cause([Failure("partner", "rank 1 lost"), Failure("node", "node beta sent no heartbeat")], job)  # type: ignore[arg-type]
    with pytest.raises(RankFailed) as raised:
        raise_cause([Failure("node", "node beta ended"), Failure("failed", "rank 0 failed")], job)  # type: ignore[arg-type]
    assert not isinstance(raised.value, NodeFailed)


def test_an_error_in_the_users_own_file_is_told_with_its_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "nets.py").write_text("def forward(*_):\n    raise RuntimeError('Double and Float')\n")
    monkeypatch.setattr("scalestudy.training.trainer.main", load_class(tmp_path / "nets.py", "forward"))
    assert Ranks(job(RunSpec(), tmp_path), [0], group=0)._train(0) == 2
    assert (tmp_path / "error.0").read_text() == (
        f"rank 0: {tmp_path}/nets.py:2: RuntimeError: Double and Float\n    its stack is in {tmp_path}/rank.0.log"
    )


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (
            OSError(errno.EIO, "Input/output error", "shard"),
            "rank 0: shard: Input/output error\n    the disk, or the con",
        ),
        (ValueError("of the model"), ""),
    ],
)
def test_a_rank_says_what_the_system_refused_and_other_errors_stay_failures(
    error: Exception, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise error

    monkeypatch.setattr("scalestudy.training.trainer.main", fail)
    status = Ranks(job(RunSpec(), tmp_path), [0], group=0)._train(0)
    said = tmp_path / "error.0"
    assert (status, said.read_text()[: len(message)] if said.exists() else "") == (2 if message else 1, message)
