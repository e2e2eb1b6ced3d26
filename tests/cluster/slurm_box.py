"""Slurm in a box: four nodes (or eight) of 16 CPUs, 4 GB and 4 GPUs each, on one host. CPUs, memory and GPUs are a fiction."""

from __future__ import annotations

import re
import shutil
from pathlib import Path
from typing import ClassVar

from tests.cluster.box import USER, Box, Unavailable

COMMANDS = ("munged", "slurmctld", "slurmd", "sbatch", "squeue", "scontrol", "scancel")
CONF = """\
ClusterName=box
SlurmctldHost=box(10.77.0.1)
SlurmUser=root
SlurmdUser=root
SlurmctldPort=17900
SlurmdParameters=config_overrides
ProctrackType=proctrack/linuxproc
TaskPlugin={task}
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU_Memory
DefMemPerCPU=250
GresTypes=gpu
ReturnToService=2
JobCompType=jobcomp/none
AccountingStorageType=accounting_storage/none
MpiDefault=none
KillWait=8
MinJobAge=300
SchedulerParameters=batch_sched_delay=0,sched_interval=2,sched_min_interval=0,bf_interval=2
SlurmdTimeout=120
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool/%n
SlurmdPidFile={folder}/%n.pid
SlurmctldPidFile={folder}/slurmctld.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/%n.log
PreemptType=preempt/partition_prio
PreemptMode=CANCEL
NodeName=node[1-{nodes}] NodeHostname=box NodeAddr=10.77.0.1 Port=[17901-1790{nodes}] CPUs=16 Boards=1 SocketsPerBoard=1 CoresPerSocket=16 ThreadsPerCore=1 RealMemory=4000 Gres=gpu:4
PartitionName=gpu Nodes=ALL Default=YES DefaultTime=00:10:00 MaxTime=01:00:00 PriorityTier=1
PartitionName=urgent Nodes=ALL MaxTime=01:00:00 PriorityTier=10
"""

# Version 1 of the kernel's control groups; on a host that has only version 2, memory is not limited.
CGROUP = """\
CgroupPlugin=cgroup/v1
CgroupMountpoint=/sys/fs/cgroup
ConstrainCores=no
ConstrainDevices=no
ConstrainRAMSpace=yes
ConstrainSwapSpace=yes
AllowedSwapSpace=0
"""


class SlurmBox(Box):
    """A box with a running Slurm."""

    changes: ClassVar[dict[str, str]] = {}
    """Values of slurm.conf that are other than above."""
    nodes: ClassVar[int] = 4

    def __init__(self, repository: Path) -> None:
        if any(shutil.which(command) is None for command in COMMANDS):
            raise Unavailable("needs Slurm (envs/debian-packages.txt)")
        super().__init__(repository)

    def _start(self) -> None:
        folder = self.folder / "slurm"
        for part in ("state", "spool", "gpus"):
            (folder / part).mkdir(parents=True)
        self.limits_memory = Path("/sys/fs/cgroup/memory").is_dir()
        (folder / "cgroup.conf").write_text(CGROUP)
        task = "task/cgroup" if self.limits_memory else "task/none"
        self.configure(CONF.format(folder=folder, task=task, nodes=self.nodes), **self.changes)
        devices = f"NodeName=node[1-{self.nodes}] Name=gpu File={folder}/gpus/gpu[0-3]"
        (folder / "gres.conf").write_text(f"AutoDetect=off\n{devices}\n")
        for number in range(4):
            self.must(["mknod", "-m", "666", f"{folder}/gpus/gpu{number}", "c", "1", "3"])
        self.environment["SLURM_CONF"] = str(folder / "slurm.conf")
        self.must(["bash", "-c", "mkdir -p /run/munge && chown munge: /run/munge"])
        self.must(["bash", "-c", "[ -e /etc/munge/munge.key ] || mungekey --create"])
        self.must(["runuser", "-u", "munge", "--", "munged"])
        self.start_controller()
        for number in range(1, self.nodes + 1):
            self.must(["slurmd", "-N", f"node{number}"])
        self.until(["sinfo", "-h", "-o", "%D %T"], f"{self.nodes} idle")

    def configure(self, text: str, **values: str) -> None:
        """Write slurm.conf with other values."""
        for key, value in values.items():
            text = re.sub(rf"^{key}=.*\n", "", text, flags=re.MULTILINE)
            text = f"{key}={value}\n{text}"
        (self.folder / "slurm" / "slurm.conf").write_text(text)

    def kill_job_script(self, job: str) -> None:
        """SIGKILL to a job's script alone."""
        self.kill_script(f"/job{int(job):05}/slurm_script", "slurmstepd")

    def start_controller(self) -> None:
        """Start the controller, and wait until it answers."""
        self.must(["slurmctld"])
        self.until(["scontrol", "ping"], "is UP")

    def stop_controller(self) -> None:
        """End the controller as an administrator does; jobs go on."""
        pid = (self.folder / "slurm" / "slurmctld.pid").read_text().strip()
        self.must(["kill", pid])
        self.until(["kill", "-0", pid], "No such process", 20)


