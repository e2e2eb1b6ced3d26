"""`scalestudy doctor`: what a site has on the nodes where runs run, what is missing, and what to do about it."""

from __future__ import annotations

import os
import secrets
import shlex
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from scalestudy.cluster.probe import main as probe_here
from scalestudy.cluster.probe_request import guard, keep_wanted, probe_request, submitted
from scalestudy.errors import UserError
from scalestudy.files import read_json
from scalestudy.launch.allocation import allocation
from scalestudy.launch.job_environment import JobEnvironment
from scalestudy.spec.config import Config, read_machine, read_site
from scalestudy.spec.machine import Machine

FOLDER = Path(".scalestudy/doctor")
POLL_S = 2.0
TASKS_S = 420.0
"""Within the job's walltime, and longer than a probe's own limits."""
SKEW_S = 1.0
"""Clocks further apart than this make a deadline wrong."""


@dataclass(frozen=True)
class Finding:
    """One finding; `remedy` is empty where nothing is wrong."""

    what: str
    remedy: str = ""


def examine(config: Config, profile: str, nodes: int, wait_s: float) -> tuple[list[dict[str, Any]], list[Finding]]:
    """What each node has, and the findings. With a profile without a scheduler, this host is checked."""
    machine = read_machine(config.machine)
    if not read_site().scheduler:
        here = Finding(f"{profile} submits nothing: runs start on this machine, which is examined")
        reports = _here()
        return reports, [here, *node_findings(reports, 1, machine)]
    scheduler, findings = chosen_scheduler()
    if scheduler is None:
        return [], findings
    if forgets := scheduler.forgets():
        findings.append(Finding(forgets))
    try:
        reports = _in_job(scheduler, machine, nodes, wait_s)
    except UserError as error:
        return [], [*findings, Finding(error.what, error.remedy)]
    return reports, [*findings, *node_findings(reports, nodes, machine)]


def chosen_scheduler() -> tuple[Any, list[Finding]]:
    """The batch system that the executor would use here, and what it says about that; None where it can use none."""
    from snakemake_interface_common.exceptions import WorkflowError

    from snakemake_executor_plugin_scalestudy import executor

    site = os.environ.get("SCALESTUDY_SITE", "")
    notes: list[str] = []
    try:
        scheduler = executor.chosen_scheduler(Path(site), notes.append)
    except WorkflowError as error:
        return None, [Finding(str(error), "go to a login node, load the scheduler's module, or use another profile")]
    remedy = "if it is a front end of Slurm, use profiles/slurm, or set `kind: slurm` and its request"
    return scheduler, [Finding(note, remedy) for note in notes]


def node_findings(reports: Sequence[dict[str, Any]], nodes: int, machine: Machine) -> Iterator[Finding]:
    """What the nodes lack, each item once, with the nodes that lack it."""
    if len(reports) < nodes:
        yield Finding(
            f"{len(reports)} of {nodes} nodes answered",
            "see the job's log; set `launcher` in site.yaml to how a job reaches its other nodes (srun, pbsdsh, qrsh, mpiexec, ssh)",
        )
    checks: list[tuple[Callable[[dict[str, Any]], bool], str, str]] = [
        (lambda r: not r["shared"], "does not see this folder", "put the project on storage that all nodes share"),
        (lambda r: "error" in r["torch"], "cannot import torch", "activate the environment in `scheduler.setup` of site.yaml, or name a container in `scheduler.wrapper`"),
        (lambda r: "error" in r["scratch"], "cannot write its scratch", "set `scratch` in site.yaml to the node's own disk"),
        (lambda r: r["mpi"] is None, "has no mpirun: strategies that need MPI will be skipped", "load an Open MPI module in `scheduler.setup`"),
        (lambda r: machine.device == "cuda" and not _devices(r), "has no GPU that torch can use", "check `gpus` in the request of site.yaml, the driver, and that torch is a CUDA build"),
        (lambda r: r["torch"].get("accelerator", "cuda") != "cuda", "has an accelerator of a type that runs cannot use", "set `device: cpu` to measure the CPU"),
        (lambda r: bool(machine.devices_per_node) and machine.device == "cuda" and 0 < _devices(r) < (machine.devices_per_node or 0), "has fewer GPUs than the machine file says", "correct `devices_per_node`, or request whole nodes"),
        (lambda r: abs(r["skew_s"] or 0.0) > SKEW_S, "has a clock that differs by more than a second from that of the shared storage", "tell the administrators: deadlines depend on the clock"),
        (lambda r: not all(r["data_roots"].values()), "lacks a folder of `data_roots`", "correct it in site.yaml, or mount it on the nodes"),
    ]  # fmt: skip
    for wrong, what, remedy in checks:
        hosts = list(dict.fromkeys(report["host"] for report in reports if wrong(report)))
        if hosts:
            yield Finding(f"{', '.join(hosts[:5])}{' and more' if len(hosts) > 5 else ''} {what}", remedy)
    versions = {str((r["torch"].get("version"), r["python"]["version"])) for r in reports if "error" not in r["torch"]}
    if len(versions) > 1:
        yield Finding(
            f"nodes have different versions: {', '.join(sorted(versions))}", "use one environment on all nodes"
        )


def _devices(report: dict[str, Any]) -> int:
    return int(report["torch"].get("devices") or 0)


def _clock(report: dict[str, Any]) -> str:
    skew = report["skew_s"]
    return "its clock is not known" if skew is None else f"its clock is {skew:+.1f} s from the storage's"


