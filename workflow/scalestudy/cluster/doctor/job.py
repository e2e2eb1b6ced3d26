"""The short job in which `scalestudy doctor` looks at nodes: it tries the site's software first, then probes each node.

The executor's own job script and scheduler take it there, so that it meets the conditions of runs.
"""

from __future__ import annotations

import os
import secrets
import shlex
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from scalestudy.cluster.plan.expected import TimeEstimate
from scalestudy.cluster.resources import memory_mb, queue_for
from scalestudy.errors import UserError
from scalestudy.files import read_json
from scalestudy.launch import launchers
from scalestudy.launch.allocation import allocation
from scalestudy.site_fault import SITE, site_file
from scalestudy.spec.config import Site, read_site
from scalestudy.spec.machine import Machine
from snakemake_executor_plugin_multinode.jobscript import write_script
from snakemake_executor_plugin_multinode.schedulers import JobRef, LimitReached, NoAnswer, Refused, Request
from snakemake_executor_plugin_multinode.software import container_words, python_of, shell_line
from snakemake_executor_plugin_multinode.status_files import StatusFiles

FOLDER = Path(".scalestudy/doctor")
POLL_S = 2.0
TASKS_S = 420.0
"""Within the job's walltime, and longer than a probe's own limits."""
WALLTIME_MIN = 12
MAX_MB = 8000
STATUS = "status"
"""The folder of the job's status files, beside its script."""


def write_token(folder: Path) -> str:
    """Write a word into a file that nodes have to find."""
    token = secrets.token_hex(8)
    (folder / "token").write_text(token, encoding="utf-8")
    return token


def reports_in(folder: Path) -> list[dict[str, Any]]:
    """Read the reports of the nodes."""
    return [read_json(file) for file in sorted(folder.glob("node.*.json"))]


def probe_in_job(scheduler: Any, machine: Machine, nodes: int, wait_s: float) -> list[dict[str, Any]]:
    """Submit the probe, wait for every node's answer, and clean up.

    Raises UserError with the site file where the job is refused, or a line of its set-up fails.
    """
    folder = (FOLDER / f"{time.strftime('%Y%m%d-%H%M%S')}-{secrets.token_hex(4)}").absolute()
    folder.mkdir(parents=True)
    token = write_token(folder)
    request = probe_request(f"scalestudy-doctor.{token}", folder, machine, nodes)
    write_probe(request, read_site(), token)
    with submitted(scheduler, request) as job:
        if not _wait_for(lambda: _end(request) is not None or len(reports_in(folder)) >= nodes, wait_s):
            message = _log(request)[-2000:] or f"the job has not started: {in_queue(scheduler, job)}"
            remedy = "wait longer with --wait, use a less busy queue, or correct `request` in the site file"
            raise UserError(f"no answer after {wait_s:.0f} s: {message}", str(folder), remedy)
    raise_failed_set_up(request)
    if not (reports := reports_in(folder)):
        remedy = "correct the software of jobs, or `launcher`, in the site file"
        raise UserError(f"the job ended without a report: {_log(request)[-2000:]}", str(folder), remedy)
    return reports


def probe_request(name: str, folder: Path, machine: Machine, nodes: int) -> Any:
    """Request whole nodes as runs have them, in the first queue that takes so many."""
    gpus = machine.devices_per_node or 0
    queue = queue_for(machine, nodes, TimeEstimate(0.0, 60.0 * WALLTIME_MIN, "unknown"), devices=bool(gpus))
    memory = min(MAX_MB, memory_mb(machine))
    script, log = folder / "job.sh", folder / "job.log"
    return Request(name, script, log, nodes, max(1, gpus), gpus, 1, memory, WALLTIME_MIN, queue)


def write_probe(request: Any, site: Site, token: str) -> None:
    """Write the job script: the site's software, each line of which is tried, then the probe on every node."""
    folder, python, container = request.script.parent, python_of(site), container_words(site, Path.cwd())
    command = ["scalestudy"] if python is None else [python, "-c", "from scalestudy.cli import main; main()"]
    checks = []
    if site.container is not None:
        words = [*container, site.container.python, "-c", "import scalestudy, snakemake, torch"]
        checks = [f"{shell_line(container)} true", shell_line(words)]
    status_files = StatusFiles(folder / STATUS).folder
    command = [*command, "doctor", "--in-job", str(folder), token]
    environment = {name: os.environ[name] for name in (SITE, "PYTHONPATH") if name in os.environ}
    write_script(request, site, status_files, "scalestudy doctor", shell_line(command), environment, checks)


