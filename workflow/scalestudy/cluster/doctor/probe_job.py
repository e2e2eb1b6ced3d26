"""The short job in which `scalestudy doctor` looks at nodes: it tries the site's software first, then probes each node.

The executor's own job script and scheduler take it there, so that it meets the conditions of runs.
"""

from __future__ import annotations

import os
import re
import secrets
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from scalestudy.cluster.plan.expected import TimeEstimate
from scalestudy.cluster.resources import memory_mb, queue_for
from scalestudy.errors import UserError
from scalestudy.files import read_json
from scalestudy.launch.allocation import allocation
from scalestudy.launch.job_environment import JobEnvironment
from scalestudy.site_fault import SITE, site_file
from scalestudy.spec.config import Site, read_site
from scalestudy.spec.machine import Machine

FOLDER = Path(".scalestudy/doctor")
POLL_S = 2.0
TASKS_S = 420.0
"""Within the job's walltime, and longer than a probe's own limits."""
WALLTIME_MIN = 12
MAX_MB = 8000
MAIN = "from scalestudy.cli import main; main()"
SHELL_BASE = 128
FAULT = re.compile(r"the job's set-up failed \(exit status (\d+)\): (.*)")
"""What the executor's job script writes about a line of the set-up that fails."""
UNKNOWN_RESOURCE = re.compile(r"nknown resource:? \"?([\w.]+)")


def write_token(folder: Path) -> str:
    """Write a word into a file that nodes have to find."""
    token = secrets.token_hex(8)
    (folder / "token").write_text(token, encoding="utf-8")
    return token


def reports_in(folder: Path) -> list[dict[str, Any]]:
    """Read the reports of the nodes."""
    return [read_json(file) for file in sorted(folder.glob("node.*.json"))]


def probe_in_job(
    scheduler: Any, machine: Machine, nodes: int, wait_s: float, machine_file: str
) -> list[dict[str, Any]]:
    """Submit the probe, wait for every node's answer, and clean up.

    Raises UserError with the site file and its key where the job is refused, or a line of its set-up fails.
    """
    folder = (FOLDER / time.strftime("%Y%m%d-%H%M%S")).absolute()
    folder.mkdir(parents=True)
    token = write_token(folder)
    request = probe_request(f"scalestudy-doctor.{token}", folder, machine, nodes)
    write_script(request, read_site(), scheduler.settings, token)
    with submitted(scheduler, request, site_file(), machine_file) as job:
        _wait(folder, request.name, nodes, wait_s, lambda: in_queue(scheduler, job))
    raise_failed_set_up(folder, request.name, set_up(read_site(), scheduler.settings))
    return reports_in(folder)


def probe_request(name: str, folder: Path, machine: Machine, nodes: int) -> Any:
    """Request whole nodes as runs have them, in the first queue that takes so many."""
    from snakemake_executor_plugin_multinode.schedulers import Request

    gpus = machine.devices_per_node or 0
    queue = queue_for(machine, nodes, TimeEstimate(0.0, 60.0 * WALLTIME_MIN, "unknown"), devices=bool(gpus))
    memory = min(MAX_MB, memory_mb(machine))
    script, log = folder / "job.sh", folder / "job.log"
    return Request(name, script, log, nodes, max(1, gpus), gpus, 1, memory, WALLTIME_MIN, queue)


def set_up(site: Site, settings: Any) -> list[tuple[str, str]]:
    """List the set-up of a job as (key of the site file, line of shell), and the tries of the image."""
    from snakemake_executor_plugin_multinode.software import container_words, setup_lines, shell_line

    lines = setup_lines(site, os.environ.get("CONDA_EXE"))
    tries = [("modules" if line.startswith(("module ", "type module")) else "conda", line) for line in lines]
    tries += [("scheduler.setup", line) for line in settings.setup]
    if site.container is not None:
        words = container_words(site, Path.cwd())
        tries.append(("container.image", f"{shell_line(words)} true"))
        code = ["-c", "import scalestudy, snakemake, torch"]
        tries.append(("container.python", shell_line([*words, site.container.python, *code])))
    return tries


def write_script(request: Any, site: Site, settings: Any, token: str) -> None:
    """Write the job script: the site's software, each line of which is tried, then the probe on every node."""
    from snakemake_executor_plugin_multinode.jobscript import Script
    from snakemake_executor_plugin_multinode.software import container_words, python_of, shell_line
    from snakemake_executor_plugin_multinode.status_files import StatusFiles

    folder, python = request.script.parent, python_of(site)
    command = ["scalestudy"] if python is None else [python, "-c", MAIN]
    script = Script(
        name=request.name,
        title="scalestudy doctor",
        properties="{}",
        status_files=StatusFiles(folder / "status").folder,
        workdir=Path.cwd(),
        command=shell_line([*command, "doctor", "--in-job", str(folder), token]),
        environment={name: os.environ[name] for name in (SITE, "PYTHONPATH") if name in os.environ},
        path_first=Path(sys.executable).parent,
        runtime_min=request.runtime_min,
        setup=[line for _, line in set_up(site, settings)],
        wrapper=settings.wrapper,
        script=request.script,
        container=container_words(site, Path.cwd()),
    )
    request.script.write_text(script.text(), encoding="utf-8")
    request.script.chmod(0o700)


