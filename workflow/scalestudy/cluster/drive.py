"""The driver as a job: it leaves before its walltime, submits its successor, and the jobs of the study continue meanwhile."""

from __future__ import annotations

import dataclasses
import os
import secrets
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from types import FrameType
from typing import Any

from scalestudy.cluster.doctor.probe_job import MAIN
from scalestudy.errors import UserError
from scalestudy.files import read_json, write_json
from scalestudy.launch.job_environment import JobEnvironment
from scalestudy.site_fault import SITE
from scalestudy.spec.config import read_site

FOLDER = Path(".scalestudy/drive")
PLAN = "drive.json"
REQUESTS = {
    "slurm": "-N 1 --ntasks=1 --cpus-per-task=1 --mem=4000M -t {runtime_min}",
    "pbs": "-l select=1:ncpus=1:mem=4000mb -l walltime={walltime}",
    "sge": "-l h_rt={runtime_s}",
}
"""One core, and memory for Snakemake: a driver sleeps most of the time."""
WHOLE_NODES = ("--exclusive",)
"""Words among a site's options that are for measured runs."""
MARGIN_S = 600.0
"""A driver leaves so long before its walltime, at most a fifth of it: to end, and to submit its successor."""
LEAVE_S = 120.0
"""It is killed where it has not left by then; its jobs continue in any case."""
AGAIN_S = 30.0
"""Pause between attempts at submitting the successor."""


@dataclass(frozen=True)
class DrivePlan:
    """What is driven, and how its job is asked for."""

    command: list[str]
    """Snakemake's."""
    runtime_min: int
    queue: str | None = None
    request: str | None = None
    """Template in place of REQUESTS."""
    options: tuple[str, ...] = ()
    number: int = 1
    """The first driver is 1, its successor 2."""


def start(plan: DrivePlan) -> tuple[str, Path]:
    """Submit the driver's job; its id and its log. Raises UserError where the scheduler refuses it."""
    from scalestudy.cluster.doctor.examine import chosen_scheduler
    from snakemake_executor_plugin_multinode.schedulers import LimitReached, NoAnswer, Refused, Request

    scheduler, findings = chosen_scheduler()
    if scheduler is None:
        raise UserError(findings[0].what, os.environ.get(SITE, "the profile"), findings[0].remedy)
    folder = (FOLDER / f"{time.strftime('%Y%m%d-%H%M%S')}-{plan.number}-{secrets.token_hex(2)}").absolute()
    folder.mkdir(parents=True)
    write_json(folder / PLAN, asdict(plan))
    script, log = folder / "job.sh", folder / "job.log"
    script.write_text(job_script(scheduler.settings, folder), encoding="utf-8")
    script.chmod(0o700)
    name = f"scalestudy-driver.{secrets.token_hex(6)}"
    asking = type(scheduler)(for_driver(scheduler.settings, plan), scheduler.run)
    try:
        request = Request(name, script, log, 1, 1, 0, 1, None, plan.runtime_min, plan.queue)
        return asking.submit(request), log
    except (Refused, LimitReached, NoAnswer, ValueError) as error:
        remedy = "give the driver's own --queue, --request or --option; see scalestudy drive --help"
        raise UserError(f"the scheduler did not take the driver's job: {error}", "drive", remedy) from None


def for_driver(settings: Any, plan: DrivePlan) -> Any:
    """The site's settings with the request of a driver: account, queue and other options as in every job."""
    own = tuple(word for word in settings.options if word not in WHOLE_NODES)
    request = plan.request or REQUESTS[settings.kind]
    return dataclasses.replace(settings, request=request, options=(*own, *plan.options))


