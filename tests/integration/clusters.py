"""Small clusters on this host alone, as an ordinary test can start and stop them: an sshd, a Slurm of two nodes."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

SLURM = """\
ClusterName=test
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={port}
SlurmUser={user}
SlurmdUser={user}
AuthType=auth/none
CredType=cred/none
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/%n.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/%n.log
SlurmdParameters=config_overrides
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
JobCompType=jobcomp/none
AccountingStorageType=accounting_storage/none
MpiDefault=none
ReturnToService=2
KillWait=5
NodeName=alpha NodeHostname={host} NodeAddr=127.0.0.1 Port={alpha} CPUs=8 RealMemory=1000
NodeName=beta NodeHostname={host} NodeAddr=127.0.0.1 Port={beta} CPUs=8 RealMemory=1000
PartitionName=all Nodes=ALL Default=YES MaxTime=01:00:00
"""


def needs(*programs: str) -> None:
    """Leave the test out where a program is missing."""
    path = f"{os.environ['PATH']}:/usr/sbin"
    for program in programs:
        if shutil.which(program, path=path) is None:
            pytest.skip(f"there is no `{program}` here (envs/debian-packages.txt)")


def free_ports(count: int) -> list[int]:
    """Ports that are free now."""
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [int(one.getsockname()[1]) for one in sockets]
    for one in sockets:
        one.close()
    return ports


@contextmanager
def running(command: list[str], log: Path, **environment: str) -> Iterator[subprocess.Popen[bytes]]:
    """A daemon in the foreground, ended with the block."""
    with open(log, "wb") as output:
        daemon = subprocess.Popen(command, stdout=output, stderr=output, env={**os.environ, **environment})
    try:
        yield daemon
    finally:
        daemon.terminate()
        try:
            daemon.wait(10)
        except subprocess.TimeoutExpired:
            daemon.kill()
            daemon.wait()


def wait_for_port(port: int, daemon: subprocess.Popen[bytes], log: Path) -> None:
    """Until something listens there."""
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline and daemon.poll() is None:
        with suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
            return
        time.sleep(0.05)
    raise AssertionError(log.read_text(errors="replace"))


@contextmanager
def sshd(folder: Path, runtime: str) -> Iterator[Path]:
    """An sshd on loopback with keys of its own; yields a folder with an `ssh` that reaches it as alpha and as beta.

    The wrapper only adds the client's configuration, for which ssh knows no variable. `runtime` is what the nodes have
    as XDG_RUNTIME_DIR.
    """
    needs("sshd", "ssh", "ssh-keygen")
    separation = Path("/run/sshd")  # a root's sshd insists on this empty folder
    made = os.geteuid() == 0 and not separation.exists()
    if made:
        separation.mkdir(mode=0o755)
    (folder / "bin").mkdir(parents=True)
    for key in ("host", "user"):
        subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(folder / key)], check=True)
    shutil.copy(folder / "user.pub", folder / "authorized_keys")
    (port,) = free_ports(1)
    (folder / "sshd_config").write_text(
        f"Port {port}\nListenAddress 127.0.0.1\nHostKey {folder}/host\nAuthorizedKeysFile {folder}/authorized_keys\n"
        f"PidFile none\nStrictModes no\nUsePAM no\nPasswordAuthentication no\nKbdInteractiveAuthentication no\n"
        f"PermitRootLogin prohibit-password\nSetEnv XDG_RUNTIME_DIR={runtime}\n"
    )
    (folder / "ssh_config").write_text(
        f"Host alpha beta\n  HostName 127.0.0.1\n  Port {port}\n  IdentityFile {folder}/user\n  IdentitiesOnly yes\n"
        f"  StrictHostKeyChecking no\n  UserKnownHostsFile /dev/null\n  LogLevel ERROR\n"
    )
    wrapper = folder / "bin" / "ssh"
    wrapper.write_text(f'#!/bin/sh\nexec {shutil.which("ssh")} -F {folder}/ssh_config "$@"\n')
    wrapper.chmod(0o700)
    log = folder / "sshd.log"
    command = [str(shutil.which("sshd", path="/usr/sbin:/usr/bin")), "-D", "-e", "-f", str(folder / "sshd_config")]
    try:
        with running(command, log) as daemon:
            wait_for_port(port, daemon, log)
            yield folder / "bin"
    finally:
        if made:
            separation.rmdir()


@contextmanager
def slurm(folder: Path) -> Iterator[dict[str, str]]:
    """A controller and two nodes, alpha and beta, on this host; yields the environment in which its commands work."""
    needs("slurmctld", "slurmd", "srun", "salloc", "scontrol")
    for name in ("state", "alpha", "beta"):
        (folder / name).mkdir(parents=True)
    control, alpha, beta = free_ports(3)
    user = subprocess.run(["id", "-un"], capture_output=True, text=True, check=True).stdout.strip()
    config = folder / "slurm.conf"
    host = socket.gethostname().partition(".")[0]
    config.write_text(SLURM.format(host=host, user=user, port=control, alpha=alpha, beta=beta, folder=folder))
    environment = {"SLURM_CONF": str(config)}
    with (
        running(["/usr/sbin/slurmctld", "-D"], folder / "controller.out", **environment) as controller,
        running(["/usr/sbin/slurmd", "-D", "-N", "alpha"], folder / "alpha.out", **environment),
        running(["/usr/sbin/slurmd", "-D", "-N", "beta"], folder / "beta.out", **environment),
    ):
        wait_for_port(control, controller, folder / "controller.out")
        deadline = time.monotonic() + 30
        while time.monotonic() < deadline:
            done = subprocess.run(["sinfo", "-h", "-o", "%T %D"], env={**os.environ, **environment}, capture_output=True, text=True, check=False)  # fmt: skip
            if done.stdout.strip() == "idle 2":
                break
            time.sleep(0.2)
        else:
            raise AssertionError((folder / "slurmctld.log").read_text(errors="replace"))
        yield environment