@contextmanager
def submitted(scheduler: Any, request: Any, site_file: str, machine_file: str = "the machine file") -> Iterator[Any]:
    """Submit the job, and delete it when the block ends, also by TERM or HUP. UserError where it cannot be submitted."""
    from snakemake_executor_plugin_multinode.schedulers import JobRef, LimitReached, NoAnswer, Refused

    with _ended_in_order():
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
            if _end(request.script.parent, request.name) is None:
                for why in scheduler.cancel([job]).values():
                    print(f"the job may still be there: {why}", file=sys.stderr)


@contextmanager
def _ended_in_order() -> Iterator[None]:
    def leave(number: int, _: Any) -> None:
        raise SystemExit(SHELL_BASE + number)

    before: Mapping[int, Any] = {number: signal.signal(number, leave) for number in (signal.SIGTERM, signal.SIGHUP)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def remedy(words: str, machine_file: str) -> str:
    """Return the remedy for a refusal, by the scheduler's words."""
    if found := UNKNOWN_RESOURCE.search(words):
        return (
            f"leave `{found[1]}`, which this scheduler does not know, out of `scheduler.request` and `scheduler.options`; "
            "where GPUs are not counted, that is the part in square brackets with {gpus_per_node} or {gpus_per_rank}"
        )
    if "{queue}" in words:
        return f"name the queues in {machine_file} (`queues`), or set `scheduler.queue`"
    return "correct `scheduler` there: account, queue, request, options"


def in_queue(scheduler: Any, job: Any) -> str:
    """Return the scheduler's words about a job that has not started."""
    from snakemake_executor_plugin_multinode.schedulers import NoAnswer

    try:
        status = scheduler.statuses([job]).get(job.name)
        return "it is not in the queue" if status is None else scheduler.why_waiting(status)
    except NoAnswer as error:
        return f"the scheduler does not answer: {error}"


def _end(folder: Path, name: str) -> Any:
    """How the job ended, by its own status file; None while it runs."""
    from snakemake_executor_plugin_multinode.status_files import StatusFiles

    return StatusFiles(folder / "status").end(name)


def _wait(folder: Path, name: str, nodes: int, wait_s: float, queued: Callable[[], str]) -> None:
    end = time.monotonic() + wait_s
    while time.monotonic() < end:
        os.listdir(folder)  # noqa: PTH208 - has a network file system look again
        if _end(folder, name) is not None or len(list(folder.glob("node.*.json"))) >= nodes:
            return
        time.sleep(POLL_S)
    if said := _log(folder)[-2000:]:
        raise UserError(f"no answer after {wait_s:.0f} s: {said}", str(folder), "wait longer with --wait")
    remedy = "wait longer with --wait, use a less busy queue, or correct `request` in the site file"
    raise UserError(f"no answer after {wait_s:.0f} s: the job has not started: {queued()}", str(folder), remedy)


def _log(folder: Path) -> str:
    log = folder / "job.log"
    return log.read_text(encoding="utf-8", errors="replace") if log.exists() else ""


def raise_failed_set_up(folder: Path, name: str, tries: Sequence[tuple[str, str]]) -> None:
    """Raise UserError, with the key of the site file, where a line of the set-up failed."""
    end = _end(folder, name)
    fault = FAULT.search(end.fault) if end is not None else None
    if fault is None:
        return
    command = fault[2].strip()
    key = next((key for key, line in tries if " ".join(line.split()).startswith(command)), "scheduler.setup")
    lines = [line for line in _log(folder).splitlines() if line.strip() and not FAULT.search(line)]
    last = f": {lines[-1][:300]}" if lines else ""
    what = f"`{key}` fails on {end.host or 'the node'}: `{command}` ends with exit status {fault[1]}{last}"
    raise UserError(what, site_file(), f"correct `{key}` there; every job would fail like this")


def on_nodes(folder: Path, token: str) -> int:
    """Inside the job, on its first node: one probe per node, by the launcher that runs use too."""
    from scalestudy.launch import launchers

    where = allocation(os.environ, read_site())
    hosts = where.hosts if where is not None else ()
    number = JobEnvironment.process_number_in_shell(where.launcher) if where is not None else "0"
    command = shlex.join([sys.executable, "-m", "scalestudy.cluster.doctor.probe", str(folder), token])
    script = launchers.node_script(folder, f'exec {command} "${{1:-{number}}}"')
    if where is None or len(hosts) < 2:
        return subprocess.run(["/bin/sh", str(script), "0"], check=False).returncode
    commands = launchers.node_commands(where.launcher, hosts, script)
    environment = launchers.environment_for(where.launcher)
    if where.launcher == "pbsdsh":
        return _by_pbsdsh(commands, environment, folder)
    started = [subprocess.Popen(command, env=environment, stdin=subprocess.DEVNULL) for command in commands]
    return max([process.wait() for process in started], default=0)


def _by_pbsdsh(commands: Sequence[list[str]], environment: dict[str, str], folder: Path) -> int:
    """Wait for the tasks' files: pbsdsh comes back once its task has started, and the end of the job would end it."""
    for command in commands:  # PBS takes one request of a job at a time
        subprocess.run(command, env=environment, stdin=subprocess.DEVNULL, check=False)
    end = time.monotonic() + TASKS_S
    while len(list(folder.glob("node.*.json"))) < len(commands):
        if time.monotonic() > end:
            return 1
        time.sleep(POLL_S)
    return 0
