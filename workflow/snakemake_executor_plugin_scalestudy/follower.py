"""Follows all jobs of a driver: one thread that submits, looks, asks and decides; one more per open question.

Truth comes in this order: the mark that the job script itself left, the scheduler's record, silence. A question that
fails, or is answered late or with rubbish, changes nothing. Silence means *lost* only if the scheduler has answered
twice without the job, and for longer than a shared file system hides a file.
"""

from __future__ import annotations

import json
import queue
import shutil
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Protocol

from snakemake_executor_plugin_scalestudy.jobscript import BEAT_S
from snakemake_executor_plugin_scalestudy.marks import End, Marks
from snakemake_executor_plugin_scalestudy.records import Link, Record, Records, job_name
from snakemake_executor_plugin_scalestudy.schedulers import Job, NoAnswer, Refused, Request, Scheduler, State, Status
from snakemake_executor_plugin_scalestudy.verdict import Action, Asked, Left, Verdict, failed_by_itself, verdict

SILENT_S = 4 * BEAT_S
"""A job that runs touches its mark more often."""
NEVER_POLLS = 2
LOST_POLLS = 2
SUBMIT_PAUSE_S = 20.0
"""After a scheduler that did not answer, so long no further submission is tried."""
SETTLE_POLLS_S = 2.0
"""While an end lacks its cause, the scheduler is asked this often."""


class Reporter(Protocol):
    """What the follower tells; the executor passes it on to Snakemake."""

    def say(self, text: str) -> None:
        """Something a person may want to know."""

    def warn(self, text: str) -> None:
        """Something a person should know."""

    def succeeded(self, followed: Followed) -> None:
        """A job is done."""

    def failed(self, followed: Followed, why: str) -> None:
        """A job has failed, for the reason given."""


@dataclass
class Work:
    """One job in Snakemake's sense, as far as following it needs."""

    handle: Any
    key: str
    label: str
    rule: str
    wildcards: tuple[str, ...]
    request: Callable[[str, Path, Path], Request]
    """From name, script and log; ValueError, with a sentence, for what cannot be submitted."""
    write_script: Callable[[Request], None]
    state_file: Path | None
    logs: tuple[Path, ...]


@dataclass
class Followed:
    """A job on its way, and what has been seen of it."""

    work: Work
    record: Record
    adopted: bool = False
    status: Status | None = None
    asked: Asked = field(default_factory=lambda: Asked(None, None))
    known_s: float = 0.0
    """Since when it can be asked about: answers to earlier questions say nothing about it."""
    asked_s: float = 0.0
    """When the question was asked whose answer is the last that this job has a part in."""
    absent: int = 0
    absent_s: float | None = None
    never: int = 0
    vanished: bool = False
    """Its scheduler has lost it in the queue once: killed outright, one forgets what it took a moment before."""
    ended_s: float | None = None
    """When its end was noticed: its cause, or its mark, may come later."""
    end: End | None = None
    """The end that was noticed then."""

    @property
    def link(self) -> Link | None:
        """The submission that may be alive."""
        return self.record.links[-1] if self.record.open else None

    def submitted_again(self) -> None:
        """Forget what was seen of the link before."""
        self.status, self.absent, self.absent_s, self.never = None, 0, None, 0
        self.ended_s, self.end = None, None
        self.known_s = time.monotonic()


@dataclass(frozen=True)
class Limits:
    """Times, in seconds."""

    poll_s: float = 10.0
    """Between two questions to the scheduler."""
    settle_s: float = 15.0
    """So long a file that was written on a node may stay unseen here, and a cause unknown to the scheduler."""
    completing_s: float = 120.0
    """So long a scheduler may say that a job runs whose script has ended: its output is brought back, or it hangs."""
    lost_s: float = 30.0
    """So long a job must have been unknown to the scheduler before it counts as lost."""
    per_s: float = 5.0
    """At most so many submissions per second."""
    budget_gpu_hours: float | None = None


