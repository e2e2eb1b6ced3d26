"""What the executor does when its scheduler is slow, wrong, forgetful or gone. The scheduler here is a fake, and says so:
these answers cannot be had from a real one on demand. tests/cluster has the real ones. The clock is a test's own too.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from snakemake_executor_plugin_multinode.decide import Limits
from snakemake_executor_plugin_multinode.job import MonitoredJob
from snakemake_executor_plugin_multinode.monitor import JobMonitor
from snakemake_executor_plugin_multinode.records import Records, job_key
from snakemake_executor_plugin_multinode.schedulers import (
    Cause,
    JobRef,
    LimitReached,
    NoAnswer,
    Refused,
    Request,
    State,
    Status,
)
from snakemake_executor_plugin_multinode.site import SchedulerSettings

LIMITS = Limits(poll_s=10, settle_s=15, lost_s=30, per_s=10)


class StillClock:
    """A clock that stands still until a test moves it."""

    def __init__(self) -> None:
        self.s = 1000.0

    def now_s(self) -> float:
        return self.s


class FakeScheduler:
    """A scheduler whose every answer a test decides."""

    def __init__(self) -> None:
        self.keeps_history = self.copies_output = False
        self.settings = SchedulerSettings(kind="slurm", account="lab", queue="gpu")
        self.submitted: list[str] = []
        self.deleted: list[str | None] = []
        """Ids."""
        self.on_submit: Callable[[Request], str] = lambda request: str(len(self.submitted))
        self.on_question: Callable[[Sequence[JobRef]], dict[str, Status]] = self.all_running

    def submit_command(self, request: Request) -> list[str]:
        return ["submit", request.name]

    def submit(self, request: Request) -> str:
        self.submitted.append(request.name)
        return self.on_submit(request)

    def statuses(self, jobs: Sequence[JobRef]) -> dict[str, Status]:
        return self.on_question(jobs)

    def cancel(self, jobs: Sequence[JobRef]) -> dict[str, str]:
        self.deleted += [job.id for job in jobs]
        return {}

    @staticmethod
    def all_running(jobs: Sequence[JobRef]) -> dict[str, Status]:
        return {job.name: Status(job.id or "1", State.RUNNING, "RUNNING") for job in jobs}


class Told:
    """What the monitor told."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.done: list[str] = []
        self.failures: dict[str, str] = {}

    def say(self, text: str) -> None:
        self.lines.append(text)

    warn = say

    def waits(self, job: MonitoredJob, reason: str) -> None:
        """Not looked at."""

    def succeeded(self, job: MonitoredJob) -> None:
        self.done.append(job.label)

    def failed(self, job: MonitoredJob, why: str) -> None:
        self.failures[job.label] = why


class Bench:
    """A monitor in a folder, with its fake scheduler."""

    def __init__(self, folder: Path, limits: Limits = LIMITS) -> None:
        self.folder = folder
        self.scheduler, self.told, self.clock = FakeScheduler(), Told(), StillClock()
        self.records = Records(folder, time.time_ns())
        self.files = self.records.files
        self.monitor = JobMonitor(
            self.scheduler,  # type: ignore[arg-type]
            self.records,
            self.told,
            limits,
            "profiles/gpu/site.yaml",
            self.clock.now_s,
        )
        self.monitor.observer.background = lambda work: work()

    def add(
        self, label: str = "train a", gpus: int = 0, state_file: Path | None = None, outputs: tuple[str, ...] = ()
    ) -> None:
        request = Request("", Path(), Path(), 1, 1, gpus, 1, 1000, 60, None)
        key, touch = job_key("train", [label], label), lambda asked: asked.script.touch()
        self.monitor.add(MonitoredJob(None, key, label, "train", (label,), request, touch, "", state_file, outputs))

    def submit(self, *arguments: Any, **more: Any) -> None:
        """`add`, until it is submitted."""
        self.add(*arguments, **more)
        self.until(lambda: self.scheduler.submitted)

    def until(self, condition: Callable[[], Any], limit_s: float = 3600) -> None:
        end = self.clock.s + limit_s
        while not condition():
            assert self.clock.s < end, f"never; told {self.told.lines} {self.told.failures}"
            self.monitor.round()
            self.clock.s += 1

    def rounds(self, seconds: float) -> None:
        for _ in range(int(seconds)):
            self.monitor.round()
            self.clock.s += 1

    def begin(self, number: int = 0, began_s: int = 100) -> None:
        """As the job script does: a second start removes the end of the first."""
        name = self.scheduler.submitted[number]
        (self.files.folder / f"{name}.ended").unlink(missing_ok=True)
        if not (self.files.folder / f"{name}.token").is_symlink():
            (self.files.folder / f"{name}.token").symlink_to("run")
        (self.files.folder / f"{name}.began").write_text(f"began={began_s}\nhost=node1\n")

    def end(self, code: int, number: int = 0, fault: str = "", began_s: int = 100) -> None:
        name = self.scheduler.submitted[number]
        text = f"exit={code}\nfault={fault}\nbegan={began_s}\nended={began_s + 3600}\nhost=node1\n"
        (self.files.folder / f"{name}.ended").write_text(text)

    def reports(self, state: State, words: str = "WORDS", cause: Cause = Cause.UNKNOWN) -> None:
        """From now on, the scheduler's answer about every job."""
        self.scheduler.on_question = lambda jobs: {one.name: Status(one.id or "1", state, words, cause) for one in jobs}


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path / ".multinode")


