"""What is said of processes that have ended."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace

import pytest

from scalestudy.launch.failures import Failure, RankFailed, raise_cause
from scalestudy.launch.ranks import Ranks
from scalestudy.spec.run import RunSpec
from scalestudy.training.job import Job, Resolved


def ended(folder: Path, status: int) -> list[Failure]:
    """What a supervisor notes of a rank that ended with a status."""
    run = RunSpec.model_validate_json(json.dumps({}))
    job = Job("r", run, Resolved(1, 1, 1, "cpu", 2, None), folder, folder, folder, None, folder / "log", ("a",))
    ranks = Ranks(job, [0], group=0)
    ranks.processes = [SimpleNamespace(exitcode=status, join=lambda: None)]  # type: ignore[list-item]
    ranks._note_end(0)
    return ranks.failures


@pytest.mark.parametrize(("status", "kind"), [(2, "user"), (4, "skipped")])
def test_a_rank_that_leaves_a_message_is_quoted(tmp_path: Path, status: int, kind: str) -> None:
    (tmp_path / "error.0").write_text("data.root: no such folder")
    assert ended(tmp_path, status) == [Failure(kind, "data.root: no such folder")]


@pytest.mark.parametrize("status", [2, 4])
def test_a_library_that_ends_a_rank_with_one_of_our_statuses_is_a_failure(tmp_path: Path, status: int) -> None:
    (failure,) = ended(tmp_path, status)
    assert (failure.kind, failure.what) == ("failed", f"a: rank 0 failed (exit status {status})")


def test_what_explains_the_others_is_raised_with_its_last_lines(tmp_path: Path) -> None:
    job = SimpleNamespace(run="r")
    failures = [Failure("partner", "rank 1 lost"), Failure("failed", "rank 0 failed", "rank.0.log", ("one", "two"))]
    with pytest.raises(RankFailed) as raised:
        raise_cause(failures, job)  # type: ignore[arg-type]
    assert str(raised.value).splitlines() == [
        "rank 0 failed", "    last 2 lines of rank.0.log:", "    | one", "    | two",
    ]  # fmt: skip
