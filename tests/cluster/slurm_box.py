"""Slurm in a box: four nodes of 16 CPUs, 4 GB and 4 GPUs each, on one host. CPUs, memory and GPUs are a fiction."""

from __future__ import annotations

import re
import shutil
import time
from pathlib import Path

from tests.cluster.box import Box, Unavailable

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
NodeName=node[1-4] NodeHostname=box NodeAddr=10.77.0.1 Port=[17901-17904] CPUs=16 Boards=1 SocketsPerBoard=1 CoresPerSocket=16 ThreadsPerCore=1 RealMemory=4000 Gres=gpu:4
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


def version() -> str | None:
    """The version of the Slurm that is installed; None where it is not."""
    import subprocess

    if any(shutil.which(command) is None for command in COMMANDS):
        return None
    said = subprocess.run(["slurmd", "-V"], capture_output=True, text=True, check=False).stdout
    found = re.search(r"\d+\.\d+\.\d+", said)
    return found[0] if found else None


class SlurmBox(Box):
    """A box with a running Slurm."""

    def __init__(self, repository: Path) -> None:
        if version() is None:
            raise Unavailable("needs Slurm (envs/debian-packages.txt)")
        super().__init__(repository)
        try:
            self._start()
        except BaseException:
            self.stop()
            raise

    def _start(self) -> None:
        folder = self.folder / "slurm"
        for part in ("state", "spool", "gpus"):
            (folder / part).mkdir(parents=True)
        self.limits_memory = Path("/sys/fs/cgroup/memory").is_dir()
        (folder / "cgroup.conf").write_text(CGROUP)
        task = "task/cgroup" if self.limits_memory else "task/none"
        (folder / "slurm.conf").write_text(CONF.format(folder=folder, task=task))
        (folder / "gres.conf").write_text(f"AutoDetect=off\nNodeName=node[1-4] Name=gpu File={folder}/gpus/gpu[0-3]\n")
        for number in range(4):
            self.must(["mknod", "-m", "666", f"{folder}/gpus/gpu{number}", "c", "1", "3"])
        self.environment["SLURM_CONF"] = str(folder / "slurm.conf")
        self.must(["bash", "-c", "mkdir -p /run/munge && chown munge: /run/munge"])
        self.must(["bash", "-c", "[ -e /etc/munge/munge.key ] || mungekey --create"])
        self.must(["runuser", "-u", "munge", "--", "munged"])
        self.start_controller()
        for number in range(1, 5):
            self.must(["slurmd", "-N", f"node{number}"])
        self.until(["sinfo", "-h", "-o", "%D %T"], "4 idle")

    def start_controller(self) -> None:
        """Start the controller, and wait until it answers."""
        self.must(["slurmctld"])
        self.until(["scontrol", "ping"], "is UP")

    def stop_controller(self, crash: bool = False) -> None:
        """End the controller as an administrator does, or as a crash would; jobs go on."""
        pid = (self.folder / "slurm" / "slurmctld.pid").read_text().strip()
        self.must(["kill", "-KILL" if crash else "-TERM", pid])
        deadline = time.monotonic() + 20
        while self.run(["kill", "-0", pid]).returncode == 0:
            assert time.monotonic() < deadline, "the controller does not end"
            time.sleep(0.1)
