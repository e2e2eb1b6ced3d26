"""The short job in which `scalestudy doctor` looks at nodes: it tries the site's software first, then probes each node."""

from __future__ import annotations

import os
import secrets
import shlex
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from scalestudy.cluster.doctor.probe_request import ENDED, guard, in_queue, keep_wanted, probe_request, submitted
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
FAILED_LINE = "setup_failed"
"""A file that the job's script writes: the exit status and the command of its set-up that failed."""
MAIN = "from scalestudy.cli import main; main()"


def write_token(folder: Path) -> str:
    """A word in a file that nodes have to find."""
    token = secrets.token_hex(8)
    (folder / "token").write_text(token, encoding="utf-8")
    return token


def reports_in(folder: Path) -> list[dict[str, Any]]:
    """What the nodes wrote."""
    return [read_json(file) for file in sorted(folder.glob("node.*.json"))]


def probe_in_job(
    scheduler: Any, machine: Machine, nodes: int, wait_s: float, machine_file: str
) -> list[dict[str, Any]]:
    """Submit the probe through the site's own adapter, wait for every node's answer, and clean up.

    Raises UserError with the site file and its key where the job is refused, or a line of its set-up fails.
    """
    folder = (FOLDER / time.strftime("%Y%m%d-%H%M%S")).absolute()
    folder.mkdir(parents=True)
    token = write_token(folder)
    tries = set_up(read_site(), scheduler.settings)
    request = probe_request(f"scalestudy-doctor.{token}", folder, machine, nodes)
    text = job_script(scheduler.settings, read_site(), tries, folder, token)
    request.script.write_text(text, encoding="utf-8")
    request.script.chmod(0o700)
    with submitted(scheduler, request, site_file(), machine_file) as job:
        _wait(folder, nodes, wait_s, lambda: in_queue(scheduler, job))
    _raise_failed_set_up(folder, tries)
    return reports_in(folder)


def _wait(folder: Path, nodes: int, wait_s: float, queued: Callable[[], str]) -> None:
    end = time.monotonic() + wait_s
    while time.monotonic() < end:
        keep_wanted(folder)
        os.listdir(folder)  # noqa: PTH208 - has a network file system look again
        if (folder / ENDED).exists() or len(list(folder.glob("node.*.json"))) >= nodes:
            return
        time.sleep(POLL_S)
    log = folder / "job.log"
    if log.exists():
        said, remedy = log.read_text(encoding="utf-8", errors="replace")[-2000:], "wait longer with --wait"
    else:
        said = f"the job has not started: {queued()}"
        remedy = "wait longer with --wait, use a less busy queue, or correct `request` in the site file"
    raise UserError(f"no answer after {wait_s:.0f} s: {said}", str(folder), remedy)


def _raise_failed_set_up(folder: Path, tries: Sequence[tuple[str, str]]) -> None:
    file = folder / FAILED_LINE
    if not file.exists():
        return
    status, _, command = file.read_text(encoding="utf-8").rstrip("\n").partition("\n")
    key = next((key for key, line in tries if line.strip() == command.strip()), "scheduler.setup")
    log = folder / "job.log"
    said = log.read_text(encoding="utf-8", errors="replace").strip() if log.exists() else ""
    last = f": {said.splitlines()[-1][:300]}" if said else ""
    host = next(iter((folder / "host").read_text(encoding="utf-8").split()), "the node")
    what = f"`{key}` fails on {host}: `{command}` ends with exit status {status}{last}"
    raise UserError(what, site_file(), f"correct `{key}` there; every job would fail like this")


def set_up(site: Site, settings: Any) -> list[tuple[str, str]]:
    """What a job does before its command, as (key of the site file, line of shell), and that the image can be used."""
    from snakemake_executor_plugin_multinode.software import hand_on, read_software, shell_line

    software = read_software(site.plain())
    tries = [(_key(line), line) for line in software.setup(os.environ.get("CONDA_EXE"))]
    tries += [("scheduler.setup", line) for line in settings.setup]
    words = software.container_words(Path.cwd())
    tries += [
        ("container.command" if words else "scheduler.wrapper", line) for line in hand_on(words or settings.wrapper)
    ]
    if site.container is not None:
        tries.append(("container.image", f"{shell_line(words)} true"))
        code = ["-c", "import scalestudy, snakemake, torch"]
        tries.append(("container.python", shell_line([*words, site.container.python, *code])))
    return tries


def _key(line: str) -> str:
    """The key of the site file that a line of its software comes from."""
    return "modules" if line.startswith(("module ", "type module")) else "conda"


def job_script(settings: Any, site: Site, tries: Sequence[tuple[str, str]], folder: Path, token: str) -> str:
    """The job: the site's software, each line of which is tried, then the probe on every node."""
    from snakemake_executor_plugin_multinode.software import SETUP_FAILED, checked, read_software, shell_line

    software = read_software(site.plain())
    command = ["scalestudy"] if software.python is None else [software.python, "-c", MAIN]
    words = [*software.container_words(Path.cwd()), *command, "doctor", "--in-job", str(folder), token]
    exports = [f"export {name}={shlex.quote(os.environ[name])}" for name in (SITE, "PYTHONPATH") if name in os.environ]
    place = shlex.quote(str(folder))
    return "\n".join(
        [
            "#!/bin/bash",
            guard(folder),
            f"export PATH={shlex.quote(str(Path(sys.executable).parent))}:$PATH",
            *exports,
            f"cd {shlex.quote(str(Path.cwd()))} || exit 1",
            f"hostname >{place}/host",
            f"setup_failed() {{ printf '%s\\n' \"$1\" \"$2\" >{place}/{FAILED_LINE}; touch {place}/{ENDED}; exit {SETUP_FAILED}; }}",
            checked([line for _, line in tries]),
            " ".join(filter(None, [shlex.join(settings.wrapper), shell_line(words)])),
            f"echo $? > {place}/{ENDED}",
            "",
        ]
    )  # fmt: skip


def on_nodes(folder: Path, token: str) -> int:
    """Inside the job, on its first node: one probe per node, by the launcher that runs use too."""
    from scalestudy.launch import launchers

    where = allocation(os.environ, read_site())
    hosts = where.hosts if where is not None else ()
    number = JobEnvironment.process_number_in_shell(where.launcher) if where is not None else "0"
    command = shlex.join([sys.executable, "-m", "scalestudy.cluster.doctor.on_node", str(folder), token])
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
    """pbsdsh comes back once its task has started, and the end of the job would end it: wait for what it writes."""
    for command in commands:  # PBS takes one request of a job at a time
        subprocess.run(command, env=environment, stdin=subprocess.DEVNULL, check=False)
    end = time.monotonic() + TASKS_S
    while len(list(folder.glob("node.*.json"))) < len(commands):
        if time.monotonic() > end:
            return 1
        time.sleep(POLL_S)
    return 0
