"""What earlier drivers left: submissions that nobody follows, and files that a scheduler still needs."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from snakemake_executor_plugin_multinode.records import job_key
from snakemake_executor_plugin_multinode.schedulers import Cause, State, Status
from test_monitor import Bench

CANCELLED = Status("1", State.ENDED, "CANCELLED", Cause.CANCELLED)


def left(folder: Path, began: bool = True) -> Bench:
    """A driver that is gone, whose job may have begun; it sent its last heartbeat an hour after that."""
    bench = Bench(folder)
    bench.submit(gpus=4)
    if began:
        bench.begin(began_s=1_000_000)
        os.utime(bench.files.folder / f"{bench.scheduler.submitted[0]}.began", (1_003_600, 1_003_600))
    return bench


def ended(bench: Bench) -> list[dict[str, Any]]:
    return [event for event in bench.records.events() if event["event"] == "ended"]


@pytest.mark.parametrize(
    ("began", "status", "used_s", "cause"),
    [
        (True, None, 3600, "lost: it began on node1, left no exit status, and the scheduler no longer knows it"),
        (True, CANCELLED, 3600, "cancelled by its owner or an administrator (CANCELLED)"),
        (False, None, 0, "left the queue without a trace"),
    ],
)
def test_a_job_that_ended_without_a_word_while_no_driver_ran_is_charged_what_it_used(
    tmp_path: Path, began: bool, status: Status | None, used_s: int, cause: str
) -> None:
    left(tmp_path, began)
    for hours in (4.0, pytest.approx(4 * used_s / 3600, abs=1e-4)):  # as asked for, and as the driver before noted it
        later = Bench(tmp_path)
        later.scheduler.on_question = lambda jobs: {} if status is None else {job.name: status for job in jobs}
        assert later.records.gpu_hours() == hours
        later.rounds(60)
        assert [(event["used_s"], event["cause"]) for event in ended(later)] == [(used_s, cause)]
        assert later.records.gpu_hours() == pytest.approx(4 * used_s / 3600, abs=1e-4)


def test_a_job_that_nobody_follows_and_that_lives_on_is_left_alone_until_it_ends(tmp_path: Path) -> None:
    first = left(tmp_path)
    second = Bench(tmp_path)
    second.rounds(300)
    assert ended(second) == []
    first.end(0, began_s=1_000_000)
    second.rounds(20)
    assert [event["cause"] for event in ended(second)] == ["finished"]
    assert second.scheduler.deleted == []


def test_a_clock_that_is_set_back_while_a_job_runs_makes_no_negative_use(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    bench.submit("train a", gpus=4)
    name = bench.scheduler.submitted[0]
    (bench.files.folder / f"{name}.ended").write_text("exit=0\nsignal=\nbegan=460\nended=100\nhost=n\n")
    bench.until(lambda: bench.told.done)
    assert [event["used_s"] for event in ended(bench)] == [0] and bench.records.gpu_hours() == 0.0


# PBS copies what a job has printed after its script has ended


def finished(folder: Path) -> tuple[Bench, Path]:
    """A driver whose job has succeeded while its scheduler still calls it running, and the job's folder."""
    bench = Bench(folder)
    bench.scheduler.copies_output = True
    bench.submit()
    bench.begin()
    bench.end(0)
    bench.until(lambda: bench.told.done == ["train a"])
    return bench, bench.records.folder_of(job_key("train", ["train a"], "train a"))


@pytest.mark.parametrize("history", [True, False])
def test_a_jobs_folder_stays_until_its_scheduler_has_copied_the_output_there(tmp_path: Path, history: bool) -> None:
    bench, folder = finished(tmp_path)
    bench.rounds(60)
    assert folder.is_dir()
    done = Status("1", State.ENDED, "F", Cause.FINISHED)
    bench.scheduler.on_question = lambda jobs: {job.name: done for job in jobs} if history else {}
    bench.rounds(20)
    assert not folder.exists()
    assert not [name for name in bench.files.names() if name != ".clock"]


def test_a_group_with_other_members_waits_for_the_one_of_an_earlier_driver_that_makes_the_same_files(
    tmp_path: Path,
) -> None:
    first = Bench(tmp_path)
    first.submit("all of them", outputs=("a.1", "b.1", "b.2"))
    first.begin()
    second = Bench(tmp_path)
    second.add("what is missing", outputs=("b.2", "b.3"))
    second.submit("another", outputs=("c.1",))
    second.rounds(300)
    assert len(second.scheduler.submitted) == 1
    said = "what is missing: waits for job 1 of an earlier driver, which makes some of its files"
    assert [line for line in second.told.lines if "waits" in line] == [said]
    first.end(0)
    second.until(lambda: len(second.scheduler.submitted) == 2)