def raising(error: Exception) -> Callable[..., Any]:
    def answer(*_: Any) -> Any:
        raise error

    return answer


def test_what_does_not_answer_for_a_while_is_told_once_and_when_it_does_again(bench: Bench, monkeypatch: Any) -> None:
    bench.submit()
    monkeypatch.setattr(bench.files, "names", raising(OSError("Stale file handle")))
    bench.scheduler.on_question = raising(ValueError("rubbish"))
    bench.rounds(60)
    bench.reports(State.UNANSWERED)
    bench.rounds(60)
    monkeypatch.undo()
    bench.reports(State.RUNNING)
    bench.rounds(30)
    assert bench.told.lines == [
        "train a: submitted as 1",
        "the status files cannot be read, which changes nothing for the jobs: Stale file handle",
        "no answer from the scheduler, which changes nothing for the jobs: ValueError: rubbish",
        "the status files can be read again",
        "the scheduler answers again",
    ]


def test_a_job_that_is_held_or_in_a_state_of_an_unknown_word_is_waited_for_and_reported(bench: Bench) -> None:
    bench.submit()
    for state in (State.QUEUED, State.HELD, State.RUNNING, State.UNKNOWN, State.RUNNING, State.QUEUED):
        bench.reports(state)
        bench.rounds(30)
    said = ["held (WORDS)", "running (WORDS)", "unknown (WORDS)", "running (WORDS)"]
    assert bench.told.lines[1:] == [*(f"train a: job 1 is {one}" for one in said), REQUEUED]


REQUEUED = "train a: job 1 was requeued; it runs again"


def test_a_job_that_its_scheduler_requeues_after_its_end_runs_again_and_is_charged_for_both(bench: Bench) -> None:
    bench.submit(gpus=4)
    bench.begin()
    bench.end(1)
    bench.reports(State.QUEUED)
    bench.until(lambda: REQUEUED in bench.told.lines)
    bench.begin(began_s=9000)
    bench.end(0, began_s=9000)
    bench.until(lambda: bench.told.done)
    assert (len(bench.scheduler.submitted), bench.records.gpu_hours()) == (1, 8.0)


def test_an_end_of_which_the_scheduler_drops_its_record_meanwhile_keeps_its_cause(bench: Bench) -> None:
    bench.submit()
    bench.begin()
    bench.reports(State.ENDED, "TIMEOUT", Cause.WALLTIME)
    bench.rounds(14)
    bench.scheduler.on_question = lambda jobs: {}
    bench.until(lambda: bench.told.failures)
    assert "job 1: the walltime of 60 min was reached (TIMEOUT), and it leaves no" in bench.told.failures["train a"]


def test_nothing_is_submitted_of_which_the_intent_is_not_on_disk(bench: Bench, monkeypatch: Any) -> None:
    monkeypatch.setattr(bench.records, "write", raising(OSError("No space left on device")))
    bench.add()
    bench.rounds(60)
    assert (bench.scheduler.submitted, bench.told.lines) == ([], ["train a: No space left on device; trying again"])
    monkeypatch.undo()
    bench.until(lambda: bench.scheduler.submitted)