class Follower:
    """All jobs of one driver."""

    def __init__(
        self, scheduler: Scheduler, records: Records, marks: Marks, tell: Reporter, limits: Limits, began_ns: int
    ):
        self.scheduler, self.records, self.marks, self.tell, self.limits = scheduler, records, marks, tell, limits
        self.began_ns = began_ns
        self.jobs: list[Followed] = []
        self.new: queue.SimpleQueue[Work] = queue.SimpleQueue()
        self.waiting: list[Followed] = []
        """To be submitted."""
        self.answers: queue.SimpleQueue[tuple[float, dict[str, Status] | NoAnswer]] = queue.SimpleQueue()
        self.asking = False
        self.next_question_s = 0.0
        self.next_submission_s = 0.0
        self.trouble = ""
        self.stopping = threading.Event()
        self.wake = threading.Event()

    # called by the executor, from Snakemake's own thread

    def add(self, work: Work) -> None:
        """Follow a job: adopt what a driver before has submitted for it, or submit it."""
        self.new.put(work)
        self.wake.set()

    # one round

    def round(self) -> None:
        """Look once at everything."""
        self._take_new()
        self._take_answers()
        if self.jobs or self.waiting:
            names = self._names()
            for followed in list(self.jobs):
                if not self.stopping.is_set() and names is not None:
                    self._look(followed, names)
            self._submit_waiting()
            self._ask()

    def pause(self) -> None:
        """Until there may be something to see."""
        self.wake.wait(self.pause_s())
        self.wake.clear()

    def pause_s(self) -> float:
        """Seconds until something may be due: a submission, or else a look at the marks."""
        idle_s = min(1.0, self.limits.poll_s)
        if not self.waiting:
            return idle_s
        return min(idle_s, max(0.0, self.next_submission_s - time.monotonic()))

    def _names(self) -> set[str] | None:
        try:
            return self.marks.names()
        except OSError as error:  # a hiccup of the file system proves nothing
            self._in_trouble(f"{self.marks.folder}: {error}")
            return None

    def _take_new(self) -> None:
        while not self.new.empty():
            work = self.new.get()
            try:
                followed = Followed(work, self.records.read(work.key, work.label))
            except ValueError as error:
                self.tell.failed(Followed(work, Record(work.key, work.label)), f"not submitted: {error}.")
                continue
            link = followed.link
            if link is None:
                for old in followed.record.links:
                    self.marks.forget_end(old.name)
                followed.record = Record(followed.work.key, followed.work.label)
                self.waiting.append(followed)
                continue
            followed.adopted = True
            followed.known_s = time.monotonic()
            followed.asked = self._asked(followed)
            self.jobs.append(followed)
            but = ", although its deletion was asked for: if that comes true it is submitted anew"
            self.tell.say(
                f"{followed.work.label}: taken up again as {link.id or link.name}{but if link.cancelled else ''}"
            )

    def _asked(self, followed: Followed) -> Asked:
        try:
            request = followed.work.request("probe", Path("/probe"), Path("/probe"))
        except ValueError:
            return Asked(None, None)
        return Asked(request.mem_mb, request.runtime_min)

    # questions

    def _ask(self) -> None:
        """Ask about all jobs at once, unless a question is still open."""
        if self.asking or time.monotonic() < self.next_question_s or self.stopping.is_set():
            return
        jobs = [Job(link.name, link.id) for followed in self.jobs if (link := followed.link) is not None]
        if not jobs:
            return
        self.asking = True
        threading.Thread(target=self._question, args=(jobs, time.monotonic()), daemon=True).start()

    def _question(self, jobs: list[Job], asked_s: float) -> None:
        try:
            answer: dict[str, Status] | NoAnswer = self.scheduler.statuses(jobs)
        except NoAnswer as error:
            answer = error
        except Exception as error:  # an answer that breaks its reader is rubbish, not the end of a run
            answer = NoAnswer(f"{type(error).__name__}: {error}")
        self.answers.put((asked_s, answer))
        self.wake.set()

    def _take_answers(self) -> None:
        while not self.answers.empty():
            asked_s, answer = self.answers.get()
            self.asking = False
            unsettled = any(followed.ended_s is not None for followed in self.jobs)
            self.next_question_s = time.monotonic() + (SETTLE_POLLS_S if unsettled else self.limits.poll_s)
            if isinstance(answer, NoAnswer):
                self._in_trouble(str(answer))
                continue
            if self.trouble:
                self.tell.warn("the scheduler answers again")
                self.trouble = ""
            for followed in self.jobs:
                if followed.known_s < asked_s:
                    followed.asked_s = asked_s
                    self._told(followed, answer)

    def _in_trouble(self, words: str) -> None:
        if words != self.trouble:
            self.tell.warn(f"no answer from the scheduler, which changes nothing for the jobs: {words}")
        self.trouble = words

    def _told(self, followed: Followed, answer: dict[str, Status]) -> None:
        """Take one job's part of an answer."""
        link = followed.link
        if link is None:
            return
        status = answer.get(link.name)
        if status is None:
            followed.absent += 1
            followed.absent_s = followed.absent_s or time.monotonic()
            return
        if link.id is None:
            link.id = status.id
            self.records.write(followed.record)
            self.records.note_id(link)
            self.tell.say(f"{followed.work.label}: found as {link.id}")
        before = followed.status.state if followed.status else None
        if status.state is not before:
            self._say_change(followed, status, before)
        followed.absent, followed.absent_s = 0, None
        followed.never = followed.never + 1 if status.state is State.NEVER else 0
        followed.status = status

    def _say_change(self, followed: Followed, status: Status, before: State | None) -> None:
        which = f"{followed.work.label}: job {status.id}"
        if status.state in (State.HELD, State.SUSPENDED):
            self.tell.warn(f"{which} is {status.state.value} ({status.words}); it goes on when it is released")
        elif status.state is State.UNKNOWN:
            self.tell.warn(f"{which} is in a state that is not known here, {status.words!r}; waiting")
        elif before in (State.HELD, State.SUSPENDED):
            self.tell.warn(f"{which} is {status.state.value} again")

    # decisions

    def _look(self, followed: Followed, names: set[str]) -> None:
        """Decide about one job, if there is something to decide."""
        link = followed.link
        assert link is not None
        now = time.monotonic()
        end = self.marks.end(link.name) if f"{link.name}.ended" in names else None
        if followed.end is not None and self.marks.begun_again(link.name, followed.end):
            self._requeued(followed, followed.end)
        if end is not None:
            self._ended(followed, end, now)
        elif self._over(followed):
            followed.ended_s = followed.ended_s or now
            if now - followed.ended_s >= self.limits.settle_s:
                self._judge(followed, None)
        elif followed.never >= NEVER_POLLS and followed.status is not None:
            self._never(followed)
        elif self._lost(followed, now):
            self._gone(followed, names)

    @staticmethod
    def _over(followed: Followed) -> bool:
        return followed.status is not None and followed.status.state is State.ENDED

    def _lost(self, followed: Followed, now: float) -> bool:
        return (
            followed.absent >= LOST_POLLS
            and followed.absent_s is not None
            and now - followed.absent_s >= self.limits.lost_s
        )

    def _ended(self, followed: Followed, end: End, now: float) -> None:
        """The job script says how it ended; of a failure the scheduler may know why."""
        link = followed.link
        assert link is not None
        if end.code == 0:
            if followed.adopted and self.marks.ended_mtime_ns(link.name) < self.began_ns:
                # It had ended when this driver looked at the files, and Snakemake wants it made again.
                self._close(followed, end, "finished")
                self._again(followed, Record(followed.work.key, followed.work.label))
                return
            self._judge(followed, end)
            return
        if followed.end is None:
            followed.end, followed.ended_s = end, now
            self.next_question_s = 0.0
        if self._waits_again(followed):
            self.marks.forget_end(link.name)
            self._requeued(followed, end)
            return
        left = self._left(followed, link)
        on_its_own = left is not None and left.fresh and left.state == "checkpointed" and not end.signal
        answered = followed.asked_s > (followed.ended_s or now)
        completing = answered and not followed.absent and not self._over(followed)
        patience_s = self.limits.completing_s if completing else self.limits.settle_s
        if (on_its_own and answered) or self._over(followed) or now - (followed.ended_s or now) >= patience_s:
            self._judge(followed, end)

    @staticmethod
    def _waits_again(followed: Followed) -> bool:
        """Whether the scheduler, asked after the job's end was seen, has it in its queue."""
        if followed.ended_s is None or followed.asked_s <= followed.ended_s or followed.status is None:
            return False
        return not followed.absent and followed.status.state in (State.QUEUED, State.HELD)

    def _requeued(self, followed: Followed, end: End) -> None:
        """Its scheduler runs it a second time: what it used is kept, its end is not judged."""
        link = followed.link
        assert link is not None
        link.used_before_s += end.ended_s - end.began_s
        followed.end = followed.ended_s = None
        self.records.write(followed.record)
        self.tell.warn(f"{followed.work.label}: job {link.id or link.name} was requeued; it runs again")

    def _judge(self, followed: Followed, end: End | None) -> None:
        link = followed.link
        assert link is not None
        left = self._left(followed, link)
        if left is not None and left.fresh:
            link.progress = left.progress
        link.host = self._host(followed, end)
        began = self.marks.began(link.name)
        began_s = began[0] if began is not None else None
        forgotten = self.scheduler.remembers_deleted and not followed.adopted and followed.absent >= LOST_POLLS
        judged = verdict(end, followed.status, left, followed.record.links, followed.asked, began_s, forgotten)
        if link.cancelled and judged.action is not Action.SUCCEED and not failed_by_itself(end, followed.status):
            self._cancelled(followed, end)
        else:
            self._act(followed, end, judged)

    def _act(self, followed: Followed, end: End | None, judged: Verdict) -> None:
        link = followed.link
        assert link is not None
        link.node_fault = judged.node_fault
        if judged.action is not Action.SUCCEED and not self._at_rest(followed, end):
            return
        if judged.action is Action.GO_ON:
            self._keep_logs(followed)
            self._close(followed, end, judged.cause)
            self.tell.warn(f"{followed.work.label}: job {link.id or link.name}: {judged.cause}; the next link follows")
            self._again(followed, followed.record)
            return
        followed.record.outcome = "finished" if judged.action is Action.SUCCEED else "failed"
        self._close(followed, end, judged.cause)
        self.jobs.remove(followed)
        if judged.action is Action.SUCCEED:
            self.records.forget(followed.record)
            self.tell.succeeded(followed)
        else:
            self.tell.failed(followed, f"job {link.id or link.name}: {judged.cause}.{self._place(followed)}")

    def _cancelled(self, followed: Followed, end: End | None) -> None:
        """A driver had it deleted; this one is to make it: from anew, whatever there was before."""
        if self._at_rest(followed, end):
            self._close(followed, end, "cancelled by its driver")
            self._again(followed, Record(followed.work.key, followed.work.label))

    def _at_rest(self, followed: Followed, end: End | None) -> bool:
        """Forbid a job whose end is judged to run again; False if it has begun again in this moment."""
        link = followed.link
        assert link is not None
        self.marks.revoke(link.name)
        if end is not None and self.marks.begun_again(link.name, end):
            self._requeued(followed, end)
            self._cancel([followed])
            return False
        if followed.ended_s is not None and time.monotonic() - followed.ended_s >= self.limits.completing_s:
            self._cancel([followed])
        return True

    def _never(self, followed: Followed) -> None:
        """It would wait for ever: delete it and say why."""
        link = followed.link
        assert link is not None
        assert followed.status is not None
        words = followed.status.words
        self.marks.revoke(link.name)  # should the scheduler not be there to delete it
        self._cancel([followed])
        followed.record.outcome = "failed"
        self._close(followed, None, f"can never run: {words}")
        self.jobs.remove(followed)
        self.tell.failed(followed, f"job {link.id}: the scheduler will never run it ({words}); it was deleted.")

    def _gone(self, followed: Followed, names: set[str]) -> None:
        """The scheduler does not know the job, and it left no word of its end."""
        link = followed.link
        assert link is not None
        if f"{link.name}.began" in names:
            if self.marks.silent_s(link.name) > SILENT_S:
                self._judge(followed, None)
            return  # it runs, although its scheduler has lost it
        if not self.marks.void(link.name):
            if time.monotonic() - (followed.absent_s or 0.0) > 2 * self.limits.lost_s:
                self._judge(followed, None)
            return  # it begins just now, or died in that moment
        lost = self.scheduler.remembers_deleted and not followed.vanished
        if link.id is None or followed.adopted or link.cancelled or lost:
            what = "was not submitted" if link.id is None else "left the queue without a trace"
            followed.vanished = link.id is not None
            self._close(followed, None, what)
            self.tell.say(f"{followed.work.label}: {link.id or link.name} {what}; it is submitted now")
            followed.record.links.pop()
            self._again(followed, followed.record)
            return
        followed.record.outcome = "failed"
        self._close(followed, None, "left the queue without having begun")
        self.jobs.remove(followed)
        self.tell.failed(
            followed, f"job {link.id}: left the queue without having begun: deleted, or lost by the scheduler."
        )

    def _again(self, followed: Followed, record: Record) -> None:
        """Submit another link."""
        followed.record = record
        followed.adopted = False
        self.jobs.remove(followed)
        self.waiting.append(followed)

    def _close(self, followed: Followed, end: End | None, cause: str) -> None:
        """Write down how a link ended, before anything follows from it."""
        link = followed.record.links[-1]
        link.cause = cause
        began, beat_s = self.marks.began(link.name), self.marks.last_beat_s(link.name)
        used_s = link.used_before_s
        if end is not None:
            used_s += end.ended_s - end.began_s
        elif began is not None and beat_s is not None:  # it may have died long before this driver looks
            used_s += max(0.0, beat_s - began[0])
        self.records.note_end(link, used_s)
        self.records.write(followed.record)
        if followed.record.outcome == "finished":
            for old in followed.record.links:
                self.marks.forget(old.name)

    def _left(self, followed: Followed, link: Link) -> Left | None:
        """state.json beside the first output, if it can be read."""
        file = followed.work.state_file
        stamp = state_stamp(file)
        if file is None or stamp is None:
            return None
        try:
            data = json.loads(file.read_text(encoding="utf-8"))
            progress = data.get("progress")
            return Left(
                str(data.get("state", "")),
                float(progress) if isinstance(progress, int | float) and not isinstance(progress, bool) else None,
                str(data.get("cause") or ""),
                stamp != link.state_before,
            )
        except (OSError, ValueError, AttributeError):
            return None

    def _host(self, followed: Followed, end: End | None) -> str:
        if followed.status is not None and len(followed.status.nodes) == 1:
            node = followed.status.nodes[0]
            return "" if set(node) & set("[,") else node  # of several nodes it is not known which
        link = followed.link
        began = self.marks.began(link.name) if link is not None else None
        return end.host if end is not None else began[1] if began is not None else ""

    def _keep_logs(self, followed: Followed) -> None:
        """The next link writes the rule's log anew: keep this one's."""
        folder = self.records.folder_of(followed.work.key)
        for log in followed.work.logs:
            try:
                shutil.copyfile(log, folder / f"link{len(followed.record.links)}.{log.name}")
            except OSError:
                continue

    def _place(self, followed: Followed) -> str:
        link = followed.record.links[-1]
        log = self.records.folder_of(followed.work.key) / f"{link.name}.log"
        return f" The job's own output: {log}." if log.exists() else ""

    # submissions

    def _submit_waiting(self) -> None:
        """One submission, if its time has come."""
        if not self.waiting or self.stopping.is_set() or time.monotonic() < self.next_submission_s:
            return
        self.next_submission_s = time.monotonic() + 1 / self.limits.per_s
        self._submit(self.waiting.pop(0))

    def _submit(self, followed: Followed) -> None:
        name = job_name(followed.work.rule, followed.work.wildcards)
        folder = self.records.folder_of(followed.work.key)
        folder.mkdir(parents=True, exist_ok=True)
        try:
            request = followed.work.request(name, folder / f"{name}.sh", folder / f"{name}.log")
            request = with_avoided(request, followed.record.links)
            self.scheduler.submit_command(request)
            self._check_budget(request)
            followed.work.write_script(request)
        except (ValueError, OSError) as error:
            followed.record.outcome = "failed"
            self.tell.failed(followed, f"not submitted: {error}.")
            return
        followed.asked = Asked(request.mem_mb, request.runtime_min)
        before = state_stamp(followed.work.state_file)
        gpus = request.nodes * request.gpus_per_node
        link = Link(name, None, time.time(), request.gpu_hours, gpus, before)
        followed.record.links.append(link)
        try:
            self.records.write(followed.record)
            self.records.note_submission(followed.record, link, request)
        except OSError as error:  # nothing is submitted that is not on disk
            followed.record.links.pop()
            self.waiting.insert(0, followed)
            self._in_trouble(str(error))
            self.next_submission_s = time.monotonic() + SUBMIT_PAUSE_S
            return
        try:
            link.id = self._submitted(request)
        except Refused as error:
            followed.record.outcome = "failed"
            self._close(followed, None, f"refused: {error}")
            self.tell.failed(followed, f"the scheduler refused it: {error}.")
            return
        except NoAnswer as error:
            # It may have it, or not: the name will tell.
            self._in_trouble(str(error))
            self.next_submission_s = time.monotonic() + SUBMIT_PAUSE_S
        followed.submitted_again()
        self.jobs.append(followed)
        if link.id is not None:
            self.records.write(followed.record)
            self.records.note_id(link)
            number = len(followed.record.links)
            self.tell.say(f"{followed.work.label}: submitted as {link.id}" + (f", link {number}" if number > 1 else ""))

    def _submitted(self, request: Request) -> str:
        """Submit; a scheduler that cannot do without a node that failed before may have it."""
        try:
            return self.scheduler.submit(request)
        except Refused:
            if not request.avoid:
                raise
        return self.scheduler.submit(replace(request, avoid=()))

    def _check_budget(self, request: Request) -> None:
        budget = self.limits.budget_gpu_hours
        if budget is None or request.nodes * request.gpus_per_node == 0:
            return
        hours = request.gpu_hours
        if hours is None:
            raise ValueError("with budget_gpu_hours each job with GPUs needs the resource `runtime`")
        spent = self.records.gpu_hours()
        if spent + hours > budget:
            raise ValueError(
                f"it may use {hours:.4g} GPU hours, {spent:.4g} of the budget of {budget:.4g} are used or asked for; "
                "raise budget_gpu_hours to go on"
            )

    # cancelling

    def cancel_all(self) -> None:
        """Ask the scheduler to delete every job that this driver follows, and nothing else."""
        self._cancel([followed for followed in self.jobs if followed.link is not None])

    def say_cancelling(self) -> None:
        """Before it is done: a submission under way is waited for, and a scheduler may take its time."""
        count = sum(followed.link is not None for followed in self.jobs)
        self.tell.warn(f"cancelling {count} {'job' if count == 1 else 'jobs'}; this may take a while")

    def _cancel(self, followed: list[Followed]) -> None:
        jobs = []
        for one in followed:
            link = one.link
            if link is not None:
                link.cancelled = True
                try:
                    self.records.write(one.record)
                except OSError as error:  # to a full disk too, the deletion is what was asked for
                    self.tell.warn(f"{one.work.label}: {error}")
                # A scheduler that has forgotten a job may have given its id to another.
                jobs.append(Job(link.name, None if one.absent else link.id))
        if not jobs:
            return
        try:
            self.scheduler.cancel(jobs)
        except NoAnswer as error:
            ids = " ".join(job.id or job.name for job in jobs)
            self.tell.warn(
                f"the scheduler could not be asked to delete its jobs ({error}); still there may be: {ids}. "
                "The same command takes up what still runs"
            )


def with_avoided(request: Request, links: list[Link]) -> Request:
    """The request, without the nodes that failed under earlier links."""
    avoid = tuple(dict.fromkeys(link.host for link in links if link.node_fault and link.host))
    return replace(request, avoid=avoid) if avoid else request


def state_stamp(file: Path | None) -> list[int] | None:
    """Time and size of a file, to tell whether it has changed; None if it is not there."""
    if file is None:
        return None
    try:
        stat = file.stat()
    except OSError:
        return None
    return [stat.st_mtime_ns, stat.st_size]