def _here() -> list[dict[str, Any]]:
    with tempfile.TemporaryDirectory(prefix="scalestudy-doctor-") as name:
        token = _token(Path(name))
        probe_here(Path(name), token, "0")
        return _reports(Path(name))


def _token(folder: Path) -> str:
    token = secrets.token_hex(8)
    (folder / "token").write_text(token, encoding="utf-8")
    return token


def _reports(folder: Path) -> list[dict[str, Any]]:
    """What the nodes wrote."""
    return [read_json(file) for file in sorted(folder.glob("node.*.json"))]


def _in_job(scheduler: Any, machine: Machine, nodes: int, wait_s: float) -> list[dict[str, Any]]:
    """Submit the probe through the site's own adapter, wait for every node's answer, and clean up."""
    folder = (FOLDER / time.strftime("%Y%m%d-%H%M%S")).absolute()
    folder.mkdir(parents=True)
    token = _token(folder)
    request = probe_request(f"scalestudy-doctor.{token}", folder, machine, nodes)
    request.script.write_text(job_script(scheduler.settings, folder, token), encoding="utf-8")
    request.script.chmod(0o700)
    with submitted(scheduler, request, os.environ.get("SCALESTUDY_SITE", "site.yaml")):
        _wait(folder, nodes, wait_s)
    return _reports(folder)


def _wait(folder: Path, nodes: int, wait_s: float) -> None:
    end = time.monotonic() + wait_s
    while time.monotonic() < end:
        keep_wanted(folder)
        os.listdir(folder)  # noqa: PTH208 - has a network file system look again
        if (folder / "ended").exists() or len(list(folder.glob("node.*.json"))) >= nodes:
            return
        time.sleep(POLL_S)
    log = folder / "job.log"
    said = log.read_text(encoding="utf-8", errors="replace")[-2000:] if log.exists() else "the job has not started"
    raise UserError(
        f"no answer after {wait_s:.0f} s: {said}", str(folder), "wait longer with --wait, or use a less busy queue"
    )


def job_script(settings: Any, folder: Path, token: str) -> str:
    """The job: the site's setup, then the probe on every node."""
    command = [*settings.wrapper, "scalestudy", "doctor", "--in-job", str(folder), token]
    exports = [
        f"export {name}={shlex.quote(os.environ[name])}"
        for name in ("SCALESTUDY_SITE", "PYTHONPATH")
        if name in os.environ
    ]
    return "\n".join(
        [
            "#!/bin/bash",
            guard(folder),
            f"export PATH={shlex.quote(str(Path(sys.executable).parent))}:$PATH",
            *exports,
            f"cd {shlex.quote(str(Path.cwd()))} || exit 1",
            *settings.setup,
            shlex.join(command),
            f"echo $? > {shlex.quote(str(folder / 'ended'))}",
            "",
        ]
    )  # fmt: skip


def on_nodes(folder: Path, token: str) -> int:
    """Inside the job, on its first node: one probe per node, by the launcher that runs use too."""
    from scalestudy.launch import launchers

    where = allocation(os.environ, read_site())
    hosts = where.hosts if where is not None else ()
    number = JobEnvironment.process_number_in_shell(where.launcher) if where is not None else "0"
    script = folder / "node.sh"
    script.write_text(
        "#!/bin/sh\n"
        + "".join(f"export {name}={shlex.quote(os.environ[name])}\n" for name in ("PATH", "PYTHONPATH", "SCALESTUDY_SITE", "LD_LIBRARY_PATH") if name in os.environ)
        + f"cd {shlex.quote(str(Path.cwd()))} || exit 1\n"
        + f"exec {shlex.quote(sys.executable)} -m scalestudy.cluster.on_node {shlex.quote(str(folder))} {token} "
        + f'"${{1:-{number}}}"\n',
        encoding="utf-8",
    )  # fmt: skip
    script.chmod(0o700)
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


def text(reports: Sequence[dict[str, Any]], findings: Sequence[Finding]) -> str:
    """A paragraph per node, then what is to be done."""
    lines = []
    for report in reports:
        torch, scratch = report["torch"], report["scratch"]
        lines += [
            f"{report['host']}:",
            f"  Python   {report['python']['version']}, {report['python']['executable']}",
            f"  torch    {torch.get('error') or torch['version']}, CUDA {torch.get('cuda') or 'none'}, NCCL {torch.get('nccl') or 'not in use'}",
            f"  GPUs     {_devices(report)} seen by torch{f' ({name})' if (name := torch.get('device_name')) else ''}; nvidia-smi: {report['nvidia'] or 'none'}",
            f"  MPI      {report['mpi'] or 'none'}; mpi4py {report['mpi4py'] if isinstance(report['mpi4py'], str) else 'none'}",
            f"  node     {report['cores']} cores for this job, {report['memory_gib']} GiB",
            f"  fabric   {', '.join(report['fabric']) or 'loopback alone'}",
            f"  scratch  {scratch['folder']}: " + (scratch.get("error") or f"{scratch['free_gib']} GiB free"),
            f"  shared   {'sees' if report['shared'] else 'does not see'} this folder; {_clock(report)}",
            *(f"  data     {name}: {'there' if there else 'missing'}" for name, there in report["data_roots"].items()),
        ]
    for finding in findings:
        lines.append(
            f"{'!' if finding.remedy else '-'} {finding.what}" + (f"\n    {finding.remedy}" if finding.remedy else "")
        )
    if reports and not any(finding.remedy for finding in findings):
        lines.append("Nothing is missing.")
    return "\n".join(lines)