def test_a_node_that_failed_is_left_out_unless_the_scheduler_cannot_do_without_it(bench: Bench) -> None:
    avoided: list[tuple[str, ...]] = []

    def needs_all(request: Request) -> str:
        avoided.append(request.avoid)
        if request.avoid or request.gpus_per_node:
            raise Refused("sbatch: Requested node configuration is not available")
        return "1"

    bench.scheduler.on_submit = needs_all
    bench.add("train b", gpus=1)
    bench.add()
    bench.until(lambda: len(avoided) == 2)
    bench.end(78, number=1, fault="no GPU here")
    bench.until(lambda: len(avoided) == 4)
    assert avoided == [(), (), ("node1",), ()]
    said = "the scheduler refused it: sbatch: Requested node configuration is not available."
    assert bench.told.failures == {"train b": said}


def test_a_job_that_was_not_deleted_is_named_and_made_again_by_the_next_driver_if_it_is_deleted_after_all(
    bench: Bench,
) -> None:
    bench.submit()
    bench.scheduler.cancel = lambda jobs: dict.fromkeys([job.name for job in jobs], "scancel: away")  # type: ignore[method-assign]  # a failure
    bench.monitor.cancel_all()
    left = "the scheduler did not delete 1 job (scancel: away); these may still exist: 1"
    assert bench.told.lines[-1] == f"{left}. The same command adopts what still runs"
    second = Bench(bench.folder)
    second.reports(State.ENDED, "CANCELLED", Cause.CANCELLED)
    second.submit()
    assert "train a: job 1: cancelled by its driver; it is made again, whatever there was before" in second.told.lines


def test_a_submission_without_an_answer_is_found_by_its_name_and_not_repeated(bench: Bench) -> None:
    bench.scheduler.on_submit = raising(NoAnswer("sbatch: Socket timed out"))
    bench.scheduler.on_question = lambda jobs: {job.name: Status("77", State.QUEUED, "PENDING") for job in jobs}
    bench.add()
    bench.until(lambda: "train a: found as 77" in bench.told.lines)
    bench.end(0)
    bench.until(lambda: bench.told.done)
    assert len(bench.scheduler.submitted) == 1


def test_a_submission_that_never_arrived_is_given_up_for_good_and_made_again(bench: Bench) -> None:
    bench.scheduler.on_submit = raising(NoAnswer("sbatch: Unable to contact slurm controller"))
    bench.scheduler.on_question = lambda jobs: {}
    bench.submit()
    bench.scheduler.on_submit = lambda request: "5"
    bench.until(lambda: len(bench.scheduler.submitted) == 2)
    assert (bench.files.folder / f"{bench.scheduler.submitted[0]}.token").readlink() == Path("void")
    bench.end(0, 1)
    bench.until(lambda: bench.told.done)


def test_a_job_that_a_scheduler_with_history_has_forgotten_is_tried_once_more(bench: Bench) -> None:
    bench.scheduler.keeps_history, bench.scheduler.on_question = True, lambda jobs: {}
    bench.add()
    bench.until(lambda: bench.told.failures)
    said = "job 2: left the queue without having begun: deleted, or lost by the scheduler."
    assert (len(bench.scheduler.submitted), bench.told.failures) == (2, {"train a": said})


def test_a_job_whose_end_is_judged_can_never_start_again(bench: Bench, tmp_path: Path) -> None:
    state = tmp_path / "state.json"
    bench.submit(state_file=state)
    bench.begin()
    state.write_text('{"state": "checkpointed", "progress": 5, "cause": "the deadline"}')
    bench.end(1)
    bench.until(lambda: len(bench.scheduler.submitted) == 2)
    tokens = [bench.files.folder / f"{name}.token" for name in bench.scheduler.submitted]
    assert tokens[0].readlink() == Path("void")
    assert not tokens[1].is_symlink()


@pytest.mark.parametrize(("known", "job_id"), [(True, "1"), (False, None)])
def test_a_job_is_deleted_by_its_name_once_its_scheduler_may_have_given_its_id_away(
    bench: Bench, known: bool, job_id: str | None
) -> None:
    bench.scheduler.on_question = lambda jobs: FakeScheduler.all_running(jobs) if known else {}
    bench.add()
    bench.rounds(20)
    bench.monitor.cancel_all()
    assert bench.scheduler.deleted == [job_id]


