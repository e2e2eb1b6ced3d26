"""How an agent is started on every node of a job, by each launcher that sites have."""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from scalestudy.launch import mpi, warm
from scalestudy.launch.env_forwarding import forwarded
from scalestudy.launch.job_environment import JobEnvironment
from scalestudy.spec.config import Site, read_site
from scalestudy.training.job import Job

# Options of the job with which srun would give its one task per node less than the node.
SRUN_WITHOUT = ("SLURM_CPUS_PER_TASK", "SRUN_CPUS_PER_TASK", "SLURM_TRES_PER_TASK", "SLURM_GPUS_PER_TASK",
                "SLURM_NTASKS_PER_NODE", "SLURM_NTASKS", "SLURM_NPROCS", "SLURM_DISTRIBUTION", "SLURM_CPU_BIND",
                "SLURM_MEM_PER_CPU", "SLURM_MEM_PER_GPU", "SLURM_MEM_PER_NODE")  # fmt: skip
AGENT = "from scalestudy.cli import main; main()"
WRAPPERS = ("MULTINODE_WRAPPER", "SCALESTUDY_WRAPPER")
"""Variable with the shell words that run a command in the job's image; the executor's job script sets it. The second name
is that of jobs which an earlier version of the executor has submitted."""
OF_IMAGE = Path("/.singularity.d")
"""A folder that every image has in which Apptainer runs something, and no node."""


def write_script(folder: Path, environment: Mapping[str, str] = os.environ, *, by_mpirun: bool = False) -> Path:
    """The script that starts an agent on a node, or each of those that mpirun starts."""
    if by_mpirun:
        environment = {**environment, **mpi.variables_of_ranks(folder, environment)}
    agent = f"exec {shlex.quote(sys.executable)} -c '{AGENT}' agent {shlex.quote(str(folder))} \"$@\""
    return node_script(folder, agent, environment)


def node_script(folder: Path, command: str, environment: Mapping[str, str] = os.environ) -> Path:
    """The script that every node runs: into the job's image, folder, environment, software, then `command`, a line of shell.

    Its arguments need no quotes, which qrsh loses. A launcher's process begins outside of the image, on the first node
    too where a daemon starts it. Only the user can read the script: the environment may hold keys of object stores.
    """
    kept = forwarded(environment, read_site().environment)
    if not warm.wanted():
        kept["SCALESTUDY_WARM"] = "0"  # nothing of a job outlives it on a node, whose environment may not name the job
    script = folder / "node.sh"
    lines = [
        "#!/bin/sh",
        *_into_image(next((environment[name] for name in WRAPPERS if environment.get(name)), None), script),
        f"cd {shlex.quote(str(Path.cwd()))} || exit 1",
        *(f"export {name}={shlex.quote(value)}" for name, value in kept.items()),
        command,
    ]
    descriptor = os.open(script, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o700)
    with open(descriptor, "w", encoding="utf-8") as stream:
        stream.write("\n".join(lines) + "\n")
    return script


def _into_image(wrapper: str | None, script: Path) -> list[str]:
    if not wrapper:
        return []
    again = f'exec {wrapper} /bin/sh {shlex.quote(str(script))} "$@"'
    return [f"if [ ! -d {OF_IMAGE} ]; then", f"    {again}", "fi"]


def commands(launcher: str, job: Job, script: Path) -> list[list[str]]:
    """The commands that start all agents. Those of `mpirun` have one process each, all others those of one host."""
    if launcher != "mpirun":
        return node_commands(launcher, job.hosts, script, away=job.away)
    site = read_site()
    return [srun_of_ranks(job, script, site) if mpi_by_srun(site) else mpirun(job, script)]


def node_commands(launcher: str, hosts: Sequence[str], script: Path, *, away: bool = False) -> list[list[str]]:
    """The commands that start a script once on every node, with the node's index as its argument or in its environment.

    The first node is this one, unless it is `away`.
    """
    here = [] if away else [["/bin/sh", str(script), "0"]]
    others = list(enumerate(hosts))[len(here) :]
    match launcher:
        case "srun":
            return [srun(hosts, script, read_site().srun_options)]
        case "mpiexec":
            return [mpiexec(hosts, script)]
        case "pbsdsh":
            # One after the other: `-o` returns once the task has started. Its exit status says nothing, with or without.
            return [["pbsdsh", "-o", "-n", str(index), "--", "/bin/sh", str(script), str(host)]
                    for host, index in enumerate(JobEnvironment().first_lines(tuple(hosts)))]  # fmt: skip
        case "qrsh":
            return [*here, *(["qrsh", "-inherit", "-nostdin", host, str(script), str(index)] for index, host in others)]
        case "ssh":
            return [*here, *(ssh(host, index, script) for index, host in others)]
    raise AssertionError(launcher)


ALL_OF_THE_JOB = ("--cpu-bind=none", "--mem=0", "--overlap", "--kill-on-bad-exit=1", "--input=none", "--unbuffered")
"""Options by which srun's tasks have all that the job has on a node; binding.py does the binding."""


def srun(hosts: Sequence[str], script: Path, options: Sequence[str] = ()) -> list[str]:
    """One task per node; `options` are the site's."""
    count = str(len(hosts))
    return ["srun", f"--nodes={count}", f"--ntasks={count}", "--ntasks-per-node=1", "--nodelist=" + ",".join(hosts),
            *ALL_OF_THE_JOB, *options, "/bin/sh", str(script)]  # fmt: skip


def mpi_by_srun(site: Site, environment: Mapping[str, str] = os.environ) -> bool:
    """Whether ranks that speak MPI are started by srun here, in place of mpirun."""
    return site.srun_mpi is not None and JobEnvironment(environment).is_of_slurm


def srun_of_ranks(job: Job, script: Path, site: Site) -> list[str]:
    """Every process of the run, rank after rank on node after node, which find each other through srun's PMI."""
    nodes, each = len(job.hosts), len(job.on_host(0))
    where = ["--nodelist=" + ",".join(job.hosts)] if nodes > 1 or job.away else []
    return ["srun", f"--mpi={site.srun_mpi}", f"--nodes={nodes}", f"--ntasks={job.processes}",
            f"--ntasks-per-node={each}", "--distribution=block", *where, *ALL_OF_THE_JOB, *site.srun_options,
            "/bin/sh", str(script)]  # fmt: skip


def ssh(host: str, index: int, script: Path) -> list[str]:
    """One connection; it never prompts. The remote shell, whichever it is, gets quoted words."""
    options = ["-n", "-T", "-x", "-o", "BatchMode=yes", "-o", "ConnectTimeout=30", "-o", "ServerAliveInterval=10"]
    return ["ssh", *options, host, f"/bin/sh {shlex.quote(str(script))} {index}"]


def mpiexec(hosts: Sequence[str], script: Path) -> list[str]:
    """One process per node."""
    return [*mpi.words("mpiexec", len(hosts), 1, hosts), "/bin/sh", str(script)]


def mpirun(job: Job, script: Path) -> list[str]:
    """Every process of the run, rank after rank on node after node; where they run is decided by `binding.py`."""
    hosts = job.hosts if len(job.hosts) > 1 or job.away else ()
    return [*mpi.words("mpirun", job.processes, len(job.on_host(0)), hosts), "/bin/sh", str(script)]


def environment_for(launcher: str, environment: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Return the environment of the launcher itself."""
    left_out = SRUN_WITHOUT if launcher == "srun" else ()
    return {name: value for name, value in environment.items() if name not in left_out}