class HarshSlurmBox(SlurmBox):
    """A Slurm as unfriendly as sites' are: it keeps no accounts, and forgets a job two seconds after its end."""

    # Job ids of their own: control groups of two boxes of one process would meet under one user.
    changes: ClassVar[dict[str, str]] = {"MinJobAge": "2", "FirstJobId": "50001"}
    nodes: ClassVar[int] = 8

    def connect_nodes(self) -> None:
        """An address on an interface that is no loopback, by which Open MPI starts its daemons on other nodes."""
        self.must(["ip", "link", "add", "cable0", "type", "veth", "peer", "name", "cable1"])
        self.must(["ip", "addr", "add", "10.79.0.1/24", "dev", "cable0"])
        for end in ("cable0", "cable1"):
            self.must(["ip", "link", "set", end, "up"])

    def start_accounting(self, jobs_per_user: int) -> None:
        """From now on there are accounts, and each user may have so many jobs, queued and running.

        A database, its daemon, and the controller started anew. Raises Unavailable where their Debian packages are missing.
        """
        missing = [command for command in ACCOUNTING if shutil.which(command) is None]
        if missing:
            raise Unavailable(f"limits per user need {', '.join(missing)} (envs/debian-packages.txt)")
        data, conf = self.folder / "database", self.folder / "slurm" / "slurmdbd.conf"
        options = f"--no-defaults --user=root --datadir={data}"
        self.must(["bash", "-c", f"mkdir -p /run/mysqld && mariadb-install-db {options} {PLAIN_ROOT} >{data}.log 2>&1"])
        server = f"{options} --socket=/run/mysqld/mysqld.sock --skip-networking"
        self.must(["bash", "-c", f"setsid mariadbd {server} >>{data}.log 2>&1 </dev/null &"])
        self.until(["bash", "-c", "test -S /run/mysqld/mysqld.sock && echo up"], "up")
        conf.write_text(DATABASE_CONF.format(folder=conf.parent))
        conf.chmod(0o600)
        self.stop_controller()
        self.configure((conf.parent / "slurm.conf").read_text(), **ACCOUNTED)
        self.must(["slurmdbd"])
        self.until(["sacctmgr", "-n", "list", "qos", "format=name"], "normal")
        for words in ("cluster box", "account lab", f"user {USER} account=lab"):
            self.must(["sacctmgr", "-i", "add", *words.split()])
        self.must(["sacctmgr", "-i", "modify", "qos", "normal", "set", f"MaxSubmitJobsPerUser={jobs_per_user}"])
        self.start_controller()


ACCOUNTING = ("slurmdbd", "sacctmgr", "mariadbd", "mariadb-install-db", "my_print_defaults")
PLAIN_ROOT = "--auth-root-authentication-method=normal --skip-test-db"
ACCOUNTED = {
    "AccountingStorageType": "accounting_storage/slurmdbd",
    "AccountingStorageHost": "10.77.0.1",
    "AccountingStoragePort": "17910",
    "AccountingStorageEnforce": "limits",
}
DATABASE_CONF = """\
AuthType=auth/munge
DbdHost=box
DbdAddr=10.77.0.1
DbdPort=17910
SlurmUser=root
StorageType=accounting_storage/mysql
StorageUser=root
StorageLoc=slurm_acct_db
LogFile={folder}/slurmdbd.log
PidFile={folder}/slurmdbd.pid
"""