@contextmanager
def submitted(scheduler: Any, request: Any) -> Iterator[Any]:
    """Submit the job, and delete it when the block ends before it. UserError where it cannot be submitted."""
    try:
        print("$ " + shlex.join(scheduler.submit_command(request)), file=sys.stderr, flush=True)
        job = JobRef(request.name, scheduler.submit(request))
        try:
            yield job
        finally:
            if _end(request) is None:
                for why in scheduler.cancel([job]).values():
                    print(f"the job may still be there: {why}", file=sys.stderr)
    except (LimitReached, Refused, NoAnswer, ValueError) as error:
        what = f"the scheduler refused the job: {error}"
        remedy = "correct `scheduler` there: account, queue, request, options; or name the queues in the machine file"
        raise UserError(
            what, site_file(), f"{remedy}; at a limit of your jobs, try again when others have ended"
        ) from None


def in_queue(scheduler: Any, job: Any) -> str:
    """Return the scheduler's words about a job that has not started."""
    try:
        status = scheduler.statuses([job]).get(job.name)
        return "it is not in the queue" if status is None else str(scheduler.why_waiting(status))
    except NoAnswer as error:
        return f"the scheduler does not answer: {error}"


def _end(request: Any) -> Any:
    """How the job ended, by its own status file; None while it runs."""
    os.listdir(request.script.parent)  # noqa: PTH208 - has a network file system look again
    return StatusFiles(request.script.parent / STATUS).end(request.name)


def _log(request: Any) -> str:
    return request.log.read_text(encoding="utf-8", errors="replace") if request.log.exists() else ""


def raise_failed_set_up(request: Any) -> None:
    """Raise UserError, with the words of the job script and of the command, where a line of the set-up failed."""
    end = _end(request)
    if end is None or not end.fault:
        return
    lines = [line for line in _log(request).splitlines() if line.strip() and line.strip() not in end.fault]
    what = f"on {end.host or 'the node'}: {end.fault}{f': {lines[-1][:300]}' if lines else ''}"
    remedy = "correct `modules`, `conda`, `container` or `scheduler.setup` there; every job would fail like this"
    raise UserError(what, site_file(), remedy)


def on_nodes(folder: Path, token: str) -> int:
    """Inside the job, on its first node: one probe per node, by the launcher that runs use too."""
    site = read_site()
    where = allocation(os.environ, site)
    if where is not None and site.launcher not in ("auto", "local", "mpirun"):
        where = replace(where, launcher=site.launcher)
    launcher = "" if where is None else where.launcher
    command = shlex.join([sys.executable, "-m", "scalestudy.cluster.doctor.probe", str(folder), token, launcher])
    script = launchers.node_script(folder, f'exec {command} "$@"')
    if where is None or len(where.hosts) < 2:
        return subprocess.run(["/bin/sh", str(script), "0"], check=False).returncode
    commands = launchers.node_commands(where.launcher, where.hosts, script)
    environment = launchers.environment_for(where.launcher)
    if where.launcher != "pbsdsh":
        started = [subprocess.Popen(command, env=environment, stdin=subprocess.DEVNULL) for command in commands]
        return max([process.wait() for process in started], default=0)
    for command_of_node in commands:  # PBS takes one request of a job at a time
        subprocess.run(command_of_node, env=environment, stdin=subprocess.DEVNULL, check=False)
    # pbsdsh comes back once its task has started, and the end of the job would end the task.
    return 0 if _wait_for(lambda: len(reports_in(folder)) >= len(commands), TASKS_S) else 1


def _wait_for(is_so: Callable[[], bool], limit_s: float) -> bool:
    """Wait for a condition; False where the time is over first."""
    end_s = time.monotonic() + limit_s
    while not is_so():
        if time.monotonic() > end_s:
            return False
        time.sleep(POLL_S)
    return True
