"""Small clusters on this host alone, as an ordinary test can start and stop them: an sshd, a Slurm of two nodes."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
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
    """Two sshds on loopback with keys of their own; yields a folder with an `ssh` that reaches them as alpha and beta.

    The wrapper only adds the client's configuration, for which ssh knows no variable. `runtime` is what the nodes have
    as XDG_RUNTIME_DIR; each has a TMPDIR of its own.
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
    alpha, beta = free_ports(2)
    (folder / "ssh_config").write_text(
        f"Host alpha\n  Port {alpha}\nHost beta\n  Port {beta}\n"
        f"Host alpha beta\n  HostName 127.0.0.1\n  IdentityFile {folder}/user\n  IdentitiesOnly yes\n"
        f"  StrictHostKeyChecking no\n  UserKnownHostsFile /dev/null\n  LogLevel ERROR\n"
    )
    wrapper = folder / "bin" / "ssh"
    wrapper.write_text(f'#!/bin/sh\nexec {shutil.which("ssh")} -F {folder}/ssh_config "$@"\n')
    wrapper.chmod(0o700)
    try:
        with _one_sshd(folder, "alpha", alpha, runtime), _one_sshd(folder, "beta", beta, runtime):
            yield folder / "bin"
    finally:
        if made:
            separation.rmdir()


@contextmanager
def _one_sshd(folder: Path, node: str, port: int, runtime: str) -> Iterator[None]:
    (folder / node).mkdir()
    configuration = folder / f"{node}.conf"
    configuration.write_text(
        f"Port {port}\nListenAddress 127.0.0.1\nHostKey {folder}/host\nAuthorizedKeysFile {folder}/authorized_keys\n"
        f"PidFile none\nStrictModes no\nUsePAM no\nPasswordAuthentication no\nKbdInteractiveAuthentication no\n"
        f"PermitRootLogin prohibit-password\nSetEnv XDG_RUNTIME_DIR={runtime} TMPDIR={folder}/{node}\n"
    )
    log = folder / f"{node}.log"
    command = [str(shutil.which("sshd", path="/usr/sbin:/usr/bin")), "-D", "-e", "-f", str(configuration)]
    with running(command, log) as daemon:
        wait_for_port(port, daemon, log)
        yield


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


# Two hosts, head and tail, with a network between them: each has a network namespace and a host name. What Grid Engine
# writes to /var lies in overlays; the kernel ends everything with the first process.
GRID_ENGINE = r"""
set -eu
mount --make-rprivate /
mount -t proc proc /proc
for place in var/lib/gridengine var/spool/gridengine; do
  mkdir -p "$BOX/upper/$place" "$BOX/work/$place"
  mount -t overlay overlay -o "lowerdir=/$place,upperdir=$BOX/upper/$place,workdir=$BOX/work/$place" "/$place"
done
mount -t tmpfs tmpfs /run
hostname head
ip link set lo up
ip netns add tail
ip link add head0 type veth peer name tail0 netns tail
ip addr add 10.78.0.1/24 dev head0
ip link set head0 up
ip -n tail addr add 10.78.0.2/24 dev tail0
ip -n tail link set tail0 up
ip -n tail link set lo up
printf '127.0.0.1 localhost\n10.78.0.1 head\n10.78.0.2 tail\n' > "$BOX/hosts"
mount --bind "$BOX/hosts" /etc/hosts
echo head > "$SGE_ROOT/default/common/act_qmaster"
sge_qmaster
admin() { runuser -u sgeadmin -- env SGE_ROOT="$SGE_ROOT" SGE_CELL="$SGE_CELL" qconf "$@"; }
for attempt in 1 2 3 4 5 6 7 8 9 10; do admin -sh && break; sleep 0.5; done
admin -am root || true
qconf -ah head,tail || true
qconf -as head
edit() { printf '#!/bin/sh\nsed -i %s "$1"\n' "$2" > "$BOX/edit"; chmod +x "$BOX/edit"; EDITOR="$BOX/edit" qconf "$1"; }
edit -mconf '-e "s/^min_uid.*/min_uid 0/" -e "s/^min_gid.*/min_gid 0/"'
edit -msconf '-e "s/^schedule_interval.*/schedule_interval 0:0:1/" -e "s/^flush_\(submit\|finish\)_sec.*/flush_\1_sec 1/"'
printf '%s\n' 'pe_name two' 'slots 99' 'user_lists NONE' 'xuser_lists NONE' 'start_proc_args NONE' 'stop_proc_args NONE' \
  'allocation_rule 2' 'control_slaves TRUE' 'job_is_first_task FALSE' 'urgency_slots min' 'accounting_summary FALSE' \
  'qsort_args NONE' > "$BOX/environment"
qconf -Ap "$BOX/environment"
for host in head tail; do
  printf '%s\n' "hostname $host" 'load_scaling NONE' 'complex_values NONE' 'user_lists NONE' 'xuser_lists NONE' \
    'projects NONE' 'xprojects NONE' 'usage_scaling NONE' 'report_variables NONE' > "$BOX/host"
  qconf -Ae "$BOX/host"
done
qconf -sq | sed -e 's/^qname.*/qname all.q/' -e 's/^hostlist.*/hostlist head tail/' -e 's/^pe_list.*/pe_list two/' \
  -e 's/^slots.*/slots 2/' -e 's/^load_thresholds.*/load_thresholds NONE/' > "$BOX/queue"
qconf -Aq "$BOX/queue"
sge_execd
nsenter --net=/run/netns/tail unshare --uts sh -c 'hostname tail; exec sge_execd'
touch "$BOX/ready"
while :; do sleep 3600 & wait $! || true; done
"""


@contextmanager
def grid_engine(folder: Path) -> Iterator[Callable[[str], str]]:
    """Grid Engine on two hosts; yields a function that runs a script as a job of two slots on each, and returns its output."""
    needs("sge_qmaster", "sge_execd", "qsub", "qrsh", "ip", "unshare", "nsenter", "runuser")
    if os.geteuid() != 0:
        pytest.skip("namespaces with their own hosts need root")
    environment = {**os.environ, "BOX": str(folder), "SGE_ROOT": "/var/lib/gridengine", "SGE_CELL": "default"}
    folder.mkdir(parents=True)
    with open(folder / "log", "wb") as log:
        box = subprocess.Popen(
            ["setpriv", "--pdeathsig", "KILL", "unshare", "--mount", "--net", "--uts", "--pid", "--fork", "--kill-child", "bash", "-c", GRID_ENGINE],
            env=environment, stdin=subprocess.DEVNULL, stdout=log, stderr=log,
        )  # fmt: skip
    try:
        deadline = time.monotonic() + 60
        while not (folder / "ready").exists():
            if box.poll() is not None or time.monotonic() > deadline:
                pytest.skip(f"no Grid Engine can be started here: {(folder / 'log').read_text()[-300:]}")
            time.sleep(0.1)
        (first,) = Path(f"/proc/{box.pid}/task/{box.pid}/children").read_text().split()

        def run(script: str) -> str:
            (folder / "job.sh").write_text(script)
            inside = ["nsenter", "-t", first, "-m", "-n", "-u", "-p", "--wd=" + str(folder)]
            submit = ["qsub", "-sync", "y", "-pe", "two", "4", "-V", "-cwd", "-j", "y", "-o", str(folder / "out")]
            subprocess.run([*inside, *submit, "-S", "/bin/bash", "job.sh"], env=environment, timeout=150, check=False)
            return (folder / "out").read_text()

        yield run
    finally:
        box.kill()
        box.wait()