def test_a_submission_beyond_the_budget_is_refused_and_used_hours_replace_asked_ones(tmp_path: Path) -> None:
    bench = Bench(tmp_path / ".multinode", Limits(budget_gpu_hours=2.5))
    bench.add("train a", gpus=2)
    bench.add("train b", gpus=2)
    bench.until(lambda: bench.told.failures)
    assert bench.told.failures["train b"] == (
        "not submitted: it may use 2 GPU hours, 2 of the budget of 2.5 are used or asked for; raise budget_gpu_hours to continue."
    )
    assert len(bench.scheduler.submitted) == 1
    name = bench.scheduler.submitted[0]
    (bench.files.folder / f"{name}.ended").write_text("exit=0\nsignal=\nbegan=100\nended=460\nhost=n\n")  # 6 minutes
    bench.until(lambda: bench.told.done)
    assert bench.records.gpu_hours() == pytest.approx(0.2)
    assert Records(tmp_path / ".multinode").gpu_hours() == pytest.approx(0.2, abs=1e-4)


def test_a_mistake_in_this_executor_is_reported_as_the_failure_of_the_job_it_met(
    bench: Bench, monkeypatch: Any
) -> None:
    bench.add("train a")
    bench.add("train b")
    bench.until(lambda: len(bench.scheduler.submitted) == 2)
    monkeypatch.setattr(bench.files, "end", raising(KeyError("colour")))
    bench.end(1, 0)
    bench.until(lambda: bench.told.failures)
    assert bench.told.failures == {
        "train a": "this executor failed on it, job 1 may still run: KeyError: 'colour'.",
    }
    assert [job.label for job in bench.monitor.jobs] == ["train b"]


def test_a_damaged_record_submits_nothing(bench: Bench) -> None:
    bench.submit()
    next((bench.folder / "jobs").glob("*/attempts.json")).write_text("{")
    second = Bench(bench.folder)
    second.add()
    second.until(lambda: second.told.failures)
    assert "is damaged, so whether train a is queued is unknown" in second.told.failures["train a"]
    assert second.scheduler.submitted == []


def test_a_job_that_cannot_run_as_things_are_is_named_once_for_its_reason_and_stays(bench: Bench) -> None:
    words = iter(["PENDING PartitionConfig"])

    def never(jobs: Sequence[JobRef]) -> dict[str, Status]:
        reason = next(words, "PENDING PartitionNodeLimit")
        return {job.name: Status(job.id or "1", State.NEVER, reason) for job in jobs}

    bench.scheduler.on_question = never
    bench.add("train a")
    bench.add("train b")
    bench.rounds(3600)
    [said] = [line for line in bench.told.lines if "Partition" in line]
    assert said.startswith("train a: job 1 cannot run as things are, says the scheduler: PENDING PartitionNodeLimit. ")
    assert "the resources of rule train, or `scheduler` in profiles/gpu/site.yaml" in said
    assert (bench.told.failures, bench.scheduler.deleted) == ({}, [])
    bench.end(0)
    bench.until(lambda: bench.told.done)
    assert len(bench.scheduler.submitted) == 2


def test_a_job_too_large_for_a_limit_holds_up_those_as_large_and_no_other_one(bench: Bench) -> None:
    words = "qsub: would exceed per-user limit on resource ngpus in queue workq"

    def at_most_four(request: Request) -> str:
        if request.gpus_per_node > 4:
            raise LimitReached(words)
        return str(len(bench.scheduler.submitted))

    bench.scheduler.on_submit = at_most_four
    for label, gpus in (("train large", 8), ("train as large", 8), ("train a", 4), ("train b", 1), ("train c", 0)):
        bench.add(label, gpus=gpus)
    bench.rounds(6)
    assert sum("submitted as" in line for line in bench.told.lines) == 3
    assert len(bench.scheduler.submitted) == 4  # the second large one was not tried
    bench.rounds(600)
    assert len(bench.scheduler.submitted) < 40
    assert [line for line in bench.told.lines if words in line] == [
        f"train large: the scheduler takes no more jobs for now ({words}); it waits with all that ask for as much until others "
        "end; where none is left there, ask for less"
    ]
    assert bench.told.failures == {}
    assert len(list(bench.folder.glob("jobs/*/*.sh"))) == 3