def job_script(settings: Any, folder: Path) -> str:
    """The site's modules, environment and set-up, then this command in the job.

    A container and a packed environment are for the study's jobs.
    """
    from snakemake_executor_plugin_multinode.software import SETUP_FAILED, checked, read_software

    software = dataclasses.replace(read_software(read_site().plain()), packed=None)
    exports = [f"export {name}={shlex.quote(os.environ[name])}" for name in (SITE, "PYTHONPATH") if name in os.environ]
    return "\n".join(
        [
            "#!/bin/bash",
            f"export PATH={shlex.quote(str(Path(sys.executable).parent))}:$PATH",
            *exports,
            f"cd {shlex.quote(str(Path.cwd()))} || exit 1",
            f'setup_failed() {{ echo "the set-up failed (exit status $1): $2" >&2; exit {SETUP_FAILED}; }}',
            checked([*software.setup(os.environ.get("CONDA_EXE")), *settings.setup]),
            f"exec {shlex.join([sys.executable, '-c', MAIN, 'drive', '--in-job', str(folder)])}",
            "",
        ]
    )


def in_job(folder: Path, environment: Mapping[str, str] = os.environ) -> int:
    """Run the driver until it ends or has to leave; its exit status, or 0 where a successor was submitted."""
    given = read_json(folder / PLAN)
    plan = DrivePlan(**{**given, "options": tuple(given["options"])})
    of_job = JobEnvironment(environment)
    end_s = of_job.end_s or time.time() + 60.0 * plan.runtime_min
    leave_s = end_s - min(MARGIN_S, 12.0 * plan.runtime_min)
    driver = subprocess.Popen(plan.command, env=of_job.without_job(), stdin=subprocess.DEVNULL)
    told = _pass_on(driver)
    while driver.poll() is None and not told and time.time() < leave_s:
        try:
            driver.wait(min(1.0, max(0.05, leave_s - time.time())))
        except subprocess.TimeoutExpired:
            continue
    if driver.poll() is None:
        if not told:
            _say(f"the walltime ends at {time.strftime('%H:%M:%S', time.localtime(end_s))}: the driver leaves")
        _let_leave(driver)
    if told:
        _say(
            f"{signal.Signals(told[0]).name}: the driver has exited; its jobs continue; the same command adopts them again"
        )
        return 128 + told[0]
    if time.time() < leave_s:
        return driver.wait()
    return _submit_successor(dataclasses.replace(plan, number=plan.number + 1), end_s)


def _pass_on(driver: subprocess.Popen[bytes]) -> list[int]:
    """On a signal that ends this job, note it and tell the driver, which leaves its jobs running; the list of such."""
    told: list[int] = []

    def tell(number: int, _frame: FrameType | None) -> None:
        told.append(number)
        driver.send_signal(signal.SIGTERM)

    for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGXCPU):
        signal.signal(number, tell)
    return told


def _let_leave(driver: subprocess.Popen[bytes]) -> None:
    driver.terminate()
    try:
        driver.wait(LEAVE_S)
    except subprocess.TimeoutExpired:
        driver.kill()
        driver.wait()


def _submit_successor(plan: DrivePlan, end_s: float) -> int:
    while True:
        try:
            job, log = start(plan)
        except UserError as error:
            _say(f"the successor could not be submitted: {error.what}")
            if time.time() + AGAIN_S > end_s:
                _say("give the same `scalestudy drive` again: the study's jobs continue")
                return 1
            time.sleep(AGAIN_S)
            continue
        _say(f"driver {plan.number} is job {job}; its log: {log}")
        return 0


def _say(text: str) -> None:
    print(f"scalestudy: {text}", file=sys.stderr, flush=True)


def stop_hint(kind: str, job: str) -> str:
    """The command that ends a driver's job."""
    return shlex.join([{"slurm": "scancel", "pbs": "qdel", "sge": "qdel"}[kind], job])


def commands_of(words: Sequence[str]) -> list[str]:
    """A command with the `snakemake` of this environment."""
    beside = Path(sys.executable).with_name("snakemake")
    return [str(beside) if beside.exists() else words[0], *words[1:]]
