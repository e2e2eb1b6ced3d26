"""How an agent is started on every node of a job, by each launcher that sites have."""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from scalestudy.launch import mpi
from scalestudy.launch.allocation import mpi_by_srun
from scalestudy.spec.config import read_site
from scalestudy.training.job import Job

# Options of the job with which srun would give its one task per node less than the node.
SRUN_WITHOUT = ("SLURM_CPUS_PER_TASK", "SRUN_CPUS_PER_TASK", "SLURM_TRES_PER_TASK", "SLURM_GPUS_PER_TASK",
                "SLURM_NTASKS_PER_NODE", "SLURM_NTASKS", "SLURM_NPROCS", "SLURM_DISTRIBUTION", "SLURM_CPU_BIND",
                "SLURM_MEM_PER_CPU", "SLURM_MEM_PER_GPU", "SLURM_MEM_PER_NODE")  # fmt: skip
ALL_OF_THE_JOB = ("--cpu-bind=none", "--mem=0", "--overlap", "--kill-on-bad-exit=1", "--input=none", "--unbuffered")
"""Options by which srun's tasks have all that the job has on a node; binding.py does the binding."""
SSH = ("ssh", "-n", "-T", "-x", "-o", "BatchMode=yes", "-o", "ConnectTimeout=30", "-o", "ServerAliveInterval=10")
"""It never prompts."""
AGENT = "from scalestudy.cli import main; main()"
WRAPPER = "MULTINODE_WRAPPER"
"""Variable with the shell words that run a command in the job's image; the executor's job script sets it."""
IMAGE_FOLDER = Path("/.singularity.d")
"""A folder that every image has in which Apptainer runs something, and no node."""

# The environment that processes on other nodes inherit. Variables that name a host, a session or a job stay here. Grid
# Engine does not pass on LD_LIBRARY_PATH, PBS and ssh pass on nothing: all of it stands in the script that nodes run.
NAMES = (
    "PATH", "LD_LIBRARY_PATH", "LD_PRELOAD", "VIRTUAL_ENV", "LANG", "TZ",
    # proxies, by their names in both spellings; certificates of the tools that read addresses
    "http_proxy", "https_proxy", "ftp_proxy", "all_proxy", "no_proxy",
    "HTTP_PROXY", "HTTPS_PROXY", "FTP_PROXY", "ALL_PROXY", "NO_PROXY",
    "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE",
)  # fmt: skip
PREFIXES = (
    "PYTHON", "CONDA_", "LC_", "SCALESTUDY_", "MULTINODE_", "TORCH", "PYTORCH_", "HOROVOD_",
    "OMP_", "MKL_", "KMP_", "OPENBLAS_", "MALLOC_", "CUDA_",
    # object stores
    "AWS_", "SSL_", "GOOGLE_", "AZURE_",
    # communication: NCCL, gloo, UCX, libfabric, Omni-Path, Open MPI and its launcher, Intel MPI, MPICH, mpi4py
    "NCCL_", "GLOO_", "UCX_", "FI_", "PSM2_", "PSM3_", "HFI_", "OMPI_MCA_", "PRTE_", "PMIX_MCA_", "I_MPI_", "MPICH_",
    "MPIR_CVAR_", "MPI4PY_",
)  # fmt: skip
NODE_VARIABLE = "CUDA_VISIBLE_DEVICES"
"""Each node has its own."""


def forwarded(environment: Mapping[str, str], more: Sequence[str] = ()) -> dict[str, str]:
    """The variables that go along; `more` are names of the site, `NAME*` all that begin so."""
    prefixes = PREFIXES + tuple(name.removesuffix("*") for name in more if name.endswith("*"))
    names = {*NAMES, *more}
    return {
        name: value
        for name, value in sorted(environment.items())
        if (name in names or name.startswith(prefixes)) and name != NODE_VARIABLE and name.isidentifier()
    }


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
    script, lines = folder / "node.sh", ["#!/bin/sh"]
    if wrapper := environment.get(WRAPPER):
        again = f'exec {wrapper} /bin/sh {shlex.quote(str(script))} "$@"'
        lines += [f"if [ ! -d {IMAGE_FOLDER} ]; then", f"    {again}", "fi"]
    kept = forwarded(environment, read_site().environment)
    lines.append(f"cd {shlex.quote(str(Path.cwd()))} || exit 1")
    lines += [f"export {name}={shlex.quote(value)}" for name, value in kept.items()]
    descriptor = os.open(script, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o700)
    with open(descriptor, "w", encoding="utf-8") as stream:
        stream.write("\n".join([*lines, command]) + "\n")
    return script


def commands(launcher: str, job: Job, script: Path) -> list[list[str]]:
    """The commands that start all agents. Those of `mpirun` have one process each, all others those of one host."""
    if launcher != "mpirun":
        return node_commands(launcher, job.hosts, script, away=job.away)
    site, each = read_site(), len(job.on_host(0))
    hosts = job.hosts if len(job.hosts) > 1 or job.away else ()
    if not mpi_by_srun(site):
        # Every process of the run, rank after rank on node after node.
        return [[*mpi.words("mpirun", job.processes, each, hosts), "/bin/sh", str(script)]]
    # Likewise; they find each other through srun's PMI.
    where = [f"--nodelist={','.join(hosts)}"] if hosts else []
    return [["srun", f"--mpi={site.srun_mpi}", f"--nodes={len(job.hosts)}", f"--ntasks={job.processes}",
             f"--ntasks-per-node={each}", "--distribution=block", *where, *ALL_OF_THE_JOB, *site.srun_options,
             "/bin/sh", str(script)]]  # fmt: skip


def node_commands(launcher: str, hosts: Sequence[str], script: Path, *, away: bool = False) -> list[list[str]]:
    """The commands that start a script once on every node, with the node's index as its argument or in its environment.

    The first node is this one, unless it is `away`.
    """
    run, count = ["/bin/sh", str(script)], len(hosts)
    here = [] if away else [[*run, "0"]]
    others = list(enumerate(hosts))[len(here) :]
    match launcher:
        case "srun":
            return [["srun", f"--nodes={count}", f"--ntasks={count}", "--ntasks-per-node=1",
                     "--nodelist=" + ",".join(hosts), *ALL_OF_THE_JOB, *read_site().srun_options, *run]]  # fmt: skip
        case "mpiexec":
            return [[*mpi.words("mpiexec", count, 1, hosts), *run]]
        case "pbsdsh":
            # One after the other: `-o` returns once the task has started. Its exit status says nothing, with or without.
            # `-n` counts lines of the node file, which has a host once per slot.
            lines = Path(os.environ["PBS_NODEFILE"]).read_text(encoding="utf-8").split()
            return [["pbsdsh", "-o", "-n", str(lines.index(host)), "--", *run, str(index)]
                    for index, host in enumerate(hosts)]  # fmt: skip
        case "qrsh":
            return [*here, *(["qrsh", "-inherit", "-nostdin", host, str(script), str(index)] for index, host in others)]
        case "ssh":
            # The remote shell, whichever it is, gets quoted words.
            return [*here, *([*SSH, host, f"{shlex.join(run)} {index}"] for index, host in others)]
    raise AssertionError(launcher)


def environment_for(launcher: str) -> dict[str, str]:
    """Return the environment of the launcher itself."""
    left_out = SRUN_WITHOUT if launcher == "srun" else ()
    return {name: value for name, value in os.environ.items() if name not in left_out}
