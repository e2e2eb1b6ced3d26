"""How `scalestudy doctor` gets its job to the nodes: what it requests, what a refusal means, and that none stays behind."""

from __future__ import annotations

import shlex
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from scalestudy.cluster.plan.expected import TimeEstimate
from scalestudy.cluster.resources import memory_mb, queue_for
from scalestudy.errors import UserError
from scalestudy.spec.machine import Machine

WALLTIME_MIN = 12
MOST_MB = 8000
ENDED, WANTED = "ended", "wanted"
"""Files in the doctor's folder: its job is over; the doctor is still there, and touches it."""
GONE_S = 120
"""A doctor that has not touched WANTED for so long was killed: nobody needs its job any more."""
SHELL_BASE = 128


def probe_request(name: str, folder: Path, machine: Machine, nodes: int) -> Any:
    """What the doctor's job asks for: whole nodes as runs have them, in the first queue that takes so many."""
    from snakemake_executor_plugin_multinode.schedulers import Request

    gpus = machine.devices_per_node or 0
    queue = queue_for(machine, nodes, TimeEstimate(0.0, 60.0 * WALLTIME_MIN, "unknown"), devices=bool(gpus))
    memory = min(MOST_MB, memory_mb(machine))
    script, log = folder / "job.sh", folder / "job.log"
    return Request(name, script, log, nodes, max(1, gpus), gpus, 1, memory, WALLTIME_MIN, queue)


@contextmanager
def submitted(scheduler: Any, request: Any, site_file: str, machine_file: str = "the machine file") -> Iterator[Any]:
    """The job is in the queue, and gone when the block ends, also by TERM or HUP. UserError where it cannot be submitted."""
    from snakemake_executor_plugin_multinode.schedulers import JobRef, LimitReached, NoAnswer, Refused

    folder = request.script.parent
    with _ended_in_order():
        keep_wanted(folder)
        try:
            print("$ " + shlex.join(scheduler.submit_command(request)), file=sys.stderr, flush=True)
            job = JobRef(request.name, scheduler.submit(request))
        except LimitReached as error:
            what = f"the scheduler takes no more jobs of yours now: {error}"
            raise UserError(what, "doctor", "try again when others have ended") from None
        except (Refused, NoAnswer, ValueError) as error:
            raise UserError(
                f"the scheduler refused the job: {error}", site_file, remedy(str(error), machine_file)
            ) from None
        try:
            yield job
        finally:
            if not (folder / ENDED).exists():
                _cancel(scheduler, job)


def remedy(words: str, machine_file: str) -> str:
    """What to do about a refusal, by the scheduler's words."""
    if "nknown resource" in words:
        return (
            "leave what this scheduler does not know out of `scheduler.request`: where it does not count GPUs, that is the "
            "part in square brackets with {gpus_per_node} or {gpus_per_rank}"
        )
    if "{queue}" in words:
        return f"name the queues in {machine_file} (`queues`), or set `scheduler.queue`"
    return "correct `scheduler` there: account, queue, request, options"


def keep_wanted(folder: Path) -> None:
    """Tell the job that it is still wanted."""
    (folder / WANTED).touch()


def guard(folder: Path) -> str:
    """Shell lines with which the job begins: it ends at once where the doctor was killed while it waited in the queue."""
    begun, wanted = (shlex.quote(str(folder / name)) for name in ("begun", WANTED))
    return (
        f"touch {begun}\n"
        f"begun=$(stat -c %Y {begun} || echo 0) wanted=$(stat -c %Y {wanted} || echo 0)\n"
        f"[ $((begun - wanted)) -lt {GONE_S} ] || exit 0"
    )


@contextmanager
def _ended_in_order() -> Iterator[None]:
    def leave(number: int, _: Any) -> None:
        raise SystemExit(SHELL_BASE + number)

    before = {number: signal.signal(number, leave) for number in (signal.SIGTERM, signal.SIGHUP)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def in_queue(scheduler: Any, job: Any) -> str:
    """What the scheduler says of a job that has not started."""
    from snakemake_executor_plugin_multinode.schedulers import NoAnswer

    try:
        status = scheduler.statuses([job]).get(job.name)
        return "it is not in the queue" if status is None else scheduler.why_waiting(status)
    except NoAnswer as error:
        return f"the scheduler does not answer: {error}"


def _cancel(scheduler: Any, job: Any) -> None:
    for why in scheduler.cancel([job]).values():
        print(f"the job may still be there: {why}", file=sys.stderr)
